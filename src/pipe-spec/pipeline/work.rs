//! The work of an attempt: a training by our trainer, or a command of the user.

use serde::{Deserialize, Serialize};

use super::{Adapter, Command, Data, Evaluate, Memory, Model, Save, Train};

#[derive(Clone, Debug, PartialEq)]
pub enum Work {
    Training(Box<Training>),
    Command(Box<Command>),
}

impl Work {
    /// Samples in a step.
    pub fn effective_batch(&self) -> u32 {
        match self {
            Self::Training(training) => training.train.effective_batch,
            Self::Command(command) => command.train.effective_batch,
        }
    }

    /// Samples in a batch, where nobody has changed it yet.
    pub fn batch(&self) -> u32 {
        match self {
            Self::Training(training) => training.train.batch(),
            Self::Command(command) => command.train.batch,
        }
    }

    pub fn ranks(&self) -> u32 {
        match self {
            Self::Training(training) => training.train.ranks.count(),
            Self::Command(_) => 1,
        }
    }

    pub fn memory(&self) -> &Memory {
        match self {
            Self::Training(training) => &training.memory,
            Self::Command(command) => &command.memory,
        }
    }

    pub fn kind(&self) -> WorkKind {
        match self {
            Self::Training(_) => WorkKind::Training,
            Self::Command(_) => WorkKind::Command,
        }
    }
}

/// A training by our trainer.
#[derive(Clone, Debug, PartialEq)]
pub struct Training {
    pub model: Model,
    pub adapter: Option<Adapter>,
    pub data: Data,
    pub train: Train,
    pub memory: Memory,
    pub evaluate: Evaluate,
    pub save: Save,
}

/// The kind of work of a run, as `run.json` holds it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WorkKind {
    #[default]
    Training,
    Command,
    /// Several of these, each in a run of its own.
    #[serde(rename = "steps")]
    Stages,
    /// A search: trials, each in a run of its own.
    Study,
}

impl WorkKind {
    /// Whether it does something itself, and not in runs of their own.
    pub fn is_single(self) -> bool {
        matches!(self, Self::Training | Self::Command)
    }
}

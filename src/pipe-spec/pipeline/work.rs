//! What an attempt runs: a training by our trainer, or a command of the user.

use serde::{Deserialize, Serialize};

use super::{Data, Evaluate, Memory, Model, Save, Train};

#[derive(Clone, Debug, PartialEq)]
pub enum Work {
    Training(Box<Training>),
    /// A program and its arguments. Not available yet: every pipeline that was checked holds a training.
    Command(Vec<String>),
}

impl Work {
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
    pub data: Data,
    pub train: Train,
    pub memory: Memory,
    pub evaluate: Evaluate,
    pub save: Save,
}

/// Which of the two a run does, as `run.json` holds it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WorkKind {
    #[default]
    Training,
    Command,
}

//! The pipeline file: parsed, checked as a whole, and turned into types that can be trusted.
//!
//! The work of an attempt: a training by our trainer, or a command of the user.

mod check;
mod command;
mod container;
mod data;
mod file;
mod graph;
mod metric;
mod model;
mod on_oom;
mod other_names;
#[cfg(test)]
mod tests;
mod train;
mod watch;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::text::Name;
use crate::variables::Variables;

pub use crate::yaml::Note;
pub use crate::yaml::{Problem, Problems};
pub(crate) use check::pipeline as pipeline_of;
pub use command::{Checkpoints, Command, CommandLine, CommandTrain, MetricsFormat, PLACEHOLDERS, VarValue};
pub use container::{Container, Gpus, Image, Mount};
pub use container::{EngineEntry, EngineRequest, EngineSection, Engines, SectionType};
pub use data::{Augment, CHOSEN, COMPLETION, CONTEXT, CONVERSATION, Data, LossOn, PROMPT, Pad, Paths, REJECTED};
pub use data::{IGNORED_COLUMNS, LossUnit, Task};
pub use file::{PipelineFile, schema};
pub use graph::{OutputRef, Stage, StageGraph};
pub use metric::Metric;
pub use model::{Adapter, AdapterKind, AdapterTargets};
pub use model::{Arch, Model, ModelTask, Quantize};
pub use on_oom::{Allocator, Change, Edit, EffectiveBatch, Limit, Memory, OnOom, Reduce};
pub(crate) use other_names::Transformers as OtherNamesOfPipelines;
pub use train::{
    BatchSetting, Checkpointing, ClassWeights, DEFAULT_SEED, Decay, EarlyStop, Optimizer, OptimizerKind, Precision,
    Preference, PreferenceLoss, Ranks, Schedule, ScheduleKind, Shard, Split, Train, TrainFile, Warmup, accum, share,
};
pub use watch::{Evaluate, Every, Notify, NotifyOn, Save, Track};

/// The largest pipeline file that is read.
pub const MAX_FILE_BYTES: u64 = 1 << 20;

/// A pipeline that has passed every check. It serialises to a pipeline file with every default written out.
#[derive(Clone, Debug, PartialEq)]
pub struct Pipeline {
    pub version: u32,
    pub name: Name,
    pub work: Work,
    pub on_oom: OnOom,
    pub container: Container,
    /// The name of an engine.
    pub engine: Option<String>,
    /// The sections of engines that were given, with every default, by the names of the engines.
    pub sections: Map<String, Value>,
    pub notify: Vec<Notify>,
    pub track: Track,
}

impl Pipeline {
    /// Reads a pipeline file. `overrides` are `path=value` pairs that replace what the file says.
    pub fn parse(text: &str, overrides: &[String], variables: &Variables, engines: Engines) -> Result<Self, Problems> {
        let mut tree = crate::yaml::Node::parse(text)?;
        for pair in overrides {
            tree.set(pair)?;
        }
        check::pipeline(&tree, variables, engines)
    }

    /// The demands of its jobs on their engine.
    pub fn engine_request(&self) -> EngineRequest {
        let is_command = self.command().is_some();
        let without_image = is_command && self.container.image.is_none();
        EngineRequest {
            sections: self.sections.clone(),
            without_image,
            for_image: is_command && !without_image,
            trains: self.training().is_some(),
            address: None,
        }
    }

    /// The training that it holds, unless it holds a command.
    pub fn training(&self) -> Option<&Training> {
        match &self.work {
            Work::Training(training) => Some(training),
            Work::Command(_) => None,
        }
    }

    pub fn training_mut(&mut self) -> Option<&mut Training> {
        match &mut self.work {
            Work::Training(training) => Some(training),
            Work::Command(_) => None,
        }
    }

    /// The command that it holds, unless it holds a training.
    pub fn command(&self) -> Option<&Command> {
        match &self.work {
            Work::Training(_) => None,
            Work::Command(command) => Some(command),
        }
    }

    /// The effect of a smaller batch on its effective batch.
    pub fn effective_batch_rule(&self) -> EffectiveBatch {
        match self.command() {
            Some(command) if !command.accumulates() && !self.on_oom.accumulates => {
                match self.on_oom.may_change_effective_batch() {
                    true => EffectiveBatch::MayFall,
                    false => EffectiveBatch::MustNotFall,
                }
            }
            _ => EffectiveBatch::Kept,
        }
    }

    pub fn to_yaml(&self) -> String {
        serde_saphyr::to_string(self).expect("a pipeline holds nothing that YAML cannot")
    }
}

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

/// The most that settings may say: far above every training that there is, and so small that no product of them overflows and
/// nothing is allocated for a typing error.
pub mod bounds {
    /// Samples in a pass or in a step.
    pub const MAX_SAMPLES: u32 = 1 << 24;
    /// Tokens of a row.
    pub const MAX_TOKENS: u32 = 1 << 20;
    /// Threads that prepare batches.
    pub const MAX_WORKERS: u32 = 1024;
    /// Steps that are ready ahead.
    pub const MAX_PREFETCHED: u32 = 1024;
    pub const MAX_STEPS: u64 = 1_000_000_000;
    /// Evaluations in a row without an improvement.
    pub const MAX_PATIENCE: u32 = 1_000_000;
    pub const MAX_EPOCHS: f64 = 1_000_000.0;
    pub const MAX_RETRIES: u32 = 1000;
    /// Seconds: a year.
    pub const MAX_WAIT: u64 = 365 * 24 * 60 * 60;
    /// Texts that are generated for one evaluation.
    pub const MAX_TEXTS: u32 = 1 << 16;
    pub const MAX_BEAMS: u32 = 1024;
    pub const MAX_CPUS: f64 = 4096.0;

    /// Machines of a job.
    pub const MAX_NODES: u32 = 1024;
    /// `memory.allocator.max_split_size_mb`
    pub const MAX_SPLIT_MB: u64 = 1 << 24;
    /// `memory.allocator.roundup_power2_divisions`
    pub const MAX_DIVISIONS: u64 = 1 << 16;
}

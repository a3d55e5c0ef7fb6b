//! The pipeline file: parsed, checked as a whole, and turned into types that can be trusted.

mod adapter;
pub mod bounds;
mod check;
mod command;
mod container;
mod data;
mod engines;
mod file;
mod graph;
mod memory;
mod metric;
mod model;
mod on_oom;
mod other_names;
mod task;
#[cfg(test)]
mod tests;
mod train;
mod watch;
mod work;
mod written;

pub use crate::problem::{Problem, Problems};
pub use crate::yaml::Note;
pub use adapter::{Adapter, AdapterKind, AdapterTargets};
pub use command::{Checkpoints, Command, CommandLine, CommandTrain, MetricsFormat, PLACEHOLDERS, VarValue};
pub use container::{Container, Gpus, Image, Mount};
pub use data::{Augment, CHOSEN, COMPLETION, CONTEXT, CONVERSATION, Data, LossOn, PROMPT, Pad, Paths, REJECTED};
pub use engines::{EngineEntry, EngineRequest, EngineSection, Engines, SectionType};
pub use file::{PipelineFile, schema};
pub use graph::{OutputRef, Stage, StageGraph};
pub use memory::{Allocator, Limit, Memory};
pub use metric::Metric;
pub use model::{Arch, Model, ModelTask, Quantize};
pub use on_oom::{Change, Edit, EffectiveBatch, OnOom, Reduce};
pub use task::{IGNORED_COLUMNS, LossUnit, Task};
pub use train::{
    BatchSetting, Checkpointing, ClassWeights, Decay, EarlyStop, Optimizer, OptimizerKind, Precision, Preference,
    PreferenceLoss, Ranks, Schedule, ScheduleKind, Shard, Split, Train, TrainFile, Warmup, accum, share,
};
pub use watch::{Evaluate, Every, Notify, NotifyOn, Save, Track};
pub use work::{Training, Work, WorkKind};

pub(crate) use check::pipeline as pipeline_of;
pub(crate) use other_names::Transformers as OtherNamesOfPipelines;

use serde_json::{Map, Value};

use crate::text::Name;
use crate::variables::Variables;

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
        let without_image = self.command().is_some() && self.container.image.is_none();
        EngineRequest { sections: self.sections.clone(), without_image }
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

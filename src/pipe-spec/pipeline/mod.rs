//! The pipeline file: parsed, checked as a whole, and turned into types that can be trusted.

mod availability;
mod check;
mod container;
mod data;
mod file;
mod memory;
mod model;
mod on_oom;
mod problem;
mod task;
#[cfg(test)]
mod tests;
mod train;
mod watch;

pub use container::{Container, EngineKind, Gpus, Image, Mount};
pub use data::{Data, Pad, Paths};
pub use file::{PipelineFile, schema};
pub use memory::{Allocator, Limit, Memory};
pub use model::{Arch, Model};
pub use on_oom::{Change, Edit, OnOom, Reduce};
pub use problem::{Problem, Problems};
pub use task::Task;
pub use train::{
    BatchSetting, Decay, Optimizer, OptimizerKind, Precision, Schedule, ScheduleKind, Train, TrainFile, accum,
};
pub use watch::{Evaluate, Every, Notify, NotifyOn, Save, Track};

use serde::Serialize;

use crate::text::Name;
use crate::variables::Variables;

/// The largest pipeline file that is read.
pub const MAX_FILE_BYTES: u64 = 1 << 20;

/// A pipeline that has passed every check. It serialises to a pipeline file with every default written out.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Pipeline {
    pub version: u32,
    pub name: Name,
    pub model: Model,
    pub data: Data,
    pub train: Train,
    pub memory: Memory,
    pub on_oom: OnOom,
    pub evaluate: Evaluate,
    pub save: Save,
    pub container: Container,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub engine: Option<EngineKind>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notify: Vec<Notify>,
    pub track: Track,
}

impl Pipeline {
    /// Reads a pipeline file. `overrides` are `path=value` pairs that replace what the file says.
    pub fn parse(text: &str, overrides: &[String], variables: &Variables) -> Result<Self, Problems> {
        let mut tree = crate::yaml::Node::parse(text)?;
        for pair in overrides {
            tree.set(pair)?;
        }
        check::pipeline(&tree, variables)
    }

    pub fn to_yaml(&self) -> String {
        serde_saphyr::to_string(self).expect("a pipeline holds nothing that YAML cannot")
    }
}

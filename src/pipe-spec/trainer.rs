//! The resolved spec: what one attempt of the trainer is to do, `attempts/NN/spec.json`.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::pipeline::{Data, Evaluate, Memory, Model, Save, Train};

/// Paths are as the trainer sees them: inside the container, or on the host under the `process` engine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TrainerSpec {
    pub version: u32,
    pub run: PathBuf,
    pub attempt: u32,
    pub device: Device,
    /// Threads for computation; absent leaves it to libtorch.
    pub threads: Option<u32>,
    pub model: Model,
    /// Absent where nothing is read as text.
    #[serde(default)]
    pub tokenizer: Option<PathBuf>,
    pub data: Data,
    pub train: Train,
    pub memory: Memory,
    pub evaluate: Evaluate,
    pub save: Save,
    /// Whether `on_oom.then` has changed the maths: a checkpoint in another precision or of another optimizer may go on.
    #[serde(default)]
    pub maths_changed: bool,
}

impl TrainerSpec {
    pub const VERSION: u32 = 1;
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Device {
    Cpu,
    Cuda,
}

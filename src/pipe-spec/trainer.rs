//! The resolved spec: what one attempt of the trainer is to do, `attempts/NN/spec.json`.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::pipeline::{Adapter, Data, Evaluate, Memory, Model, Save, Train};

/// A field for each key of `spec.json`, which attempts of earlier versions have too: they are read when a run is resumed.
/// Paths are as the trainer sees them: inside the container, or on the host under the `process` engine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TrainerSpec {
    pub version: u32,
    pub run: PathBuf,
    pub attempt: u32,
    /// Which of the processes that share a step this one is.
    #[serde(default, skip_serializing_if = "Rank::is_only")]
    pub rank: Rank,
    /// How many machines the ranks are on, as many of them on each; `NODE_VARIABLE` says which one this is.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub nodes: u32,
    pub device: Device,
    /// How many cards the ranks of a machine have among them.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub cards: u32,
    /// Which of the cards that the trainer sees, counted from 0. Of several ranks each has the next one.
    #[serde(default, skip_serializing_if = "is_first")]
    pub device_index: u32,
    /// Threads for computation; absent leaves it to libtorch.
    pub threads: Option<u32>,
    pub model: Model,
    /// The name of the model that an adapter is trained for, as the pipeline has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base_model: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub adapter: Option<Adapter>,
    /// Absent where nothing is read as text.
    #[serde(default)]
    pub tokenizer: Option<PathBuf>,
    pub data: Data,
    pub train: Train,
    pub memory: Memory,
    pub evaluate: Evaluate,
    pub save: Save,
    /// Whether `on_oom.then` has changed the training result: a checkpoint in another precision or of another optimizer may be used.
    #[serde(default)]
    pub maths_changed: bool,
}

/// One trainer process among those that share a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rank {
    /// From 0.
    pub index: u32,
    pub count: u32,
}

impl Rank {
    fn is_only(&self) -> bool {
        self.count == 1
    }
}

impl Default for Rank {
    fn default() -> Self {
        Self { index: 0, count: 1 }
    }
}

/// Set for a trainer that is to end with the program that started it: `LEASE_ON_STDIN`, where its stdin stays open for as long
/// as that program lives.
pub const LEASE_VARIABLE: &str = "PIPE_LEASE";
pub const LEASE_ON_STDIN: &str = "stdin";

/// Set where the ranks are on several machines: which of them this is, counted from 0, or `${NAME}` of a variable that holds it. All
/// machines see the run folder.
pub const NODE_VARIABLE: &str = "PIPE_NODE";

/// Set where the ranks of other machines reach this one by another address than that of its name.
pub const ADDRESS_VARIABLE: &str = "PIPE_ADDRESS";

/// The text in the trainer's message before the row or file that it was reading when memory ran out.
pub const WHILE_READING: &str = " while reading ";

fn one() -> u32 {
    1
}

fn is_one(number: &u32) -> bool {
    *number == 1
}

fn is_first(index: &u32) -> bool {
    *index == 0
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

/// The error in what the trainer wrote to stderr; all of it where there is none.
pub fn error_message(stderr: &str) -> &str {
    stderr.split_once("error: ").map_or(stderr.trim(), |(_, message)| message.trim())
}

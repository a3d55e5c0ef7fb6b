//! The run folder: where everything lies, and `run.json`, the file that `pipe ls` reads.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::event::{Memory, OomRecord, Phase};

/// The paths of one run, as the program at hand sees them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunFolder(PathBuf);

impl RunFolder {
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self(path.into())
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    /// What was asked, byte for byte.
    pub fn pipeline(&self) -> PathBuf {
        self.0.join("pipeline.yaml")
    }

    /// The same with every default.
    pub fn resolved(&self) -> PathBuf {
        self.0.join("resolved.yaml")
    }

    /// What it ran on.
    pub fn lock(&self) -> PathBuf {
        self.0.join("lock.json")
    }

    pub fn state(&self) -> PathBuf {
        self.0.join("run.json")
    }

    pub fn events(&self) -> PathBuf {
        self.0.join("events.jsonl")
    }

    /// Held, with a lock of the kernel's, by the `pipe` that drives the run.
    pub fn owner(&self) -> PathBuf {
        self.0.join(".owner")
    }

    pub fn attempt(&self, number: u32) -> AttemptFolder {
        AttemptFolder(self.0.join("attempts").join(format!("{number:02}")))
    }

    pub fn checkpoints(&self) -> PathBuf {
        self.0.join("checkpoints")
    }

    pub fn model(&self) -> PathBuf {
        self.0.join("model")
    }
}

/// The name of the checkpoint after `step` steps.
pub fn checkpoint_name(step: u64) -> String {
    format!("step-{step:08}")
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttemptFolder(PathBuf);

impl AttemptFolder {
    pub fn path(&self) -> &Path {
        &self.0
    }

    pub fn spec(&self) -> PathBuf {
        self.0.join("spec.json")
    }

    /// Everything the trainer wrote, stdout and stderr, in order.
    pub fn log(&self) -> PathBuf {
        self.0.join("log.txt")
    }

    pub fn oom(&self) -> PathBuf {
        self.0.join("oom.json")
    }

    pub fn outcome(&self) -> PathBuf {
        self.0.join("outcome.json")
    }
}

/// `run.json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunState {
    pub id: String,
    pub name: String,
    pub status: Status,
    /// Seconds since the Unix epoch.
    pub created: f64,
    pub engine: String,
    pub effective_batch: u32,
    /// Steps of the whole run, once the trainer has said so.
    pub steps: Option<u64>,
    /// Why the run failed, in words.
    pub error: Option<String>,
    pub attempts: Vec<Attempt>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    Running,
    Finished,
    Failed,
    Stopped,
}

impl Status {
    pub fn name(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Finished => "finished",
            Self::Failed => "failed",
            Self::Stopped => "stopped",
        }
    }
}

/// One container (or process) of a run. `outcome` is absent while it runs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Attempt {
    pub number: u32,
    pub batch: u32,
    pub accum: u32,
    pub outcome: Option<Outcome>,
    pub cause: Option<Cause>,
    /// What was done about it, in words.
    pub action: Option<String>,
    pub first_step: Option<u64>,
    pub last_step: Option<u64>,
    pub first_loss: Option<f64>,
    pub last_loss: Option<f64>,
    pub seconds: f64,
    /// Bytes.
    pub peak_memory: Option<u64>,
    pub exit_code: Option<i64>,
    /// The container's id, while there is one.
    pub container: Option<String>,
}

impl Attempt {
    pub fn new(number: u32, batch: u32, accum: u32) -> Self {
        Self {
            number,
            batch,
            accum,
            outcome: None,
            cause: None,
            action: None,
            first_step: None,
            last_step: None,
            first_loss: None,
            last_loss: None,
            seconds: 0.0,
            peak_memory: None,
            exit_code: None,
            container: None,
        }
    }
}

/// How an attempt ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    Finished,
    Oom,
    Stopped,
    Failed,
}

impl Outcome {
    pub fn name(self) -> &'static str {
        match self {
            Self::Finished => "finished",
            Self::Oom => "oom",
            Self::Stopped => "stopped",
            Self::Failed => "failed",
        }
    }
}

/// Why an attempt ended before it was done.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Cause {
    /// Reserved minus allocated memory would have held the request.
    Fragmented { record: OomRecord },
    /// The batch does not fit.
    Capacity { record: OomRecord },
    /// Only evaluation does not fit.
    EvalOnly { record: OomRecord },
    /// The model or its optimizer does not fit: no batch would help.
    Model { record: OomRecord },
    /// The kernel killed the job at its memory limit, in bytes.
    KilledByKernel { limit: Option<u64> },
    /// Something killed it, and it was not for memory.
    Killed { signal: String },
    /// The trainer said what was wrong and ended itself.
    Trainer { message: String },
    /// The container or process went away without an exit code.
    Vanished { message: String },
    /// A person stopped it.
    Requested,
}

impl Cause {
    /// The record behind an out-of-memory cause, where the trainer lived to write one.
    pub fn record(&self) -> Option<&OomRecord> {
        match self {
            Self::Fragmented { record }
            | Self::Capacity { record }
            | Self::EvalOnly { record }
            | Self::Model { record } => Some(record),
            Self::KilledByKernel { .. }
            | Self::Killed { .. }
            | Self::Trainer { .. }
            | Self::Vanished { .. }
            | Self::Requested => None,
        }
    }

    /// A few words for a table.
    pub fn short(&self) -> String {
        match self {
            Self::Fragmented { .. } => "memory fragmented".to_owned(),
            Self::Capacity { record } => format!("{} in {}", whose(record), record.phase.name()),
            Self::EvalOnly { .. } => "evaluation does not fit".to_owned(),
            Self::Model { record } => format!("{} in {}", whose(record), record.phase.name()),
            Self::KilledByKernel { .. } => "killed by the kernel at the memory limit".to_owned(),
            Self::Killed { signal } => format!("killed by {signal}"),
            Self::Trainer { .. } => "trainer error".to_owned(),
            Self::Vanished { .. } => "vanished".to_owned(),
            Self::Requested => "on request".to_owned(),
        }
    }
}

fn whose(record: &OomRecord) -> &'static str {
    match record.memory {
        Memory::Device => "device memory",
        Memory::Host => "host memory",
    }
}

/// Phases in which the size of the batch makes no difference.
pub fn batch_matters(phase: Phase) -> bool {
    match phase {
        Phase::Forward | Phase::Backward => true,
        Phase::Load | Phase::Optimizer | Phase::Eval | Phase::Checkpoint | Phase::Resume => false,
    }
}

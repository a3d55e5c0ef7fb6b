//! One attempt of a run as `run.json` holds it: its settings, its figures, how it ended and why.
//!
//! The stages of a run of several, as its `run.json` holds them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// One container (or process) of a run. `outcome` is absent while it runs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Attempt {
    pub number: u32,
    pub batch: u32,
    pub accum: u32,
    /// Whether it trains with a batch: a stage without one has none.
    #[serde(default = "yes", skip_serializing_if = "is_yes")]
    pub has_batch: bool,
    /// Trainer processes that shared its steps.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub ranks: u32,
    pub outcome: Option<Outcome>,
    pub cause: Option<Cause>,
    /// The cause as text.
    pub reason: Option<String>,
    /// The change that the next attempt makes, as text.
    pub action: Option<String>,
    /// Whether a person resumed the run with this attempt.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub resumed: bool,
    /// The changes of `on_oom.then` that were in effect.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub changes: Vec<String>,
    /// Seconds since the Unix epoch.
    #[serde(default)]
    pub began: f64,
    #[serde(flatten)]
    pub figures: AttemptFigures,
    pub exit_code: Option<i64>,
    #[serde(flatten)]
    pub job: AttemptJob,
}

/// How far an attempt came. Its keys stand beside those of the attempt.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct AttemptFigures {
    pub first_step: Option<u64>,
    pub last_step: Option<u64>,
    pub first_loss: Option<f64>,
    pub last_loss: Option<f64>,
    pub seconds: f64,
    /// Bytes.
    pub peak_memory: Option<u64>,
}

/// The job of an attempt while it runs. Its keys stand beside those of the attempt.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct AttemptJob {
    /// The container's id, while there is one.
    pub container: Option<String>,
    /// How far `log.txt` has come.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub log: Option<LogPosition>,
}

fn yes() -> bool {
    true
}

fn is_yes(truth: &bool) -> bool {
    *truth
}

fn one() -> u32 {
    1
}

fn is_one(number: &u32) -> bool {
    *number == 1
}

/// How much of a job's output was read and written down.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogPosition {
    /// Bytes of `log.txt`.
    pub bytes: u64,
    /// Bytes of the job's output.
    #[serde(default)]
    pub output: u64,
    /// Events that were read from the lines of a command.
    #[serde(default)]
    pub metrics: u64,
}

/// How the first process of a job says that the job ended.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct JobEnd {
    pub exit_code: i64,
    /// Processes of its control group that the kernel killed for want of memory while it ran.
    pub oom_kills: u64,
    /// The number of the error with which the program could not be started.
    pub error: Option<i32>,
    /// Whether it was asked to stop before its program ended; records of earlier versions do not say it.
    #[serde(default)]
    pub stop_requested: Option<bool>,
}

impl JobEnd {
    /// Its program did its work before anybody asked it to stop.
    pub fn is_completed(&self) -> bool {
        self.exit_code == 0 && self.stop_requested == Some(false)
    }
}

impl Attempt {
    pub fn new(number: u32, batch: u32, accum: u32) -> Self {
        Self {
            number,
            batch,
            accum,
            has_batch: true,
            ranks: 1,
            outcome: None,
            cause: None,
            reason: None,
            action: None,
            resumed: false,
            changes: Vec::new(),
            began: 0.0,
            figures: AttemptFigures::default(),
            exit_code: None,
            job: AttemptJob::default(),
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
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    /// The card's reserved minus allocated memory would have held the request.
    Fragmented,
    /// The batch does not fit on the card.
    Capacity,
    /// Other processes hold the requested memory.
    Neighbour,
    /// Only evaluation does not fit on the card.
    EvalOnly,
    /// The model or its optimizer does not fit on the card: no batch would help.
    Model,
    /// The host's memory, or what the container may use of it, ran out.
    HostMemory,
    /// Something killed it, and it was not for memory.
    Killed,
    /// The trainer said what was wrong and ended itself.
    Trainer,
    /// The container or process went away without an exit code.
    Vanished,
    /// A person stopped it.
    Requested,
    /// The engine, the machine or the parent `pipe` that ran it went away.
    Interrupted,
    /// The time that the cluster gave the job was over.
    TimeLimit,
    /// The cluster needed its place for another job.
    Preempted,
    /// A machine of the cluster that it ran on is gone.
    NodeLost,
    /// A person cancelled its job with the cluster's own means.
    Cancelled,
}

impl Cause {
    pub const ALL: [Self; 15] = [
        Self::Fragmented,
        Self::Capacity,
        Self::Neighbour,
        Self::EvalOnly,
        Self::Model,
        Self::HostMemory,
        Self::Killed,
        Self::Trainer,
        Self::Vanished,
        Self::Requested,
        Self::Interrupted,
        Self::TimeLimit,
        Self::Preempted,
        Self::NodeLost,
        Self::Cancelled,
    ];

    /// Whether an attempt that ended so is followed by the same again, from its last checkpoint.
    pub fn goes_on(self) -> bool {
        matches!(self, Self::Interrupted | Self::TimeLimit | Self::Preempted | Self::NodeLost)
    }
}

/// How far a stage of a pipeline has come.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StageState {
    pub name: String,
    pub needs: Vec<String>,
    pub status: StageStatus,
    /// The run that does it, or has done it before where nothing has changed since.
    pub run: Option<String>,
    /// Hash of its settings, program and inputs.
    pub hash: Option<String>,
    /// A hash of each file and folder that it reads, as it was when the stage began.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub inputs: BTreeMap<String, String>,
    /// Those that changed while it ran, so that nobody knows what its outputs were made of.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub changed: Vec<String>,
    /// Hashes of its outputs by name; the whole of a command's has none.
    #[serde(default)]
    pub outputs: BTreeMap<String, String>,
    /// Seconds since the Unix epoch.
    pub began: Option<f64>,
    pub seconds: Option<f64>,
    pub error: Option<String>,
    /// The exit code of `pipe` that its run would have ended with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<u8>,
    /// Whether it runs though nothing may have changed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub again: bool,
}

impl StageState {
    pub fn new(name: impl Into<String>, needs: Vec<String>) -> Self {
        Self {
            name: name.into(),
            needs,
            status: StageStatus::Waiting,
            run: None,
            hash: None,
            inputs: BTreeMap::new(),
            changed: Vec::new(),
            outputs: BTreeMap::new(),
            began: None,
            seconds: None,
            error: None,
            exit_code: None,
            again: false,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StageStatus {
    /// For other stages, or for room on the machine.
    Waiting,
    Running,
    Finished,
    /// It has finished before, and nothing that it depends on has changed since.
    Unchanged,
    /// Not selected by `--only`.
    LeftOut,
    Failed,
    Stopped,
}

impl StageStatus {
    pub fn name(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Running => "running",
            Self::Finished => "finished",
            Self::Unchanged => "unchanged",
            Self::LeftOut => "left out",
            Self::Failed => "failed",
            Self::Stopped => "stopped",
        }
    }

    /// Whether its outputs are there.
    pub fn is_done(self) -> bool {
        matches!(self, Self::Finished | Self::Unchanged)
    }
}

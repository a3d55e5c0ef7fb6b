//! The run folder: where everything lies, and `run.json`, the file that `pipe ls` reads.
//!
//! The job may write `checkpoints/`, `model/` and the `job/` of its attempt. Everything else is the runner's, and in a
//! container the job cannot see it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::pipeline::{Metric, WorkKind};
pub use crate::step_state::{StepState, StepStatus};

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

    /// Locked by the `pipe` process that owns the run.
    pub fn owner(&self) -> PathBuf {
        self.0.join(".owner")
    }

    /// Written by a `pipe` on another machine that wants the run to stop: `graceful` or `hard`.
    pub fn stop_request(&self) -> PathBuf {
        self.0.join(".stop")
    }

    /// What `pipe` said about the run, line by line.
    pub fn journal(&self) -> PathBuf {
        self.0.join("pipe.log")
    }

    /// The stderr of a `pipe` process in the background.
    pub fn driver_log(&self) -> PathBuf {
        self.0.join(".driver.log")
    }

    pub fn attempt(&self, number: u32) -> AttemptFolder {
        AttemptFolder(self.0.join("attempts").join(format!("{number:02}")))
    }

    pub fn checkpoints(&self) -> PathBuf {
        self.0.join("checkpoints")
    }

    /// What a command writes, in all of its attempts.
    pub fn output(&self) -> PathBuf {
        self.0.join("output")
    }

    pub fn model(&self) -> PathBuf {
        self.0.join("model")
    }

    /// The run as a page.
    pub fn report(&self) -> PathBuf {
        self.0.join("report.html")
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

    /// The record of an out-of-memory, as the runner has read and checked it.
    pub fn oom(&self) -> PathBuf {
        self.0.join("oom.json")
    }

    /// What the job itself writes about this attempt.
    pub fn job(&self) -> JobFolder {
        JobFolder(self.0.join("job"))
    }

    pub fn outcome(&self) -> PathBuf {
        self.0.join("outcome.json")
    }
}

/// The folder of an attempt that its job may write. The runner trusts nothing in it: it follows no link there, and reads no
/// more than a bound.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobFolder(PathBuf);

impl JobFolder {
    /// The names of its files.
    pub const EVENTS: &str = "events.jsonl";
    pub const OOM: &str = "oom.json";
    pub const EVALUATION: &str = "evaluation.json";
    pub const BEST_EVALUATION: &str = "evaluation-best.json";
    pub const RANKS: &str = "ranks";

    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Every event of this attempt. No engine rotates or cuts it, unlike the log.
    pub fn events(&self) -> PathBuf {
        self.0.join(Self::EVENTS)
    }

    pub fn oom(&self) -> PathBuf {
        self.0.join(Self::OOM)
    }

    /// What the last evaluation of this attempt has shown.
    pub fn evaluation(&self) -> PathBuf {
        self.0.join(Self::EVALUATION)
    }

    /// Where the ranks of an attempt find each other, and leave what they have to say to each other.
    pub fn ranks(&self) -> PathBuf {
        self.0.join(Self::RANKS)
    }

    /// The same of the best evaluation by `save.best`, where this attempt made it.
    pub fn best_evaluation(&self) -> PathBuf {
        self.0.join(Self::BEST_EVALUATION)
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
    #[serde(default)]
    pub work: WorkKind,
    #[serde(default)]
    pub job: Job,
    pub effective_batch: u32,
    /// Steps of the whole run, once the trainer has said so.
    pub steps: Option<u64>,
    /// Why the run failed.
    pub error: Option<String>,
    /// The stage of a running run: building the image, waiting for a card, training.
    #[serde(default)]
    pub doing: Option<String>,
    /// The exit code of `pipe`, once the run is over.
    #[serde(default)]
    pub exit_code: Option<u8>,
    /// Where `pipe` was started: what the paths of the pipeline begin from.
    #[serde(default)]
    pub cwd: PathBuf,
    /// Whether the ledger is neither read nor written.
    #[serde(default)]
    pub ignore_ledger: bool,
    /// How often it may run out of memory and be tried again.
    #[serde(default)]
    pub retries: u32,
    /// Whether it starts though other runs hold the card.
    #[serde(default)]
    pub no_queue: bool,
    /// What it has achieved: while it runs what it aims at, at its end the whole. Runs of older versions have none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<RunResult>,
    /// The run of several steps that this one is a step of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub part_of: Option<String>,
    /// The steps of a run of several, in the order of the file.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub graph: Vec<StepState>,
    /// How far a search has come.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub study: Option<StudyState>,
    /// Whether a batch that is known not to fit ends the run, instead of being made smaller.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub as_asked: bool,
    /// Why it was not tried, where what it asks for is known not to fit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub infeasible: Option<String>,
    pub attempts: Vec<Attempt>,
}

/// How far a search has come, as `run.json` holds it. Its trials are in its storage.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct StudyState {
    /// A journal file of Optuna.
    pub storage: PathBuf,
    /// Seconds that it ran for, over all `pipe` processes.
    pub seconds: f64,
    pub trials: TrialCounts,
    /// Trials that it may run.
    pub budget: Option<u64>,
    /// The number of the best trial, and its value, with one objective.
    pub best: Option<(u64, f64)>,
}

/// Trials of a study, by how they ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TrialCounts {
    pub running: u64,
    pub complete: u64,
    /// Ended early because others were better, or out of memory.
    pub pruned: u64,
    /// Never begun: known not to fit.
    pub infeasible: u64,
    /// Never begun: the same training as another trial, whose values they have.
    pub repeated: u64,
    pub failed: u64,
}

impl TrialCounts {
    /// Those that count against the budget.
    pub fn run(&self) -> u64 {
        self.running + self.complete + self.pruned + self.failed
    }
}

/// What a run has achieved. Metrics have the names that `save.best` takes, such as `eval.loss`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct RunResult {
    /// The metric that runs are compared by: that of `save.best`, else the first score of the task, else `eval.loss`, else
    /// `loss`, that of the training.
    pub metric: Option<String>,
    /// Its value: of the best evaluation with `save.best`, else of the last.
    pub value: Option<f64>,
    pub save_best: Option<Metric>,
    pub first: Option<Evaluation>,
    /// The evaluation where `metric` is best.
    pub best: Option<Evaluation>,
    pub last: Option<Evaluation>,
    /// The step that the exported model is from.
    pub model_step: Option<u64>,
    /// Why `train.early_stop` ended the training, if it did.
    pub stopped_early: Option<String>,
}

/// One evaluation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Evaluation {
    pub step: u64,
    /// Those that are finite.
    pub metrics: BTreeMap<String, f64>,
}

/// What the trainer is started for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Job {
    #[default]
    Train,
    /// To find the largest batch that fits.
    Fit,
}

impl Job {
    /// The subcommand of the trainer.
    pub fn name(self) -> &'static str {
        match self {
            Self::Train => "train",
            Self::Fit => "fit",
        }
    }
}

impl RunState {
    /// A run that has just been created.
    pub fn new(id: impl Into<String>, name: impl Into<String>, engine: impl Into<String>) -> Self {
        Self {
            id: id.into(),
            name: name.into(),
            status: Status::Running,
            created: 0.0,
            engine: engine.into(),
            work: WorkKind::Training,
            job: Job::Train,
            effective_batch: 0,
            steps: None,
            error: None,
            doing: None,
            exit_code: None,
            cwd: PathBuf::new(),
            ignore_ledger: false,
            retries: 0,
            no_queue: false,
            result: None,
            part_of: None,
            graph: Vec::new(),
            study: None,
            as_asked: false,
            infeasible: None,
            attempts: Vec::new(),
        }
    }

    /// How often it ran out of memory since a person last resumed it.
    pub fn times_out_of_memory(&self) -> u32 {
        let since = self.attempts.iter().rposition(|attempt| attempt.resumed).unwrap_or(0);
        self.attempts[since..].iter().filter(|attempt| attempt.outcome == Some(Outcome::Oom)).count() as u32
    }

    /// How many attempts there will be at most, as it stands.
    pub fn at_most(&self) -> u32 {
        let ended = self.attempts.iter().filter(|attempt| attempt.outcome.is_some()).count() as u32;
        let next = u32::from(self.attempts.last().is_none_or(|last| last.outcome != Some(Outcome::Finished)));
        ended + next + self.retries.saturating_sub(self.times_out_of_memory())
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    Running,
    Finished,
    Failed,
    Stopped,
    /// Running according to the folder, but its `pipe` process was killed. Never written to disk.
    Orphaned,
    /// The folder does not say. Never written down.
    Unknown,
}

impl Status {
    pub const ALL: [Self; 6] =
        [Self::Running, Self::Finished, Self::Failed, Self::Stopped, Self::Orphaned, Self::Unknown];

    pub fn name(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Finished => "finished",
            Self::Failed => "failed",
            Self::Stopped => "stopped",
            Self::Orphaned => "orphaned",
            Self::Unknown => "unknown",
        }
    }
}

/// One container (or process) of a run. `outcome` is absent while it runs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Attempt {
    pub number: u32,
    pub batch: u32,
    pub accum: u32,
    /// Trainer processes that shared its steps.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub ranks: u32,
    pub outcome: Option<Outcome>,
    pub cause: Option<Cause>,
    /// The cause as text.
    pub reason: Option<String>,
    /// What the next attempt changed, as text.
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
    /// How far `log.txt` has come, while the job runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub log: Option<LogPosition>,
}

fn one() -> u32 {
    1
}

fn is_one(number: &u32) -> bool {
    *number == 1
}

/// How much of a job's log was read and written down.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogPosition {
    /// Bytes of `log.txt`.
    pub bytes: u64,
    /// The last lines that were read of the two streams, as the engine stamps them.
    pub stdout: Option<LogStamp>,
    pub stderr: Option<LogStamp>,
}

/// When the engine took a line in, and which of those with the same time it is, counted from 1.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct LogStamp {
    pub time: String,
    pub count: u32,
}

impl Attempt {
    pub fn new(number: u32, batch: u32, accum: u32) -> Self {
        Self {
            number,
            batch,
            accum,
            ranks: 1,
            outcome: None,
            cause: None,
            reason: None,
            action: None,
            resumed: false,
            changes: Vec::new(),
            began: 0.0,
            first_step: None,
            last_step: None,
            first_loss: None,
            last_loss: None,
            seconds: 0.0,
            peak_memory: None,
            exit_code: None,
            container: None,
            log: None,
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
    /// What ran it went away: the engine, the machine, or the `pipe` whose child it was.
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

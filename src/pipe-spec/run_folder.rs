//! The run folder: where everything lies.
//!
//! The job may write `checkpoints/`, `model/` and the `job/` of its attempt. Everything else is the runner's, and in a
//! container the job cannot see it.

use std::path::{Path, PathBuf};

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

    /// The pipeline file as it was given, byte for byte.
    pub fn pipeline(&self) -> PathBuf {
        self.0.join("pipeline.yaml")
    }

    /// The same with every default.
    pub fn resolved(&self) -> PathBuf {
        self.0.join("resolved.yaml")
    }

    /// The lock: versions and hashes of all that the run used.
    pub fn lock(&self) -> PathBuf {
        self.0.join("lock.json")
    }

    pub fn state(&self) -> PathBuf {
        self.0.join("run.json")
    }

    pub fn events(&self) -> PathBuf {
        self.0.join("events.jsonl")
    }

    /// The note and the tags that people give a run.
    pub fn notes(&self) -> PathBuf {
        self.0.join("notes.json")
    }

    /// Locked by the `pipe` process that owns the run.
    pub fn owner(&self) -> PathBuf {
        self.0.join(".owner")
    }

    /// Written by a `pipe` on another machine that wants the run to stop: `graceful` or `hard`.
    pub fn stop_request(&self) -> PathBuf {
        self.0.join(".stop")
    }

    /// The messages of `pipe` about the run, line by line.
    pub fn journal(&self) -> PathBuf {
        self.0.join("pipe.log")
    }

    /// The stderr of a `pipe` process in the background.
    pub fn driver_log(&self) -> PathBuf {
        self.0.join(".driver.log")
    }

    /// The folder of this machine for the job that supervises the run in place of a process here.
    pub fn supervisor(&self) -> PathBuf {
        self.0.join(".supervisor")
    }

    /// The messages of the process here that follows that job.
    pub fn follower_journal(&self) -> PathBuf {
        self.supervisor().join("pipe.log")
    }

    pub fn attempt(&self, number: u32) -> AttemptFolder {
        AttemptFolder(self.0.join("attempts").join(format!("{number:02}")))
    }

    pub fn checkpoints(&self) -> PathBuf {
        self.0.join("checkpoints")
    }

    /// The folder that a command writes to, in all of its attempts.
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

    /// The folder that the job itself writes to in this attempt.
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
    pub const OUTPUT: &str = "output";
    pub const END: &str = "end.json";
    pub const EVENTS: &str = "events.jsonl";
    pub const OOM: &str = "oom.json";
    pub const EVALUATION: &str = "evaluation.json";
    pub const BEST_EVALUATION: &str = "evaluation-best.json";
    pub const RANKS: &str = "ranks";

    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Everything that the job wrote to stdout and stderr and that was not read yet.
    pub fn output(&self) -> PathBuf {
        self.0.join(Self::OUTPUT)
    }

    /// How the job ended: a `JobEnd`.
    pub fn end(&self) -> PathBuf {
        self.0.join(Self::END)
    }

    /// Every event of this attempt.
    pub fn events(&self) -> PathBuf {
        self.0.join(Self::EVENTS)
    }

    pub fn oom(&self) -> PathBuf {
        self.0.join(Self::OOM)
    }

    /// The details of the last evaluation of this attempt.
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

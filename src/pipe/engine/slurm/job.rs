//! A job of the cluster that was submitted.
//!
//! A job and its script leave their files in the folder of the attempt, which all nodes see.

use std::cell::Cell;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use pipe_spec::{RunFolder, TrainerExit};

use super::programs::{self, Failure};
use super::state::{self, JobState, ScriptResult};
use crate::engine::{Ending, JobHandle, JobProgram, Launch, first_process};
use crate::error::Error;
use crate::run::job_file;
use crate::system::interrupt;

/// A request to stop is repeated so often: the controller serves everyone.
const ASK_INTERVAL: Duration = Duration::from_secs(60);

/// How long the cluster may take to say how a job has ended.
const END_TIMEOUT: Duration = Duration::from_secs(300);
const END_INTERVAL: Duration = Duration::from_millis(300);
const LONGEST_INTERVAL: Duration = Duration::from_secs(10);

pub struct ClusterJob {
    id: String,
    files: JobFiles,
    memory: Option<u64>,
    is_trainer: bool,
    asked: Cell<Option<Instant>>,
    /// Why it will never run.
    refused: Refusal,
}

/// Set by the one that follows the job.
pub type Refusal = Arc<Mutex<Option<String>>>;

impl ClusterJob {
    pub fn new(id: String, launch: &Launch, refused: Refusal) -> Self {
        let is_trainer = launch.program == JobProgram::Trainer;
        Self {
            id,
            files: JobFiles::of(launch),
            memory: launch.resources.memory,
            is_trainer,
            asked: Cell::new(None),
            refused,
        }
    }

    /// The job that does the attempt: where two were submitted, one ended at once.
    fn own_id(&self) -> String {
        self.files.job_id().unwrap_or_else(|| self.id.clone())
    }

    /// The cluster's answer once the job has ended there too; nothing where it does not know the job any more.
    async fn final_state(&self) -> Result<Option<JobState>, Error> {
        let began = Instant::now();
        let mut interval = END_INTERVAL;
        loop {
            let id = self.own_id();
            let message = match interrupt::run(move || Ok(programs::job(&id))).await? {
                Ok(Some(job)) if job.has_ended() => return Ok(Some(job)),
                Ok(None) => return Ok(None),
                Ok(Some(job)) => format!("its job is still {}", job.state),
                Err(failure) => failure.said(),
            };
            if began.elapsed() > END_TIMEOUT {
                return Err(Error::EngineLost { reason: message });
            }
            tokio::time::sleep(interval).await;
            interval = (interval * 3 / 2).min(LONGEST_INTERVAL);
        }
    }
}

#[async_trait(?Send)]
impl JobHandle for ClusterJob {
    async fn stop(&self) -> Result<(), Error> {
        if self.asked.get().is_some_and(|at| at.elapsed() < ASK_INTERVAL) {
            return Ok(());
        }
        self.asked.set(Some(Instant::now()));
        let (id, files) = (self.own_id(), self.files.clone());
        interrupt::run(move || {
            // One that has not begun has nothing to save; should it begin this moment, it finds the note.
            files.note_stop();
            let asked = match files.job_id() {
                None => programs::scancel(&["--state=PENDING", &id]),
                Some(_) => programs::scancel(&["--batch", "--signal=TERM", &id]),
            };
            asked.or_else(later)
        })
        .await
    }

    async fn kill(&self) -> Result<(), Error> {
        let id = self.own_id();
        interrupt::run(move || {
            programs::scancel(&["--full", "--signal=KILL", &id]).or_else(later)?;
            programs::scancel(&[&id]).or_else(later)
        })
        .await
    }

    async fn ending(&mut self) -> Result<Ending, Error> {
        if let Some(said) = self.refused.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clone() {
            return Err(
                Failure::Refused { said }.error("correct `slurm` or `container`, or ask those who run the cluster")
            );
        }
        let script = self.files.result();
        let known = match script.code.and_then(TrainerExit::from_code) {
            Some(TrainerExit::DeviceOutOfMemory | TrainerExit::HostOutOfMemory) if self.is_trainer => None,
            // Also of one that ended with 0: srun does so too when a node is taken from it.
            _ => self.final_state().await?,
        };
        let began = self.files.job_id().is_some() || self.files.output().exists();
        if let Some(job) = known.as_ref().filter(|job| !began && job.state == "FAILED") {
            return Err(unseen_folder(&self.files, job));
        }
        Ok(state::ending(&script, known.as_ref(), self.is_trainer, self.memory, programs::user()))
    }

    async fn remove(&mut self) -> Result<(), Error> {
        Ok(())
    }
}

/// The script of a job that failed at once has not even begun.
fn unseen_folder(files: &JobFiles, job: &JobState) -> Error {
    let exit = job.exit.map_or(String::new(), |(code, signal)| format!(", exit code {code}:{signal}"));
    let said = format!("the job failed before its script began ({}{exit})", job.reason);
    let folder = files.folder().display();
    let hint = format!("the nodes must see {folder}: choose a folder on a shared file system with PIPE_RUNS");
    Failure::Refused { said }.error(&hint)
}

/// A controller that does not answer is asked again.
fn later(failure: Failure) -> Result<(), Error> {
    match failure {
        Failure::Away { said } => {
            tracing::debug!("{said}");
            Ok(())
        }
        other => Err(other.error("see the message of scancel")),
    }
}

/// How the first process of a node ended, with the number of the node behind it.
pub const NODE_END: &str = "job.end-";

/// The file of the job's stdout and stderr.
pub const OUTPUT: &str = "job.out";

/// Files of an attempt that are looked at.
const MAX_FILES: usize = 10_000;

#[derive(Clone, Debug)]
pub struct JobFiles {
    folder: PathBuf,
}

impl JobFiles {
    pub fn of(launch: &Launch) -> Self {
        Self { folder: RunFolder::new(&launch.run_folder).attempt(launch.attempt).path().to_owned() }
    }

    pub fn folder(&self) -> &Path {
        &self.folder
    }

    pub fn create_folder(&self) -> Result<(), Error> {
        let failed = |source| Error::Write { path: self.folder.clone(), source };
        std::fs::create_dir_all(&self.folder).map_err(failed)
    }

    pub fn output(&self) -> PathBuf {
        self.folder.join(OUTPUT)
    }

    /// Holds the id of the job once it has begun.
    pub fn started(&self) -> PathBuf {
        self.folder.join("job.started")
    }

    /// Is there when the job was asked to save because of its time limit.
    pub fn time_was_up(&self) -> PathBuf {
        self.folder.join("job.time")
    }

    /// Holds the exit code of the job once it has ended.
    pub fn ended(&self) -> PathBuf {
        self.folder.join("job.ended")
    }

    /// Tells a job that begins that it is to end.
    pub fn note_stop(&self) {
        if let Err(error) = std::fs::write(self.folder.join("job.stop"), "") {
            tracing::debug!("cannot write job.stop: {error}");
        }
    }

    /// The job that does the attempt, once it has begun.
    pub fn job_id(&self) -> Option<String> {
        let id = std::fs::read_to_string(self.started()).ok()?.trim().to_owned();
        Some(id).filter(|id| !id.is_empty())
    }

    pub fn result(&self) -> ScriptResult {
        let code = std::fs::read_to_string(self.ended()).ok().and_then(|code| code.trim().parse().ok());
        let ends = job_file::names(&self.folder, MAX_FILES).unwrap_or_default();
        let ends = ends.iter().filter(|name| name.starts_with(NODE_END));
        let oom_kills = ends.filter_map(|name| first_process::end(&self.folder, name)).map(|end| end.oom_kills).sum();
        ScriptResult { code, time_was_up: self.time_was_up().exists(), oom_kills }
    }
}

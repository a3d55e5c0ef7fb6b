//! A job of the cluster that was submitted. It and its script leave their files in the folder of the attempt, which all nodes see.
//!
//! It is followed to its end: its output by the file in the run folder, its state by asking the cluster, ever less often. The `pipe`
//! processes of a user share one list of jobs, so that two hundred runs ask the controller as often as one.

use std::cell::Cell;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use pipe_spec::run::LogPosition;
use pipe_spec::{RunFolder, TrainerExit};

use super::programs::{self, Failure, SeenJob};
use super::state::{self, JobState, ScriptResult};
use crate::engine::{Closed, Ending, JobHandle, JobProgram, Launch, Line, LineSender, Output, Source, first_process};
use crate::error::Error;
use crate::run::job_file;
use crate::system::digests::cache_folder;
use crate::system::files::write_whole;
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

/// Between two looks into the run folder.
const FOLDER_INTERVAL: Duration = Duration::from_millis(300);

/// Between two questions to the cluster: at first, and at most.
const FIRST_INTERVAL: Duration = Duration::from_secs(1);
const LAST_INTERVAL: Duration = Duration::from_secs(30);

/// How long the last lines of a job may take to appear on another machine.
const LAST_LINES: Duration = Duration::from_secs(1);

pub struct Follower {
    pub cluster: String,
    pub id: String,
    pub files: JobFiles,
    pub refused: Refusal,
    output: Output,
    said: String,
    state: String,
    is_away: bool,
}

impl Follower {
    pub fn new(cluster: &str, id: String, files: JobFiles, refused: Refusal, read: Option<&LogPosition>) -> Self {
        let output = Output::new(files.folder().to_owned(), OUTPUT, read);
        Self {
            cluster: cluster.to_owned(),
            id,
            files,
            refused,
            output,
            said: String::new(),
            state: String::new(),
            is_away: false,
        }
    }

    pub async fn follow(mut self, to: LineSender) {
        self.until_end(&to).await.ok();
    }

    async fn until_end(&mut self, to: &LineSender) -> Result<(), Closed> {
        let mut interval = FIRST_INTERVAL;
        let mut asked = Instant::now();
        let mut missing = 0;
        loop {
            self.output.send(to).await?;
            if self.files.ended().exists() {
                break;
            }
            if asked.elapsed() >= interval {
                asked = Instant::now();
                // Others may have asked just now.
                let (cluster, oldest) = (self.cluster.clone(), interval / 2);
                interval = (interval * 3 / 2).min(LAST_INTERVAL);
                let jobs = tokio::task::spawn_blocking(move || jobs(&cluster, oldest)).await;
                let Ok(jobs) = jobs else { return Ok(()) };
                // Where two were submitted, the other one does it.
                self.id = self.files.job_id().unwrap_or_else(|| self.id.clone());
                match jobs.map(|jobs| jobs.into_iter().find(|job| job.id == self.id)) {
                    Err(failure) => self.note_absence(&failure, to).await?,
                    Ok(Some(job)) => {
                        (missing, self.is_away) = (0, false);
                        if self.note_state(&job.state, &job.nodes, to).await? {
                            interval = FIRST_INTERVAL;
                        }
                        if self.is_refused(&job.state) || job.state.has_ended() {
                            break;
                        }
                    }
                    // One that was just submitted may not be there yet; one that is unknown twice is over.
                    Ok(None) if missing < 2 => missing += 1,
                    Ok(None) => break,
                }
            }
            tokio::time::sleep(FOLDER_INTERVAL).await;
        }
        // Output that was written on another machine may come a moment later.
        let began = Instant::now();
        while began.elapsed() < LAST_LINES {
            tokio::time::sleep(FOLDER_INTERVAL).await;
            self.output.send(to).await?;
        }
        self.output.send_rest(to).await
    }

    /// A job that cannot ever start is taken out of the queue.
    fn is_refused(&mut self, state: &JobState) -> bool {
        let Some(reason) = state.never_starts() else { return false };
        let said = format!("the job can never start: {reason}");
        *self.refused.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = Some(said);
        if let Err(failure) = programs::scancel(&[&self.id]) {
            tracing::warn!("cannot cancel job {}: {}", self.id, failure.said());
        }
        true
    }

    /// Says where the job stands, when that has changed.
    async fn note_state(&mut self, state: &JobState, nodes: &str, to: &LineSender) -> Result<bool, Closed> {
        let (source, text) = match state.state.as_str() {
            "PENDING" if state.reason.is_empty() => (Source::Queue, format!("job {} waits in the queue", self.id)),
            "PENDING" => (Source::Queue, format!("job {} waits in the queue ({})", self.id, state.reason)),
            "SUSPENDED" => (Source::Queue, format!("job {} is suspended", self.id)),
            "RUNNING" => (Source::Engine, format!("job {} runs on {nodes}", self.id)),
            _ => return Ok(false),
        };
        if text == self.said {
            return Ok(false);
        }
        self.said.clone_from(&text);
        self.note(source, text, to).await?;
        // Another reason to wait is no reason to ask more often.
        Ok(std::mem::replace(&mut self.state, state.state.clone()) != state.state)
    }

    async fn note_absence(&mut self, failure: &Failure, to: &LineSender) -> Result<(), Closed> {
        if std::mem::replace(&mut self.is_away, true) {
            return Ok(());
        }
        let said = failure.said();
        let first = said.lines().next().unwrap_or_default();
        self.said.clear();
        self.note(
            Source::Queue,
            format!("the cluster does not answer ({first}); the job goes on and is watched by its files"),
            to,
        )
        .await
    }

    async fn note(&self, source: Source, text: String, to: &LineSender) -> Result<(), Closed> {
        to.send(Line::new(source, text)).await
    }
}

/// The jobs as they were at most so long ago.
pub fn jobs(cluster: &str, oldest: Duration) -> Result<Vec<SeenJob>, Failure> {
    let name: String = cluster.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
    // Two clusters may have one name.
    let conf = std::env::var_os("SLURM_CONF").unwrap_or_default();
    let name = format!("{name}-{}-{}", programs::user(), &blake3::hash(conf.as_encoded_bytes()).to_hex()[..8]);
    let shared = cache_folder().map(|folder| folder.join("cluster").join(name));
    let text = match shared.and_then(|folder| Shared::open(&folder)) {
        Some(shared) => shared.read(oldest)?,
        // Without a folder for it everyone asks for himself.
        None => programs::squeue()?,
    };
    Ok(programs::read_squeue(&text))
}

/// The last answer of `squeue`. Who finds it too old asks again, and the others wait for that.
struct Shared {
    file: PathBuf,
    _locked: File,
}

impl Shared {
    fn open(folder: &Path) -> Option<Self> {
        std::fs::create_dir_all(folder).ok()?;
        let locked = File::options().create(true).truncate(false).write(true).open(folder.join("squeue.lock")).ok()?;
        locked.lock().ok()?;
        Some(Self { file: folder.join("squeue"), _locked: locked })
    }

    fn read(&self, oldest: Duration) -> Result<String, Failure> {
        let age =
            std::fs::metadata(&self.file).and_then(|found| found.modified()).ok().and_then(|at| at.elapsed().ok());
        if let Some(text) = age.filter(|age| *age <= oldest).and_then(|_| std::fs::read_to_string(&self.file).ok()) {
            return Ok(text);
        }
        let text = programs::squeue()?;
        write_whole(&self.file, text.as_bytes()).ok();
        Ok(text)
    }
}

//! An engine as the rest of the program sees it: the trait `Engine`, the jobs that it starts and how they end, and the registration by
//! which it becomes known.

use std::fmt;
use std::path::{Path, PathBuf};

use async_trait::async_trait;
use futures_util::future::LocalBoxFuture;
use pipe_spec::Device;
use pipe_spec::lock::Program;
use pipe_spec::pipeline::{Container, EngineRequest, Gpus, Image, SectionType};
use pipe_spec::run::LogPosition;
use serde::Serialize;

use super::job::{Launch, SUPERVISOR};
use super::output::LineReceiver;
use crate::error::Error;
use crate::gpu::Card;
use crate::image::{self, BuildWatcher, ImageBuild, ImageConfig};

#[async_trait(?Send)]
pub trait Engine {
    /// As pipelines, `--engine` and run folders name it.
    fn name(&self) -> &'static str;

    /// Name, version and address, for people.
    fn describe(&self) -> String;

    /// Leads to its jobs from another shell, where engines of this kind are in several places.
    fn address(&self) -> Option<String> {
        None
    }

    /// The device that a job will compute on, for a request of the pipeline.
    fn device(&self, gpus: &Gpus) -> Result<Device, Error>;

    /// The cards that a job will see, as far as the engine can tell before the job runs.
    fn cards(&self, gpus: &Gpus) -> Vec<Card>;

    /// Cards of a machine that a job may get, where the engine knows that of machines other than this one.
    fn cards_of_node(&self, _gpus: &Gpus) -> Option<u32> {
        None
    }

    /// Whether jobs run on this machine.
    fn is_here(&self) -> bool {
        true
    }

    /// How many machines a job has.
    fn nodes(&self) -> u32 {
        1
    }

    /// How many are enough once one was lost.
    fn fewest_nodes(&self) -> u32 {
        1
    }

    /// How many machines there are now for a job, where the engine has several.
    async fn usable_nodes(&self) -> Option<u32> {
        None
    }

    /// Refuses what this engine cannot give a job. Called before there is a run.
    fn check(&self, container: &Container) -> Result<(), Error>;

    /// Refuses what the engine cannot give any job, a command too. Called before there is a run.
    async fn check_request(&self, _container: &Container) -> Result<(), Error> {
        Ok(())
    }

    /// Whether the engine holds the job to `container.memory`.
    fn limits_memory(&self) -> bool;

    /// Whether the engine itself queues jobs for cards. Else runs queue in the queue of `pipe`.
    fn has_queue(&self) -> bool {
        false
    }

    /// Where the job will find a path of the host, given the path that it is mounted at.
    fn job_path(&self, host: PathBuf, mounted: PathBuf) -> PathBuf;

    /// The program that jobs would run now, for `container.image`. Builds nothing.
    async fn program(&self, image: Option<&Image>) -> Result<Program, Error>;

    /// A sentence for people that says what `prepare` does.
    fn preparation(&self) -> &'static str {
        "preparing"
    }

    /// Makes the program ready: builds or finds the image. `_first` is what earlier attempts of the run had, which it keeps.
    async fn prepare(
        &self,
        image: Option<&Image>,
        _first: Option<&Program>,
        _progress: &mut dyn Progress,
    ) -> Result<Program, Error> {
        self.program(image).await
    }

    async fn start(&self, launch: &Launch) -> Result<StartedJob, Error>;

    /// How a user gives a job more time, where the engine limits it.
    fn time_hint(&self) -> &'static str {
        ""
    }

    /// The job that another `pipe` has started for `launch`; `id` as it was then, if it was written down, and how far its
    /// log was read.
    async fn find(&self, launch: &Launch, id: Option<&str>, read: Option<&LogPosition>) -> Result<FoundJob, Error>;

    /// The jobs of all runs that the engine still has, running or ended.
    async fn jobs(&self) -> Result<Vec<EngineJob>, Error>;

    /// Ends and removes a job of `jobs`. One that is gone already is fine.
    async fn remove(&self, id: &str) -> Result<(), Error>;

    /// The images of this engine, where it has any.
    fn images(&self) -> Option<&dyn ImageStore> {
        None
    }

    /// Whether a job with this `container.image` sees the files of an image, and not those of the machine.
    fn runs_in_image(&self, _image: Option<&Image>) -> bool {
        self.images().is_some()
    }
}

/// Shows people what an engine does while it prepares a program or builds an image.
pub trait Progress {
    /// Prints a line.
    fn note(&self, line: &str);

    /// Shows the build of an image with this many bytes, for as long as the watcher exists.
    fn image_build<'a>(&'a mut self, name: &str, size: u64) -> Box<dyn BuildWatcher + 'a>;

    /// The same while it is sent to a registry.
    fn image_push<'a>(&'a mut self, name: &str, size: u64) -> Box<dyn BuildWatcher + 'a>;
}

/// A job that was started.
#[async_trait(?Send)]
pub trait JobHandle {
    /// Asks the job to save and end.
    async fn stop(&self) -> Result<(), Error>;

    /// Ends the job at once.
    async fn kill(&self) -> Result<(), Error>;

    /// Whether a job that was asked to end has what it saved still to bring here.
    fn is_saving(&self) -> bool {
        false
    }

    /// Whether files of a job that has ended lie where the next one would overwrite them, and did not come here.
    fn has_left_files(&self) -> bool {
        false
    }

    /// How a job whose lines have ended came to its end.
    async fn ending(&mut self) -> Result<Ending, Error>;

    /// Removes what is left of a job that has ended.
    async fn remove(&mut self) -> Result<(), Error>;
}

/// The images that an engine has.
#[async_trait(?Send)]
pub trait ImageStore {
    /// Builds the image unless it is there under the name that its content gives it. Returns whether it built.
    async fn ensure(&self, build: &ImageBuild, progress: &mut dyn Progress) -> Result<bool, Error>;

    /// The id of an image, or `None` when the engine does not have it.
    async fn image_id(&self, name: &str) -> Result<Option<String>, Error>;

    /// Sends an image to a registry as `target`, a name with a tag. Layers that are there are not sent again. Returns its digest.
    async fn push(&self, name: &str, target: &str, progress: &mut dyn Progress) -> Result<String, Error>;

    /// The digest of an image with the name of a registry, where it is known.
    async fn digest(&self, name: &str) -> Result<Option<String>, Error>;

    /// Those that were built by `pipe`.
    async fn built_images(&self) -> Result<Vec<BuiltImage>, Error>;

    /// Removes an image. False where a container uses it.
    async fn remove_image(&self, name: &str) -> Result<bool, Error>;

    /// Writes the files of an image into a folder that is empty. Returns how its programs are started.
    async fn export(&self, image: &str, folder: &Path) -> Result<ImageConfig, Error>;
}

/// An image that was built by `pipe`.
#[derive(Clone, Debug, Serialize)]
pub struct BuiltImage {
    pub name: String,
    pub id: String,
    pub size: i64,
    pub created: i64,
}

/// `lines` ends when the job has.
pub struct StartedJob {
    pub handle: Box<dyn JobHandle>,
    /// The id of the container or process.
    pub id: String,
    pub lines: LineReceiver,
}

/// How a job ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ending {
    /// `None` when the job went away without one; `lost` then says how.
    pub exit_code: Option<i64>,
    /// The kernel killed it for want of memory.
    pub oom_killed: bool,
    pub memory_limit: Option<u64>,
    pub lost: Option<String>,
    /// The engine went away while it ran.
    pub outage: bool,
    /// The action of the engine that ended the job before it was done.
    pub ended_by: Option<EndedBy>,
    /// Its program ended with exit code 0 before anybody asked it to stop.
    pub completed: bool,
}

/// Why an engine ends a job that has not come to its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EndedBy {
    /// Its time is over.
    TimeLimit,
    /// Another job needed its place.
    Preempted,
    /// A machine that it ran on is gone.
    NodeLost { what: String },
    /// Another `pipe` has asked for it, and was killed then.
    Requested,
    /// A person ended it, and not with `pipe`; the number of that user where it was another one.
    Cancelled { by_other: Option<u32> },
}

impl fmt::Display for EndedBy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TimeLimit => f.write_str("the time limit of the job was reached"),
            Self::Preempted => f.write_str("another job took its place"),
            Self::NodeLost { what } => f.write_str(what),
            Self::Requested => f.write_str("stopped on request"),
            Self::Cancelled { by_other: None } => f.write_str("the job was cancelled, not by pipe"),
            Self::Cancelled { by_other: Some(0) } => f.write_str("an administrator cancelled the job"),
            Self::Cancelled { by_other: Some(user) } => write!(f, "the user {user} cancelled the job"),
        }
    }
}

impl Ending {
    /// A job that ended by itself, without a limit on its memory.
    pub fn exited(exit_code: Option<i64>) -> Self {
        Self {
            exit_code,
            oom_killed: false,
            memory_limit: None,
            lost: None,
            outage: false,
            ended_by: None,
            completed: false,
        }
    }
}

/// A job that another `pipe` process started.
pub enum FoundJob {
    /// It runs, or its end was not read yet. Its lines start at the given position.
    Job(StartedJob),
    NotStarted,
    /// It was started, and how it ended cannot be known.
    Gone,
}

/// A job of some run, as the engine lists it.
#[derive(Clone, Debug)]
pub struct EngineJob {
    pub id: String,
    pub run: String,
    pub attempt: Option<u32>,
}

/// Removes the jobs of a run that a `pipe` that is gone has left, except for one attempt and for the job that supervises the run.
pub async fn remove_jobs_of(engine: &dyn Engine, run_id: &str, except: Option<u32>) -> Result<(), Error> {
    for job in engine.jobs().await? {
        let is_kept = job.attempt == Some(SUPERVISOR) || except.is_some() && job.attempt == except;
        if job.run == run_id && !is_kept {
            engine.remove(&job.id).await?;
        }
    }
    Ok(())
}

/// Everything that `pipe` knows about an engine before it connects to it.
pub struct Registration {
    /// As pipelines, `--engine` and run folders name it.
    pub name: &'static str,
    /// Its section of the pipeline file, which has the same name.
    pub section: Option<SectionType>,
    /// How many machines a training gets, as far as the pipeline says.
    pub nodes: fn(&EngineRequest) -> u32,
    /// Where its jobs pull the images of `pipe` from, as far as the pipeline says.
    pub repository: fn(&EngineRequest) -> Option<String>,
    /// Whether a job supervises a run that is detached, as the pipeline asks.
    pub supervises: fn(&EngineRequest) -> bool,
    /// Connects to the engine, or says why it does not answer.
    pub connect: fn(Connection) -> Connecting,
    /// Whether it is tried where a pipeline names none.
    pub is_tried: bool,
    /// Whether its jobs continue after the `pipe` process that started them ends.
    pub keeps_jobs: bool,
    /// Whether `pipe image` builds for it.
    pub has_images: bool,
    /// Its part of `pipe doctor`.
    pub doctor: for<'a> fn(&'a Host) -> LocalBoxFuture<'a, Vec<Check>>,
    /// A note for the user about that part; may be empty.
    pub doctor_help: &'static str,
}

/// The arguments of a connection to an engine.
pub struct Connection {
    /// The pipeline's request to its engine.
    pub request: EngineRequest,
    /// The engine of this machine that builds images.
    pub images: ConnectImages,
}

/// Connects to the engine that builds images.
pub type ConnectImages = fn() -> Connecting;

type Connecting = LocalBoxFuture<'static, Result<Box<dyn Engine>, Error>>;

/// This machine, for the checks of `pipe doctor`.
pub struct Host {
    pub trainer: Result<PathBuf, Error>,
    pub cards: Vec<Card>,
    /// The folder for runs.
    pub runs: PathBuf,
}

impl Host {
    pub fn look(runs: PathBuf) -> Self {
        Self { trainer: image::find_trainer(), cards: Card::read(&Gpus::All), runs }
    }

    /// The first card.
    pub fn card(&self) -> Option<&Card> {
        self.cards.first()
    }
}

/// A finding of `pipe doctor`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Check {
    pub name: &'static str,
    pub status: CheckStatus,
    pub found: String,
    /// The hint: what to do.
    pub hint: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum CheckStatus {
    Ok,
    /// Good to know; runs can run.
    Note,
    /// Something that runs need.
    Missing,
}

impl CheckStatus {
    pub fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Note => "note",
            Self::Missing => "missing",
        }
    }
}

impl Check {
    pub fn ok(name: &'static str, found: impl Into<String>) -> Self {
        Self { name, status: CheckStatus::Ok, found: found.into(), hint: None }
    }

    pub fn note(name: &'static str, found: impl Into<String>) -> Self {
        Self { status: CheckStatus::Note, ..Self::ok(name, found) }
    }

    pub fn missing(name: &'static str, found: impl Into<String>) -> Self {
        Self { status: CheckStatus::Missing, ..Self::ok(name, found) }
    }

    /// Message and hint of an error.
    pub fn failed(name: &'static str, status: CheckStatus, error: &Error) -> Self {
        Self { name, status, found: error.to_string(), hint: error.hint() }
    }

    pub fn hint(self, hint: impl Into<String>) -> Self {
        Self { hint: Some(hint.into()), ..self }
    }
}

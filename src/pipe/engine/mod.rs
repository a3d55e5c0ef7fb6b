//! What starts jobs. An engine knows containers or processes; it never knows what is trained.

pub mod docker;
mod lines;
pub mod process;

use std::collections::BTreeMap;
use std::path::PathBuf;

use pipe_spec::pipeline::Gpus;
use tokio::sync::mpsc;

use crate::error::Error;
pub use lines::{Line, LineSplitter, Source};

/// What to start.
#[derive(Clone, Debug)]
pub struct Launch {
    pub run_id: String,
    pub attempt: u32,
    /// The run folder on the host: the one thing the job may write to.
    pub run_folder: PathBuf,
    /// The arguments of the trainer.
    pub args: Vec<String>,
    pub env: BTreeMap<String, String>,
    /// Read-only, host path and path for the job.
    pub mounts: Vec<(PathBuf, PathBuf)>,
    pub memory: Option<u64>,
    pub shm: Option<u64>,
    pub cpus: Option<f64>,
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
}

/// What is found of a job that was started by a `pipe` that is gone.
pub enum Found<H> {
    /// It runs, or has ended and nobody has asked how: its lines come from the first on.
    Job(Job<H>),
    /// It was never started.
    Nothing,
    /// It was started, and how it ended nobody can tell.
    Gone,
}

/// A job that was started. `lines` ends when the job has.
pub struct Job<H> {
    pub handle: H,
    /// The container's id or the process's.
    pub id: String,
    pub lines: mpsc::Receiver<Line>,
}

pub trait Engine {
    type Handle;

    /// Whether the job will see a GPU, for what the pipeline asks.
    fn gpu(&self, gpus: &Gpus) -> Result<bool, Error>;

    /// Whether the engine keeps the job to `container.memory`.
    fn limits_memory(&self) -> bool;

    /// Where the job will find a path of the host's, given the one it is mounted at.
    fn job_path(&self, host: PathBuf, mounted: PathBuf) -> PathBuf;

    async fn launch(&self, launch: &Launch, gpus: &Gpus) -> Result<Job<Self::Handle>, Error>;

    /// The job that another `pipe` has launched so; `id` as it was told then, if it was.
    async fn find(&self, launch: &Launch, id: Option<&str>) -> Result<Found<Self::Handle>, Error>;

    /// Asks the job to save and end.
    async fn stop(&self, handle: &Self::Handle) -> Result<(), Error>;

    /// Ends the job at once.
    async fn kill(&self, handle: &Self::Handle) -> Result<(), Error>;

    /// How a job whose lines have ended came to its end.
    async fn ending(&self, handle: &mut Self::Handle) -> Result<Ending, Error>;

    /// Leaves nothing behind of a job that has ended.
    async fn clear(&self, handle: Self::Handle) -> Result<(), Error>;

    /// Leaves nothing behind of what a `pipe` that is gone had started for a run, except for one attempt.
    async fn clear_run(&self, run_id: &str, except: Option<u32>) -> Result<(), Error>;
}

//! What an engine starts: one job, as the runner describes it.

use std::collections::BTreeMap;
use std::path::PathBuf;

use pipe_spec::pipeline::Gpus;

#[derive(Clone, Debug)]
pub struct Launch {
    pub run_id: String,
    pub attempt: u32,
    /// The run folder on the host, by which the job is found again.
    pub run_folder: PathBuf,
    /// What the job may write to, host path and path for the job.
    pub writable: Vec<(PathBuf, PathBuf)>,
    /// The folder that the job starts in, as it sees it; absent leaves it to the image, or is where `pipe` was started.
    pub work_folder: Option<PathBuf>,
    pub program: JobProgram,
    /// The image that the job runs in, where the engine has images.
    pub image: Option<String>,
    pub args: Vec<String>,
    pub env: BTreeMap<String, String>,
    /// Read-only, host path and path for the job.
    pub mounts: Vec<(PathBuf, PathBuf)>,
    /// Whether the job has the network.
    pub network: bool,
    pub gpus: Gpus,
    pub memory: Option<u64>,
    /// Seconds that it may take to save and end.
    pub stop_timeout: u32,
    pub shm: Option<u64>,
    pub cpus: Option<f64>,
}

/// What is started with the arguments of a launch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JobProgram {
    /// The trainer: the entry point of the image, or the trainer of this machine.
    Trainer,
    /// A program of the user.
    Command(String),
}

//! What an engine starts: one job, as the runner describes it.

use std::collections::BTreeMap;
use std::path::PathBuf;

use pipe_spec::pipeline::{Container, Gpus};

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
    /// Machines that it runs on, where the engine has several.
    pub nodes: u32,
}

impl Launch {
    /// A job that does nothing, with what a container may have.
    pub fn example(container: &Container, nodes: u32) -> Self {
        Self {
            run_id: "check".to_owned(),
            attempt: 1,
            run_folder: PathBuf::new(),
            writable: Vec::new(),
            work_folder: None,
            program: JobProgram::Command("true".to_owned()),
            image: None,
            args: Vec::new(),
            env: BTreeMap::new(),
            mounts: Vec::new(),
            network: false,
            gpus: container.gpus.clone(),
            memory: container.memory.map(|size| size.0),
            stop_timeout: container.stop_timeout(),
            shm: None,
            cpus: container.cpus,
            nodes,
        }
    }
}

/// What is started with the arguments of a launch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JobProgram {
    /// The trainer: the entry point of the image, or the trainer of this machine.
    Trainer,
    /// A program of the user.
    Command(String),
}

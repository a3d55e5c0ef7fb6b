//! The job that an engine starts, as the runner describes it.

use std::collections::BTreeMap;
use std::path::PathBuf;

use pipe_spec::pipeline::{Container, Gpus};

/// The attempt number of the job that supervises a run: those of trainings begin at 1.
pub const SUPERVISOR: u32 = 0;

/// Set in that job alone.
pub const SUPERVISOR_VARIABLE: &str = "PIPE_SUPERVISOR";

/// Whether this process is the one that supervises a run in a job of the engine.
pub fn is_supervisor() -> bool {
    std::env::var_os(SUPERVISOR_VARIABLE).is_some()
}

/// A job, complete: an engine never reads the pipeline.
#[derive(Clone, Debug)]
pub struct Launch {
    pub run_id: String,
    pub attempt: u32,
    /// The run folder on the host, by which the job is found again.
    pub run_folder: PathBuf,
    /// The folder for what the first process of the job writes: on the host, and as the job sees it.
    pub job_folder: (PathBuf, PathBuf),
    pub mounts: Mounts,
    /// Where a command keeps its checkpoints: a folder below the one that it writes to, and the pattern of their names.
    pub checkpoints: Option<(String, String)>,
    /// The folder that the job starts in, as it sees it; absent leaves it to the image, or is where `pipe` was started.
    pub work_folder: Option<PathBuf>,
    pub program: JobProgram,
    /// The image that the job runs in, where the engine has images.
    pub image: Option<String>,
    /// The id of that image when the run was prepared. Its name may mean another one by now.
    pub image_id: Option<String>,
    pub args: Vec<String>,
    pub env: BTreeMap<String, String>,
    /// Whether the job has the network.
    pub network: bool,
    pub resources: Resources,
    /// Seconds that it may take to save and end.
    pub stop_timeout: u32,
}

/// The files that a job sees, each with its path on the host and its path for the job.
#[derive(Clone, Debug, Default)]
pub struct Mounts {
    pub writable: Vec<(PathBuf, PathBuf)>,
    pub read_only: Vec<(PathBuf, PathBuf)>,
    /// Folders that begin empty and go with the job, as it sees them.
    pub scratch: Vec<PathBuf>,
}

/// The resources that a job gets on each of its machines.
#[derive(Clone, Debug, Default)]
pub struct Resources {
    pub gpus: Gpus,
    pub memory: Option<u64>,
    pub shm: Option<u64>,
    pub cpus: Option<f64>,
    /// Machines that it runs on, where the engine has several.
    pub nodes: u32,
}

impl Launch {
    /// Whether it is the job that supervises the run.
    pub fn supervises(&self) -> bool {
        self.attempt == SUPERVISOR
    }

    /// A job that does nothing, with what a container may have.
    pub fn example(container: &Container, nodes: u32) -> Self {
        Self {
            run_id: "check".to_owned(),
            attempt: 1,
            run_folder: PathBuf::new(),
            job_folder: Default::default(),
            mounts: Mounts::default(),
            checkpoints: None,
            work_folder: None,
            program: JobProgram::Command("true".to_owned()),
            image: None,
            image_id: None,
            args: Vec::new(),
            env: BTreeMap::new(),
            network: false,
            resources: Resources {
                gpus: container.gpus.clone(),
                memory: container.memory.map(|size| size.0),
                shm: None,
                cpus: container.cpus,
                nodes,
            },
            stop_timeout: container.stop_timeout(),
        }
    }
}

/// The program that is started with the arguments of a launch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JobProgram {
    /// The trainer: the entry point of the image, or the trainer of this machine.
    Trainer,
    /// A program of the user.
    Command(String),
}

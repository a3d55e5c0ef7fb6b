//! What a job and its script leave in the folder of the attempt, which all nodes see.

use std::path::{Path, PathBuf};

use pipe_spec::RunFolder;

use super::state::ScriptResult;
use super::trainer_folder::unique;
use crate::engine::Launch;
use crate::error::Error;
use crate::files::write_whole;

/// What the job writes to stdout and stderr.
pub const OUTPUT: &str = "job.out";

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

    /// What tells the job of this attempt from one of a run that had the same id.
    pub fn key(&self) -> Option<String> {
        std::fs::read_to_string(self.folder.join("job.key")).ok().filter(|key| !key.is_empty())
    }

    pub fn make_key(&self) -> Result<String, Error> {
        let key = unique("key");
        write_whole(&self.folder.join("job.key"), key.as_bytes())?;
        Ok(key)
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
        ScriptResult { code, time_was_up: self.time_was_up().exists() }
    }
}

//! Early jobs: they wait in the queue of a cluster before the runs begin that they are for. A run that begins takes one of them, and does
//! not queue again.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use async_trait::async_trait;
use pipe_spec::pipeline::Container;
use serde::{Deserialize, Serialize};

use crate::error::Error;

/// An early job for a step of a pipeline.
pub struct EarlyJob<'a> {
    /// The id of the run that the step is part of.
    pub whole: &'a str,
    /// The folder for all early jobs of that run.
    pub folder: PathBuf,
    /// The id of the run that takes it.
    pub run: &'a str,
    pub container: &'a Container,
    pub nodes: u32,
    /// The variables that the pipeline names.
    pub variables: BTreeMap<String, String>,
    /// The jobs that have to end well before.
    pub after: Vec<String>,
}

/// An early job in the queue.
pub struct SubmittedEarly {
    pub job: String,
    pub folder: PathBuf,
}

/// Early jobs for trials of a study, which are alike: any trial takes any of them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EarlyArray {
    /// The id of the study.
    pub whole: String,
    pub count: u32,
    /// How many of them may run at a time.
    pub at_once: u32,
}

#[async_trait(?Send)]
pub trait EarlyQueue {
    async fn submit(&self, job: &EarlyJob<'_>) -> Result<SubmittedEarly, Error>;

    /// Lets the next trial that is ready to start submit an array, of which it takes the first job: until then none would have anything to
    /// run.
    fn request_array(&self, folder: &Path, array: &EarlyArray) -> Result<(), Error>;

    /// Why the cluster takes no array, if it refused one.
    fn refusal(&self, folder: &Path) -> Option<String>;

    /// How many jobs in the folder of a run nobody has taken.
    fn untaken(&self, folder: &Path) -> u32;

    /// Takes those that nobody has taken out of the queue: of one `SubmittedEarly`, or of a run.
    async fn withdraw(&self, folder: &Path) -> Result<(), Error>;
}

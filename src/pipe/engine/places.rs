//! Jobs that wait in the queue of an engine before the runs begin that they are for. Each keeps a place: the run that begins takes it,
//! and does not queue again.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use async_trait::async_trait;
use pipe_spec::pipeline::Container;

use crate::error::Error;

/// What places are kept for.
pub struct Places<'a> {
    /// The id of the run whose parts they are for.
    pub whole: &'a str,
    /// The folder for all places of that run.
    pub folder: PathBuf,
    /// The part that may take one; any of the run where there are `several`.
    pub part: &'a str,
    pub container: &'a Container,
    pub nodes: u32,
    /// The variables that the pipeline names.
    pub variables: BTreeMap<String, String>,
    pub several: Option<Several>,
    /// The jobs that have to end well before.
    pub after: Vec<String>,
}

/// Places that are alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Several {
    pub count: u32,
    /// How many of them may run at a time.
    pub at_once: u32,
}

pub struct KeptPlaces {
    /// The id of their job.
    pub job: String,
    pub folder: PathBuf,
}

#[async_trait(?Send)]
pub trait QueuePlaces {
    /// Puts jobs into the queue.
    async fn keep(&self, places: &Places<'_>) -> Result<KeptPlaces, Error>;

    /// How many in the folder of a run nobody has taken.
    fn free(&self, folder: &Path) -> u32;

    /// Takes those that nobody has taken out of the queue, of one `KeptPlaces` or of a run.
    async fn give_up(&self, folder: &Path) -> Result<(), Error>;
}

//! The engines that `pipe` has. The one place outside an engine's own folder that names it.

use std::path::PathBuf;

use futures_util::future::LocalBoxFuture;
use pipe_spec::pipeline::{Cluster, Gpus};

use super::{Engine, docker, process, slurm};
use crate::error::Error;
use crate::gpu::Card;
use crate::image;
use crate::report::{Check, Reporter};

/// In the order in which they are tried where a pipeline names none.
const ENGINES: &[Registration] = &[
    docker::REGISTRATION,
    process::REGISTRATION,
    slurm::REGISTRATION,
    #[cfg(test)]
    super::toy::REGISTRATION,
];

/// Connects to an engine, with what a pipeline says about its cluster, or says why it does not answer.
pub type Connect = fn(Cluster) -> LocalBoxFuture<'static, Result<Box<dyn Engine>, Error>>;

/// How `pipe` gets to an engine.
pub struct Registration {
    /// As pipelines, `--engine` and run folders name it.
    pub name: &'static str,
    pub connect: Connect,
    /// Whether it is tried where a pipeline names none.
    pub is_tried: bool,
    /// Whether its jobs continue after the `pipe` process that started them ends.
    pub keeps_jobs: bool,
    /// Whether `pipe image` builds for it.
    pub has_images: bool,
    /// Its part of `pipe doctor`.
    pub doctor: for<'a> fn(&'a Host) -> LocalBoxFuture<'a, Vec<Check>>,
}

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

/// The names of all engines.
pub fn names() -> impl Iterator<Item = &'static str> {
    ENGINES.iter().map(|engine| engine.name)
}

/// The name of the first engine whose jobs run without an image.
pub fn without_images() -> &'static str {
    ENGINES.iter().find(|engine| !engine.has_images).map_or("", |engine| engine.name)
}

fn find(name: &str) -> Result<&'static Registration, Error> {
    let known = || names().map(str::to_owned).collect();
    ENGINES
        .iter()
        .find(|engine| engine.name == name)
        .ok_or_else(|| Error::UnknownEngine { name: name.to_owned(), known: known() })
}

/// The engine of this name, for jobs that it has already.
pub async fn connect(name: &str) -> Result<Box<dyn Engine>, Error> {
    connect_for(name, &Cluster::default()).await
}

/// The engine of this name, for the jobs of a pipeline.
pub async fn connect_for(name: &str, cluster: &Cluster) -> Result<Box<dyn Engine>, Error> {
    (find(name)?.connect)(cluster.clone()).await
}

/// The requested engine, else the first that answers. Prints its name.
pub async fn choose(wanted: Option<&str>, cluster: &Cluster, reporter: &Reporter) -> Result<Box<dyn Engine>, Error> {
    let engine = match wanted {
        Some(name) => connect_for(name, cluster).await?,
        None => first_that_answers(reporter).await?,
    };
    reporter.note(&format!("engine: {}", engine.describe()));
    Ok(engine)
}

async fn first_that_answers(reporter: &Reporter) -> Result<Box<dyn Engine>, Error> {
    let mut engines = ENGINES.iter().filter(|engine| engine.is_tried).peekable();
    while let Some(engine) = engines.next() {
        match ((engine.connect)(Cluster::default()).await, engines.peek()) {
            (Err(Error::NoEngine { reason, .. }), Some(next)) => {
                reporter.note(&format!("{} is not available ({reason}): using the engine {}", engine.name, next.name));
            }
            (connected, _) => return connected,
        }
    }
    Err(Error::NoEngine { reason: "none is built in".to_owned(), hint: String::new() })
}

/// The engine that `pipe image` builds for.
pub async fn connect_for_images() -> Result<Box<dyn Engine>, Error> {
    match ENGINES.iter().find(|engine| engine.has_images) {
        Some(engine) => (engine.connect)(Cluster::default()).await,
        None => Err(Error::NoEngine { reason: "no engine has images".to_owned(), hint: String::new() }),
    }
}

/// Whether the jobs of the engine of this name may outlive their `pipe`. Of an unknown engine nothing is ruled out.
pub fn keeps_jobs(name: &str) -> bool {
    find(name).map_or(true, |engine| engine.keeps_jobs)
}

/// What an engine has to say to `pipe doctor`, or all that are tried.
pub async fn doctor(host: &Host, wanted: Option<&str>) -> Vec<Check> {
    let is_wanted = |engine: &&Registration| wanted.map_or(engine.is_tried, |name| name == engine.name);
    let mut checks = Vec::new();
    for engine in ENGINES.iter().filter(is_wanted) {
        checks.extend((engine.doctor)(host).await);
    }
    checks
}

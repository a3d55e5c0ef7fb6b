//! The engine of `docs/adding-an-engine.md`, for tests only: its jobs are tasks of this process that write the events of a
//! training without training anything. A batch above `FITS` runs out of memory.

mod job;
mod tests;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use async_trait::async_trait;
use futures_util::FutureExt;
use pipe_spec::lock::Program;
use pipe_spec::pipeline::{Container, Gpus, Image};
use pipe_spec::run::LogPosition;
use pipe_spec::{Device, TrainerSpec};
use tokio::sync::mpsc;

use super::registry::Registration;
use super::{Engine, EngineJob, FoundJob, Launch, StartedJob};
use crate::error::Error;
use crate::gpu::Card;
use crate::report::Reporter;
use job::ToyJob;

const NAME: &str = "toy";

/// The largest batch that a job of this engine can hold.
pub const FITS: u32 = 4;

pub const REGISTRATION: Registration = Registration {
    name: NAME,
    connect: |_| async { Ok(Box::new(ToyEngine) as Box<dyn Engine>) }.boxed_local(),
    is_tried: true,
    keeps_jobs: false,
    has_images: false,
    doctor: |_| async { Vec::new() }.boxed_local(),
};

struct ToyEngine;

#[async_trait(?Send)]
impl Engine for ToyEngine {
    fn name(&self) -> &'static str {
        NAME
    }

    fn describe(&self) -> String {
        NAME.to_owned()
    }

    fn device(&self, _gpus: &Gpus) -> Result<Device, Error> {
        Ok(Device::Cpu)
    }

    fn cards(&self, _gpus: &Gpus) -> Vec<Card> {
        Vec::new()
    }

    fn check(&self, _container: &Container) -> Result<(), Error> {
        Ok(())
    }

    fn limits_memory(&self) -> bool {
        true
    }

    fn job_path(&self, host: PathBuf, _mounted: PathBuf) -> PathBuf {
        host
    }

    async fn program(&self, _image: Option<&Image>) -> Result<Program, Error> {
        Ok(Program { engine: NAME.to_owned(), ..Program::default() })
    }

    fn preparation(&self) -> &'static str {
        "preparing"
    }

    async fn prepare(
        &self,
        image: Option<&Image>,
        _first: Option<&Program>,
        _reporter: &mut Reporter,
    ) -> Result<Program, Error> {
        self.program(image).await
    }

    async fn start(&self, launch: &Launch) -> Result<StartedJob, Error> {
        let path = PathBuf::from(launch.args.last().map_or("", String::as_str));
        let text = std::fs::read(&path).map_err(|source| Error::Read { path: path.clone(), source })?;
        let spec: TrainerSpec = serde_json::from_slice(&text)
            .map_err(|error| Error::Read { path, source: std::io::Error::other(error) })?;
        let (sender, lines) = mpsc::channel(1024);
        let stop = Arc::new(AtomicBool::new(false));
        let task = tokio::spawn(job::train(spec, launch.work_folder.clone().unwrap_or_default(), sender, stop.clone()));
        let id = format!("{}-{}", launch.run_id, launch.attempt);
        Ok(StartedJob { handle: Box::new(ToyJob { task, stop }), id, lines })
    }

    /// A task ends with the `pipe` that started it.
    async fn find(&self, _launch: &Launch, id: Option<&str>, _read: Option<&LogPosition>) -> Result<FoundJob, Error> {
        Ok(if id.is_some() { FoundJob::Gone } else { FoundJob::NotStarted })
    }

    async fn jobs(&self) -> Result<Vec<EngineJob>, Error> {
        Ok(Vec::new())
    }

    async fn remove(&self, _id: &str) -> Result<(), Error> {
        Ok(())
    }
}

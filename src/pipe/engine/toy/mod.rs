//! The engine of `docs/dev/adding-an-engine.md`, for tests only: its jobs are tasks of this process that write the events of a
//! training without training anything. A batch above `toy.fits` runs out of memory.

mod tests;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;
use futures_util::FutureExt;
use pipe_spec::event::{Event, EventKind, Finished, MemoryKind, Started, Step};
use pipe_spec::lock::Program;
use pipe_spec::pipeline::{Container, EngineSection, Gpus, Image, SectionType, WorkKind};
use pipe_spec::run::{JobFolder, LogPosition};
use pipe_spec::{Device, OomRecord, Phase, TrainerExit, TrainerSpec};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::{Ending, Engine, EngineJob, FoundJob, JobHandle, Launch, Line, Progress, Registration, Source, StartedJob};
use crate::error::Error;
use crate::gpu::Card;

const NAME: &str = "toy";

/// The section `toy` of a pipeline.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
struct ToySection {
    /// The largest batch that a job can hold.
    #[schemars(range(min = 1, max = 64))]
    fits: u32,
    /// Machines of a job.
    #[schemars(range(min = 1, max = 8))]
    nodes: u32,
}

impl Default for ToySection {
    fn default() -> Self {
        Self { fits: 4, nodes: 1 }
    }
}

impl EngineSection for ToySection {
    const HELP: &'static str = "What a job can hold, with the engine toy.";

    fn check(&self, work: WorkKind) -> Vec<(&'static str, String)> {
        match work {
            WorkKind::Command => vec![("fits", "only for a training".to_owned())],
            _ => Vec::new(),
        }
    }
}

pub const REGISTRATION: Registration = Registration {
    name: NAME,
    section: Some(SectionType::of::<ToySection>()),
    nodes: |request| request.section::<ToySection>(NAME).nodes,
    connect: |connection| {
        let engine = ToyEngine { settings: connection.request.section(NAME) };
        async { Ok(Box::new(engine) as Box<dyn Engine>) }.boxed_local()
    },
    is_tried: true,
    keeps_jobs: false,
    has_images: false,
    doctor: |_| async { Vec::new() }.boxed_local(),
    doctor_help: "",
};

struct ToyEngine {
    settings: ToySection,
}

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
        _progress: &mut dyn Progress,
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
        let folder = launch.work_folder.clone().unwrap_or_default();
        let task = tokio::spawn(train(spec, self.settings.fits, folder, sender, stop.clone()));
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

/// A job writes the events and the out-of-memory record that a trainer would write.
struct ToyJob {
    task: JoinHandle<TrainerExit>,
    stop: Arc<AtomicBool>,
}

#[async_trait(?Send)]
impl JobHandle for ToyJob {
    async fn stop(&self) -> Result<(), Error> {
        self.stop.store(true, Ordering::Relaxed);
        Ok(())
    }

    async fn kill(&self) -> Result<(), Error> {
        self.task.abort();
        Ok(())
    }

    async fn ending(&mut self) -> Result<Ending, Error> {
        let exit = (&mut self.task).await.ok();
        Ok(Ending::exited(exit.map(|exit| exit.code().into())))
    }

    async fn remove(&mut self) -> Result<(), Error> {
        Ok(())
    }
}

/// Steps whose loss is 1 / step, or an out-of-memory where the batch does not fit.
async fn train(
    spec: TrainerSpec,
    fits: u32,
    folder: PathBuf,
    lines: mpsc::Sender<Line>,
    stop: Arc<AtomicBool>,
) -> TrainerExit {
    let mut seq = 0;
    let mut emit = |kind: EventKind| {
        seq += 1;
        let text = serde_json::to_string(&Event { seq, ts: 0.0, kind }).expect("an event is plain data");
        append(&folder.join(JobFolder::EVENTS), &text);
        Line { source: Source::Stdout, text, stamp: None }
    };
    let steps = spec.train.steps.unwrap_or(1);
    lines.send(emit(EventKind::Started(started(&spec, steps)))).await.ok();
    if spec.train.batch() > fits {
        let record =
            OomRecord { batch: spec.train.batch(), step: 1, ..OomRecord::new(MemoryKind::Host, Phase::Forward) };
        let text = serde_json::to_string(&record).expect("a record is plain data");
        std::fs::write(folder.join(JobFolder::OOM), text).ok();
        lines.send(emit(EventKind::Oom(record))).await.ok();
        return TrainerExit::HostOutOfMemory;
    }
    for step in 1..=steps {
        if stop.load(Ordering::Relaxed) {
            return TrainerExit::Stopped;
        }
        lines.send(emit(EventKind::Step(one_step(&spec, step)))).await.ok();
    }
    let samples = steps * u64::from(spec.train.effective_batch);
    lines.send(emit(EventKind::Finished(Finished { step: steps, samples, ..Finished::default() }))).await.ok();
    TrainerExit::Done
}

fn append(path: &Path, line: &str) {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    std::fs::write(path, format!("{text}{line}\n")).ok();
}

fn started(spec: &TrainerSpec, steps: u64) -> Started {
    Started {
        device: "cpu".to_owned(),
        params: 1,
        batch: spec.train.batch(),
        accum: spec.train.accum(),
        effective_batch: spec.train.effective_batch,
        steps,
        ..Started::default()
    }
}

fn one_step(spec: &TrainerSpec, step: u64) -> Step {
    Step {
        step,
        samples: step * u64::from(spec.train.effective_batch),
        loss: 1.0 / step as f64,
        tokens: 1,
        ms: 1.0,
        ..Step::default()
    }
}

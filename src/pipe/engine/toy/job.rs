//! A job of the toy engine: it writes the events and the out-of-memory record that a trainer would write.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;
use pipe_spec::event::{Event, EventKind, Finished, MemoryKind, Started, Step};
use pipe_spec::run::JobFolder;
use pipe_spec::{OomRecord, Phase, TrainerExit, TrainerSpec};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::FITS;
use crate::engine::{Ending, JobHandle, Line, Source};
use crate::error::Error;

pub struct ToyJob {
    pub task: JoinHandle<TrainerExit>,
    pub stop: Arc<AtomicBool>,
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
pub async fn train(
    spec: TrainerSpec,
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
    if spec.train.batch() > FITS {
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

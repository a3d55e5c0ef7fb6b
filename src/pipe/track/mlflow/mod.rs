//! A run in MLflow: its settings as parameters, its figures as metrics by step, its attempts as tags, its page as an
//! artifact. Through the REST interface of a server, by a thread that collects the items.

mod address;
mod parameters;
mod server;
mod worker;

use std::time::{Duration, Instant};

use pipe_spec::event::RecordedEvent;
use pipe_spec::{Attempt, Event, EventKind, Pipeline, RunFolder, RunState, Status, Variables};

use super::delivery::DeliveryThread;
use super::{Listener, Notice, retry, scalars, shortened};
use crate::clock::now;
use address::Address;
use server::{Metric, Server};
use worker::Worker;

/// How it is called where its address must not be.
const KEY: &str = "track.mlflow";

/// Entries that wait for the server, at most.
const QUEUE_CAPACITY: usize = 20_000;

/// How long entries are gathered before they are sent.
const BATCH_INTERVAL: Duration = Duration::from_secs(1);

/// The longest value of a parameter or tag that servers of all versions take.
const MAX_VALUE_LENGTH: usize = 500;

/// An item for the worker.
enum LogItem {
    /// With the recorded metrics of a run that is taken over, which the server may lack.
    Begun {
        run: String,
        created: f64,
        recorded_metrics: Vec<Metric>,
    },
    Metrics(Vec<Metric>),
    Tags(Vec<(String, String)>),
    /// With `run.json` as it will be.
    Ended {
        status: &'static str,
        at: f64,
        state: String,
    },
}

pub struct Mlflow {
    delivery: DeliveryThread<LogItem>,
    folder: RunFolder,
}

impl Mlflow {
    /// An error says why it cannot be used.
    pub fn new(pipeline: &Pipeline, folder: &RunFolder, variables: &Variables) -> Result<Self, String> {
        let written = pipeline.track.mlflow.as_deref().unwrap_or_default();
        let address = Address::read(written, variables).map_err(|reason| format!("{KEY}: {reason}"))?;
        let secrets = secrets(pipeline, variables);
        let parameters = parameters::from_pipeline(pipeline);
        let worker = Worker::new(Server::new(address), folder.clone(), pipeline.name.to_string(), parameters, secrets);
        let delivery =
            DeliveryThread::start(KEY.to_owned(), QUEUE_CAPACITY, worker).map_err(|error| format!("{KEY}: {error}"))?;
        Ok(Self { delivery, folder: folder.clone() })
    }

    fn begin(&self, state: &RunState) {
        let recorded_metrics = if state.attempts.is_empty() { Vec::new() } else { self.recorded_metrics() };
        self.delivery.send(LogItem::Begun { run: state.id.clone(), created: state.created, recorded_metrics });
        let user = std::env::var("USER").ok().filter(|user| !user.is_empty());
        self.tag(&[
            ("mlflow.source.name", Some("pipe")),
            ("mlflow.user", user.as_deref()),
            ("pipe.run", Some(&state.id)),
            ("pipe.engine", Some(&state.engine)),
            ("pipe.version", Some(env!("CARGO_PKG_VERSION"))),
        ]);
        state.attempts.iter().for_each(|attempt| self.retry(attempt));
    }

    /// The metrics of every event that is written down.
    fn recorded_metrics(&self) -> Vec<Metric> {
        let text = std::fs::read_to_string(self.folder.events()).unwrap_or_default();
        let events = text.lines().filter_map(|line| serde_json::from_str::<RecordedEvent>(line).ok());
        events.flat_map(|recorded| metrics(&recorded.event)).collect()
    }

    fn event(&self, recorded: &RecordedEvent) {
        let event = &recorded.event;
        if let EventKind::Started(started) = &event.kind {
            self.tag(&[
                ("pipe.device", Some(&started.device)),
                ("pipe.driver", started.driver.as_deref()),
                ("pipe.libtorch", Some(&started.libtorch)),
                ("pipe.image", self.image().as_deref()),
            ]);
        }
        let metrics = metrics(event);
        if !metrics.is_empty() {
            self.delivery.send(LogItem::Metrics(metrics));
        }
    }

    /// What was changed after an attempt, and why.
    fn retry(&self, attempt: &Attempt) {
        self.tag(&[(&format!("pipe.retry.{}", attempt.number), retry(attempt).as_deref())]);
    }

    /// What the attempts run in, once that is locked.
    fn image(&self) -> Option<String> {
        let lock: serde_json::Value = serde_json::from_slice(&std::fs::read(self.folder.lock()).ok()?).ok()?;
        lock["on"]["image"].as_str().map(str::to_owned)
    }

    fn tag(&self, tags: &[(&str, Option<&str>)]) {
        let known =
            tags.iter().filter_map(|(key, value)| Some(((*key).to_owned(), shortened((*value)?, MAX_VALUE_LENGTH))));
        self.delivery.send(LogItem::Tags(known.collect()));
    }
}

impl Listener for Mlflow {
    fn receive(&mut self, notice: &Notice<'_>) -> Result<(), String> {
        match notice {
            Notice::RunStarted(state) => self.begin(state),
            Notice::Event(recorded) => self.event(recorded),
            Notice::AttemptEnded(state) => self.tag(&[("pipe.attempts", Some(&state.attempts.len().to_string()))]),
            Notice::Retried(state) => state.attempts.last().into_iter().for_each(|attempt| self.retry(attempt)),
            Notice::RunEnded(state) => {
                self.tag(&[("pipe.error", state.error.as_deref())]);
                let file = serde_json::to_string_pretty(state).unwrap_or_default();
                self.delivery.send(LogItem::Ended { status: status(state.status), at: now(), state: file });
            }
        }
        Ok(())
    }

    fn finish(&mut self, ended: Instant) {
        self.delivery.finish(ended);
    }

    fn warning(&mut self) -> Option<String> {
        self.delivery.warning()
    }
}

/// The metrics of an event.
fn metrics(event: &Event) -> Vec<Metric> {
    let timestamp = milliseconds(event.ts);
    let (step, values) = scalars(&event.kind).unwrap_or_default();
    // JSON has no other numbers.
    let finite = values.into_iter().filter(|(_, value)| value.is_finite());
    finite.map(|(key, value)| Metric { key, value, timestamp, step }).collect()
}

/// Among MLflow's own.
fn status(status: Status) -> &'static str {
    match status {
        Status::Running => "RUNNING",
        Status::Finished => "FINISHED",
        Status::Failed => "FAILED",
        Status::Stopped | Status::Orphaned | Status::Unknown => "KILLED",
    }
}

/// What must not be in a file that others can read, if the pipeline itself contains it.
fn secrets(pipeline: &Pipeline, variables: &Variables) -> Vec<String> {
    let discord = pipeline.notify.iter().filter_map(|notify| notify.discord.as_ref());
    let mlflow = pipeline.track.mlflow.iter().filter(|address| address.contains('@'));
    discord.chain(mlflow).filter_map(|address| variables.expand(address).ok()).collect()
}

fn milliseconds(seconds: f64) -> i64 {
    (seconds * 1000.0) as i64
}

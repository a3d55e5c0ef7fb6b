//! The listeners of a run: trackers and message receivers. They never delay a run and never fail one.
//!
//! Each listener over the network has its own thread (`delivery`). Addresses, tokens and passwords are used
//! there and nowhere else: no error, warning or file names one.
//!
//! The settings of a run as trackers get them: what the training is about, and no secret.
//!
//! The figures of a run by step, under the names that every tracker shows.

mod delivery;
mod message;
pub mod mlflow;
mod tensorboard;
pub mod wandb;

use std::time::Instant;

use message::Receiver;
use mlflow::Mlflow;
use pipe_spec::event::{Eval, Metrics, RecordedEvent, Step};
use pipe_spec::pipeline::Pipeline;
use pipe_spec::{Attempt, EventKind, RunFolder, RunState, Variables};
use serde_json::{Map, Value};
use tensorboard::TensorBoard;
use wandb::Wandb;

use crate::system::clock::now;

/// A notice for listeners. It is about the last attempt of the run.
pub enum Notice<'a> {
    /// Also where another `pipe` has taken over.
    RunStarted(&'a RunState),
    /// Each event once.
    Event(&'a RecordedEvent),
    /// With its outcome.
    AttemptEnded(&'a RunState),
    /// After out of memory; `action` of the last attempt says what is changed.
    Retried(&'a RunState),
    RunEnded(&'a RunState),
}

/// A receiver of notices.
pub trait Listener {
    /// Takes in the notice without blocking. After an error the listener gets no more notices.
    fn receive(&mut self, notice: &Notice<'_>) -> Result<(), String>;

    /// Waits, for a short time after `ended`, until everything is sent.
    fn finish(&mut self, _ended: Instant) {}

    /// A new warning, once.
    fn warning(&mut self) -> Option<String> {
        None
    }
}

/// The listeners of a run.
#[derive(Default)]
pub struct Listeners {
    all: Vec<Box<dyn Listener>>,
}

impl Listeners {
    /// The listeners that the pipeline names, and warnings.
    pub fn from_pipeline(pipeline: &Pipeline, folder: &RunFolder, variables: &Variables) -> (Self, Vec<String>) {
        let mut listeners = Self::default();
        let mut missing = Vec::new();
        if pipeline.track.tensorboard {
            match TensorBoard::create(folder.path(), now()) {
                Ok(board) => listeners.all.push(Box::new(board)),
                Err(error) => missing.push(format!("cannot write for TensorBoard: {error}")),
            }
        }
        if pipeline.track.wandb.is_some() {
            match Wandb::new(pipeline, folder, variables) {
                Ok(wandb) => listeners.all.push(Box::new(wandb)),
                Err(reason) => missing.push(reason),
            }
        }
        for (index, notify) in pipeline.notify.iter().enumerate() {
            match Receiver::new(index, notify, variables) {
                Ok(receiver) => listeners.all.push(Box::new(receiver)),
                Err(reason) => missing.push(reason),
            }
        }
        if pipeline.track.mlflow.is_some() {
            match Mlflow::new(pipeline, folder, variables) {
                Ok(mlflow) => listeners.all.push(Box::new(mlflow)),
                Err(reason) => missing.push(reason),
            }
        }
        missing.extend(secrets_in_file(pipeline));
        (listeners, missing)
    }

    pub fn add(&mut self, listener: Box<dyn Listener>) {
        self.all.push(listener);
    }

    /// Sends the notice to every listener and returns warnings. At the end of a run it waits shortly for deliveries.
    pub fn notify(&mut self, notice: &Notice<'_>) -> Vec<String> {
        let mut lost = Vec::new();
        self.all.retain_mut(|listener| match listener.receive(notice) {
            Ok(()) => true,
            Err(reason) => {
                lost.push(reason);
                false
            }
        });
        if let Notice::RunEnded(_) = notice {
            let ended = Instant::now();
            self.all.iter_mut().for_each(|listener| listener.finish(ended));
        }
        lost.extend(self.all.iter_mut().filter_map(|listener| listener.warning()));
        lost
    }
}

/// Warnings about secrets in the pipeline file, which is copied to the run folder.
fn secrets_in_file(pipeline: &Pipeline) -> impl Iterator<Item = String> {
    let discord = pipeline.notify.iter().enumerate().filter_map(|(index, notify)| {
        let secret = notify.discord.as_ref().is_some_and(|address| !address.contains("${"));
        secret.then(|| (format!("notify[{index}] (discord)"), "DISCORD_WEBHOOK"))
    });
    let mlflow = pipeline.track.mlflow.iter().filter_map(|address| {
        let secret = address.contains('@') && !address.contains("${");
        secret.then(|| ("track.mlflow".to_owned(), "MLFLOW_TRACKING_URI"))
    });
    discord.chain(mlflow).map(|(key, variable)| {
        format!(
            "{key}: a secret stands in the pipeline, and so in the run folder; put it into .env and write ${{{variable}}}"
        )
    })
}

/// The change after an attempt, and its reason; absent where no other attempt followed.
fn retry(attempt: &Attempt) -> Option<String> {
    let why = attempt.reason.as_deref().unwrap_or("out of memory");
    attempt.action.as_ref().map(|action| format!("{action}: {why}"))
}

/// `text`, of at most `most` characters.
fn shortened(text: &str, most: usize) -> String {
    match text.char_indices().nth(most) {
        None => text.to_owned(),
        Some(_) => text.chars().take(most.saturating_sub(3)).chain("...".chars()).collect(),
    }
}

/// Sections that are not about the training, or that may hold secrets.
const LEFT_OUT: [&str; 4] = ["version", "name", "notify", "track"];

/// Every section of the resolved pipeline but those, and `container` without its variables. `${VAR}` stays as it is written.
pub fn settings(pipeline: &Pipeline) -> Map<String, Value> {
    match serde_json::to_value(pipeline) {
        Ok(Value::Object(mut sections)) => {
            LEFT_OUT.iter().for_each(|name| drop(sections.remove(*name)));
            if let Some(Value::Object(container)) = sections.get_mut("container") {
                container.remove("env");
            }
            sections
        }
        _ => Map::new(),
    }
}

/// The step of an event and its values, if it has any.
pub fn scalars(event: &EventKind) -> Option<(u64, Vec<(String, f64)>)> {
    match event {
        EventKind::Step(step) => Some((step.step, of_step(step))),
        EventKind::Eval(eval) => Some((eval.step, of_eval(eval))),
        EventKind::Metrics(metrics) => Some((metrics.step, of_command(metrics))),
        EventKind::Measured(_)
        | EventKind::Fitted(_)
        | EventKind::Started(_)
        | EventKind::Rehearsed(_)
        | EventKind::Sample(_)
        | EventKind::Checkpoint(_)
        | EventKind::Oom(_)
        | EventKind::Warning(_)
        | EventKind::Finished(_) => None,
    }
}

fn of_step(step: &Step) -> Vec<(String, f64)> {
    let rate = if step.ms > 0.0 { step.tokens as f64 * 1000.0 / step.ms } else { 0.0 };
    [
        ("train/loss", step.loss),
        ("train/lr", step.lr),
        ("train/grad_norm", step.grad_norm),
        ("train/epoch", step.epoch),
        ("speed/tokens_per_second", rate),
        ("memory/peak_bytes", step.peak as f64),
    ]
    .map(|(tag, value)| (tag.to_owned(), value))
    .into()
}

fn of_command(metrics: &Metrics) -> Vec<(String, f64)> {
    let tag = |name: &str| match name.strip_prefix("eval_") {
        Some(name) => format!("eval/{name}"),
        None => format!("train/{name}"),
    };
    metrics.values.iter().map(|(name, value)| (tag(name), *value)).collect()
}

fn of_eval(eval: &Eval) -> Vec<(String, f64)> {
    let scores = eval.scores.iter().map(|(name, score)| (format!("eval/{name}"), *score));
    std::iter::once(("eval/loss".to_owned(), eval.loss)).chain(scores).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_texts_are_shortened_by_characters() {
        let cases =
            [("", 5, ""), ("abcde", 5, "abcde"), ("abcdef", 5, "ab..."), ("éééééé", 5, "éé..."), ("abc", 2, "...")];
        for (text, most, want) in cases {
            assert_eq!(shortened(text, most), want, "{text}");
        }
    }
}

//! Who is told of a run while it goes on. Telling never delays a run and never fails one.
//!
//! Whoever is told over the network is told by a thread of their own (`courier`). Addresses, tokens and passwords are used
//! there and nowhere else: no error, warning or file names one.

mod courier;
mod discord;
mod message;
mod mlflow;
mod protobuf;
mod scalars;
mod settings;
mod tensorboard;
mod wandb;
pub mod web;
mod webhook;

use std::time::Instant;

use pipe_spec::event::RecordedEvent;
use pipe_spec::pipeline::Pipeline;
use pipe_spec::{Attempt, RunFolder, RunState, Variables};

use crate::run::now;
use mlflow::Mlflow;
use scalars::scalars;
use tensorboard::TensorBoard;
use wandb::Wandb;
use webhook::Receiver;

/// What there is to tell. The last attempt of a run is the one that it is about.
pub enum News<'a> {
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

/// Somebody who is told.
pub trait Listener {
    /// Takes in the news, without waiting for anybody. An error, in words, ends the telling.
    fn hear(&mut self, news: &News<'_>) -> Result<(), String>;

    /// Waits, for a short time after `ended`, until everything is told.
    fn finish(&mut self, _ended: Instant) {}

    /// What has gone wrong since, in words and once.
    fn complaint(&mut self) -> Option<String> {
        None
    }
}

/// All who are told of a run.
#[derive(Default)]
pub struct Audience {
    listeners: Vec<Box<dyn Listener>>,
}

impl Audience {
    /// Whom the pipeline names, and in words who cannot be told, or not in secret.
    pub fn of(pipeline: &Pipeline, folder: &RunFolder, variables: &Variables) -> (Self, Vec<String>) {
        let mut audience = Self::default();
        let mut missing = Vec::new();
        if pipeline.track.tensorboard {
            match TensorBoard::create(folder.path(), now()) {
                Ok(board) => audience.listeners.push(Box::new(board)),
                Err(error) => missing.push(format!("cannot write for TensorBoard: {error}")),
            }
        }
        if pipeline.track.wandb.is_some() {
            match Wandb::new(pipeline, folder, variables) {
                Ok(wandb) => audience.listeners.push(Box::new(wandb)),
                Err(reason) => missing.push(reason),
            }
        }
        for (index, notify) in pipeline.notify.iter().enumerate() {
            match Receiver::new(index, notify, variables) {
                Ok(receiver) => audience.listeners.push(Box::new(receiver)),
                Err(reason) => missing.push(reason),
            }
        }
        if pipeline.track.mlflow.is_some() {
            match Mlflow::new(pipeline, folder, variables) {
                Ok(mlflow) => audience.listeners.push(Box::new(mlflow)),
                Err(reason) => missing.push(reason),
            }
        }
        missing.extend(laid_open(pipeline));
        (audience, missing)
    }

    /// Tells everybody; what cannot be told is said in words. At the end of a run it waits a little for what is under way.
    pub fn tell(&mut self, news: &News<'_>) -> Vec<String> {
        let mut lost = Vec::new();
        self.listeners.retain_mut(|listener| match listener.hear(news) {
            Ok(()) => true,
            Err(reason) => {
                lost.push(reason);
                false
            }
        });
        if let News::RunEnded(_) = news {
            let ended = Instant::now();
            self.listeners.iter_mut().for_each(|listener| listener.finish(ended));
        }
        lost.extend(self.listeners.iter_mut().filter_map(|listener| listener.complaint()));
        lost
    }
}

/// Secrets that stand in the file itself, and so in the run folder.
fn laid_open(pipeline: &Pipeline) -> impl Iterator<Item = String> {
    let discord = pipeline.notify.iter().enumerate().filter_map(|(index, notify)| {
        let secret = notify.discord.as_ref().is_some_and(|address| !address.contains("${"));
        secret.then(|| (format!("notify[{index}] (discord)"), "DISCORD_WEBHOOK"))
    });
    let mlflow = pipeline.track.mlflow.iter().filter_map(|address| {
        let secret = address.contains('@') && !address.contains("${");
        secret.then(|| ("track.mlflow".to_owned(), "MLFLOW_TRACKING_URI"))
    });
    discord.chain(mlflow).map(|(place, variable)| {
        format!(
            "{place}: a secret stands in the pipeline, and so in the run folder; put it into .env and write ${{{variable}}}"
        )
    })
}

/// What was changed after an attempt, and why; nothing where no other followed.
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

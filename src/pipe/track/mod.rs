//! Who is told of a run while it goes on. Telling never delays a run and never fails one.

mod tensorboard;

use pipe_spec::event::RecordedEvent;
use pipe_spec::pipeline::Pipeline;
use pipe_spec::{RunFolder, RunState, Variables};

use crate::run::now;
use tensorboard::TensorBoard;

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

/// Somebody who is told. An error, in words, ends the telling.
pub trait Listener {
    fn hear(&mut self, news: &News<'_>) -> Result<(), String>;
}

/// All who are told of a run.
#[derive(Default)]
pub struct Audience {
    listeners: Vec<Box<dyn Listener>>,
}

impl Audience {
    /// Whom the pipeline names, and in words who cannot be told.
    pub fn of(pipeline: &Pipeline, folder: &RunFolder, _variables: &Variables) -> (Self, Vec<String>) {
        let mut audience = Self::default();
        let mut missing = Vec::new();
        if pipeline.track.tensorboard {
            match TensorBoard::create(folder.path(), now()) {
                Ok(board) => audience.listeners.push(Box::new(board)),
                Err(error) => missing.push(format!("cannot write for TensorBoard: {error}")),
            }
        }
        (audience, missing)
    }

    /// Tells everybody; what cannot be told any more is said in words.
    pub fn tell(&mut self, news: &News<'_>) -> Vec<String> {
        let mut lost = Vec::new();
        self.listeners.retain_mut(|listener| match listener.hear(news) {
            Ok(()) => true,
            Err(reason) => {
                lost.push(reason);
                false
            }
        });
        lost
    }
}

//! The content of a message, for every receiver.

use pipe_spec::pipeline::NotifyOn;
use pipe_spec::{Attempt, Cause, Outcome, RunState, Status};
use serde::Serialize;

use super::Notice;

/// The JSON object that a webhook gets. What is not known is null.
#[derive(Clone, Debug, Serialize)]
pub struct Message {
    #[serde(rename = "type")]
    pub kind: NotifyOn,
    /// The run's id.
    pub run: String,
    /// The pipeline's name.
    pub name: String,
    pub status: Status,
    pub engine: String,
    /// Of this attempt: its number, settings, how it ended and what is done about it.
    pub attempt: Option<u32>,
    pub batch: Option<u32>,
    pub accum: Option<u32>,
    pub effective_batch: u32,
    pub cause: Option<Cause>,
    pub reason: Option<String>,
    pub action: Option<String>,
    /// The last step that was done, of so many.
    pub step: Option<u64>,
    pub steps: Option<u64>,
    pub loss: Option<f64>,
    /// Bytes.
    pub peak_memory: Option<u64>,
    /// Why the run failed.
    pub error: Option<String>,
    /// Since the run began.
    pub seconds: f64,
    /// Seconds since the Unix epoch.
    pub time: f64,
}

impl Message {
    /// Nothing for notices without a message, and when a person has stopped the run.
    pub fn from_notice(notice: &Notice<'_>, now: f64) -> Option<Self> {
        let (kind, state) = match *notice {
            // A run that was taken over has started before.
            Notice::RunStarted(state) if state.attempts.is_empty() => (NotifyOn::Started, state),
            Notice::AttemptEnded(state) => {
                let outcome = state.attempts.last()?.outcome?;
                (outcome == Outcome::Oom).then_some((NotifyOn::Oom, state))?
            }
            Notice::Retried(state) => (NotifyOn::Retried, state),
            Notice::RunEnded(state) => match state.status {
                Status::Finished => (NotifyOn::Finished, state),
                Status::Failed => (NotifyOn::Failed, state),
                Status::Running | Status::Stopped | Status::Orphaned | Status::Unknown => return None,
            },
            Notice::RunStarted(_) | Notice::Event(_) => return None,
        };
        Some(Self::new(kind, state, now))
    }

    fn new(kind: NotifyOn, state: &RunState, now: f64) -> Self {
        let last: Option<&Attempt> = state.attempts.last();
        // An attempt that failed early has no steps of its own.
        let reached = state.attempts.iter().rev().find(|attempt| attempt.last_step.is_some());
        Self {
            kind,
            run: state.id.clone(),
            name: state.name.clone(),
            status: state.status,
            engine: state.engine.clone(),
            attempt: last.map(|attempt| attempt.number),
            batch: last.map(|attempt| attempt.batch),
            accum: last.map(|attempt| attempt.accum),
            effective_batch: state.effective_batch,
            cause: last.and_then(|attempt| attempt.cause),
            reason: last.and_then(|attempt| attempt.reason.clone()),
            action: last.and_then(|attempt| attempt.action.clone()),
            step: reached.and_then(|attempt| attempt.last_step),
            steps: state.steps,
            loss: reached.and_then(|attempt| attempt.last_loss),
            peak_memory: last.and_then(|attempt| attempt.peak_memory),
            error: state.error.clone(),
            seconds: (now - state.created).max(0.0),
            time: now,
        }
    }
}

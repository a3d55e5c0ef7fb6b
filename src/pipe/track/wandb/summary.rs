//! The summary of a run: last values, the best evaluation, how it went.

use pipe_spec::RunState;
use pipe_spec::event::Eval;
use serde_json::{Map, Value, json};

use crate::track::retry;

/// Seconds of training between two summaries in the file. One that is killed has a summary that is no older.
const SUMMARY_INTERVAL: f64 = 15.0;

#[derive(Default)]
pub struct Summary {
    last: Map<String, Value>,
    /// The evaluation with the lowest loss.
    best: Option<Eval>,
    pipe: Value,
    /// When it was last last_written, in seconds since the Unix epoch.
    last_written: f64,
}

impl Summary {
    /// Takes in the values of a step; returns whether a summary is due.
    pub fn step(&mut self, at: f64, values: Map<String, Value>) -> bool {
        self.last.extend(values);
        let is_due = at >= self.last_written + SUMMARY_INTERVAL;
        if is_due {
            self.last_written = at;
        }
        is_due
    }

    pub fn evaluated(&mut self, eval: &Eval) {
        if eval.loss.is_finite() && self.best.as_ref().is_none_or(|best| eval.loss < best.loss) {
            self.best = Some(eval.clone());
        }
    }

    pub fn describe(&mut self, state: &RunState) {
        let retries = retries(state);
        let peak = state.attempts.iter().filter_map(|attempt| attempt.peak_memory).max();
        self.pipe = json!({
            "status": state.status.name(),
            "attempts": state.attempts.len(),
            "retries": retries.len(),
            "retry": retries,
            "peak_memory_bytes": peak,
            "error": state.error,
        });
    }

    pub fn values(&self) -> Map<String, Value> {
        let mut values = self.last.clone();
        if let Some(best) = &self.best {
            values.insert("best/step".to_owned(), json!(best.step));
            values.insert("best/eval/loss".to_owned(), json!(best.loss));
            values.extend(best.scores.iter().map(|(name, score)| (format!("best/eval/{name}"), json!(score))));
        }
        values.insert("pipe".to_owned(), self.pipe.clone());
        values
    }
}

/// What was changed after each attempt that was followed by another, and why, by its number.
pub fn retries(state: &RunState) -> Map<String, Value> {
    let retries =
        state.attempts.iter().filter_map(|attempt| Some((attempt.number.to_string(), retry(attempt)?.into())));
    retries.collect()
}

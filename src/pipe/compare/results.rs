//! The results of a run, as figures that can be compared.

use std::collections::BTreeMap;

use pipe_spec::pipeline::LossUnit;
use pipe_spec::text::human_bytes;
use pipe_spec::{Attempt, Cause, Outcome};
use serde::Serialize;
use serde_json::Value;

use crate::report::{duration, times_ranks};
use crate::run::Record;

/// What is not known is absent.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Results {
    pub status: Option<&'static str>,
    pub attempts: Vec<AttemptResult>,
    /// Steps that were done.
    pub steps: u64,
    /// Of the last step.
    pub loss: Option<f64>,
    /// Of the last evaluation: its loss, and its scores by their names.
    pub eval: BTreeMap<String, f64>,
    pub seconds: Option<f64>,
    /// Bytes.
    pub peak_memory: Option<u64>,
    pub tokens_per_second: Option<f64>,
    /// What that counts.
    pub unit: LossUnit,
}

/// An attempt, as far as it says how the run was done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct AttemptResult {
    pub batch: u32,
    pub accum: u32,
    pub ranks: u32,
    pub outcome: Option<Outcome>,
    pub cause: Option<Cause>,
    pub changes: Vec<String>,
    pub first_step: Option<u64>,
    pub last_step: Option<u64>,
}

impl Results {
    pub fn from_record(run: &Record) -> Self {
        let eval = run.history.evals.last();
        let scores = eval.into_iter().flat_map(|eval| eval.scores.iter().map(|(name, score)| (name.clone(), *score)));
        Self {
            status: run.state.as_ref().map(|state| state.status.name()),
            attempts: run.state.iter().flat_map(|state| &state.attempts).map(AttemptResult::new).collect(),
            steps: run.history.steps.len() as u64,
            loss: run.history.steps.last().map(|step| step.loss),
            eval: eval.map(|eval| ("loss".to_owned(), eval.loss)).into_iter().chain(scores).collect(),
            seconds: run.seconds(),
            peak_memory: run.peak_memory(),
            tokens_per_second: run.tokens_per_second(),
            unit: run.unit(),
        }
    }

    /// Names and values, for people.
    pub fn rows(&self) -> Vec<(String, String)> {
        let mut rows = Vec::new();
        let mut add = |name: &str, value: Option<String>| {
            rows.push((name.to_owned(), value.unwrap_or_else(|| "-".to_owned())));
        };
        add("status", self.status.map(str::to_owned));
        add("attempts", Some(self.attempts.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")));
        add("steps", Some(self.steps.to_string()));
        add("training loss", self.loss.map(|loss| loss.to_string()));
        for (name, score) in &self.eval {
            add(&format!("eval {}", name.replace('_', " ")), Some(score.to_string()));
        }
        add("time", self.seconds.map(duration));
        add("peak memory", self.peak_memory.map(human_bytes));
        add(&format!("{} per second", self.unit.name()), self.tokens_per_second.map(|rate| format!("{rate:.1}")));
        rows
    }
}

impl AttemptResult {
    fn new(attempt: &Attempt) -> Self {
        let Attempt { batch, accum, ranks, outcome, cause, first_step, last_step, .. } = *attempt;
        Self { batch, accum, ranks, outcome, cause, changes: attempt.changes.clone(), first_step, last_step }
    }
}

impl std::fmt::Display for AttemptResult {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{} x {}{} {}",
            self.batch,
            self.accum,
            times_ranks(self.ranks),
            self.outcome.map_or("running", Outcome::name)
        )?;
        // A cause is written as in run.json.
        if let Some(Ok(Value::String(cause))) = self.cause.map(serde_json::to_value) {
            write!(f, " ({})", cause.replace('_', " "))?;
        }
        Ok(())
    }
}

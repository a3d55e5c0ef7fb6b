//! Notes of `pipe` on a trial beside its settings and values, as attributes that Optuna shows too.

use pipe_search::{Direction, Trial, TrialState, best};
use pipe_spec::run::TrialCounts;
use serde::Serialize;
use serde_json::Value;

/// The study's run id, of the `pipe tune` that the trial belongs to.
pub const STUDY: &str = "study";
/// The id of its run.
pub const RUN: &str = "run";
/// Bytes that it held at most, and that it was foreseen to hold.
pub const PEAK_MEMORY: &str = "peak_memory";
pub const PREDICTED_PEAK: &str = "predicted_peak";
/// Bytes that there were.
pub const CAPACITY: &str = "capacity";
/// It was never begun, because it is known not to fit.
pub const INFEASIBLE: &str = "infeasible";
/// It was never begun, because the trial with this number is the same training.
pub const SAME_AS: &str = "same_as";
pub const SECONDS: &str = "seconds";
/// More than one: it ran out of memory, and was tried again.
pub const ATTEMPTS: &str = "attempts";
/// The record of its out-of-memory.
pub const OOM: &str = "oom";
pub const ERROR: &str = "error";
/// The step at which it was ended because others were better.
pub const PRUNED_AT: &str = "pruned_at";

/// How a trial stands, for people.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Standing {
    Waiting,
    Running,
    Complete,
    Pruned,
    OutOfMemory,
    Infeasible,
    Repeated,
    Failed,
}

impl Standing {
    pub fn of(trial: &Trial) -> Self {
        let has = |name: &str| trial.user_attrs.get(name).is_some_and(|value| *value != Value::Bool(false));
        match trial.state {
            TrialState::Waiting => Self::Waiting,
            TrialState::Running => Self::Running,
            TrialState::Complete if has(SAME_AS) => Self::Repeated,
            TrialState::Complete => Self::Complete,
            TrialState::Pruned if has(INFEASIBLE) => Self::Infeasible,
            TrialState::Pruned if has(OOM) => Self::OutOfMemory,
            TrialState::Pruned => Self::Pruned,
            TrialState::Failed => Self::Failed,
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Running => "running",
            Self::Complete => "complete",
            Self::Pruned => "pruned",
            Self::OutOfMemory => "out of memory",
            Self::Infeasible => "does not fit",
            Self::Repeated => "repeated",
            Self::Failed => "failed",
        }
    }
}

/// Whether a trial belongs to the `pipe tune` with this run id.
pub fn is_of(trial: &Trial, study: &str) -> bool {
    trial.user_attrs.get(STUDY).and_then(Value::as_str) == Some(study)
}

pub fn counts<'a>(trials: impl Iterator<Item = &'a Trial>) -> TrialCounts {
    let mut counts = TrialCounts::default();
    for trial in trials {
        let count = match Standing::of(trial) {
            Standing::Waiting => continue,
            Standing::Running => &mut counts.running,
            Standing::Complete => &mut counts.complete,
            Standing::Pruned | Standing::OutOfMemory => &mut counts.pruned,
            Standing::Infeasible => &mut counts.infeasible,
            Standing::Repeated => &mut counts.repeated,
            Standing::Failed => &mut counts.failed,
        };
        *count += 1;
    }
    counts
}

/// The number of the best trial and its value, with one objective.
pub fn best_of(trials: &[Trial], directions: &[Direction]) -> Option<(u64, f64)> {
    let [_] = directions else { return None };
    let trial = best(trials, directions).first().and_then(|index| trials.get(*index))?;
    Some((trial.number, *trial.values.first()?))
}

/// The settings of a trial in one line.
pub fn settings(trial: &Trial) -> String {
    let text = |value: &Value| match value {
        Value::String(text) => text.clone(),
        Value::Number(number) if number.is_f64() => crate::report::figure(number.as_f64().unwrap_or_default()),
        other => other.to_string(),
    };
    // The last part of a path tells most; all of it where that would not.
    let short = |name: &str| {
        let last = name.rsplit('.').next().unwrap_or(name);
        let ends = |other: &&String| other.rsplit('.').next() == Some(last);
        if trial.point.keys().filter(ends).count() > 1 { name.to_owned() } else { last.to_owned() }
    };
    trial.point.iter().map(|(name, value)| format!("{} {}", short(name), text(value))).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn settings_in_a_line() {
        let point = [("train.batch", json!(8)), ("train.optimizer.lr", json!(3.0e-5)), ("model.from", json!("a/b"))];
        let trial = Trial::new(0, point.into_iter().map(|(name, value)| (name.to_owned(), value)).collect());
        assert_eq!(settings(&trial), "from a/b, batch 8, lr 3.00e-5");
    }

    #[test]
    fn only_what_ran_counts() {
        let with = |state, attr: &str| {
            let mut trial = Trial::new(0, pipe_search::Point::new());
            trial.state = state;
            if !attr.is_empty() {
                trial.user_attrs.insert(attr.to_owned(), json!(1));
            }
            trial
        };
        let trials = [
            with(TrialState::Complete, ""),
            with(TrialState::Complete, SAME_AS),
            with(TrialState::Pruned, INFEASIBLE),
            with(TrialState::Pruned, OOM),
            with(TrialState::Pruned, ""),
            with(TrialState::Failed, ERROR),
            with(TrialState::Running, ""),
            with(TrialState::Waiting, ""),
        ];
        let counts = counts(trials.iter());
        assert_eq!((counts.infeasible, counts.repeated, counts.pruned, counts.run()), (1, 1, 2, 5));
    }
}

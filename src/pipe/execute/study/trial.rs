//! Notes of `pipe` on a trial beside its settings and values, as attributes that Optuna shows too.
//!
//! The objectives of a trial, from the events of its run.

use std::collections::BTreeMap;

use pipe_search::{Direction, Trial, TrialState, best};
use pipe_spec::event::RecordedEvent;
use pipe_spec::pipeline::Metric;
use pipe_spec::run::TrialCounts;
use pipe_spec::study::{Goal, Objective, Which};
use pipe_spec::{EventKind, RunFolder, RunState};
use serde::Serialize;
use serde_json::Value;

use crate::error::Error;
use crate::run::Follow;

/// The study's run id, of the `pipe tune` that the trial belongs to.
/// Names of metrics that are kept for a message.
const MOST_NAMES: usize = 32;

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

/// Values of a metric that is known at every step are kept for so many steps of a training.
const KEPT: u64 = 100;

/// The values of a trial so far, by objective and step.
pub struct Curves {
    events: Follow,
    objectives: Vec<Objective>,
    values: Vec<BTreeMap<u64, f64>>,
    /// Samples and milliseconds of its steps.
    speed: (u64, f64),
    last_samples: u64,
    /// Steps of the whole run.
    steps: Option<u64>,
    /// Bytes that it may hold.
    pub capacity: Option<u64>,
    /// The names of the metrics that there were.
    names: Vec<String>,
}

impl Curves {
    pub fn new(folder: &RunFolder, objectives: &[Objective]) -> Self {
        Self {
            events: Follow::new(folder.events()),
            objectives: objectives.to_vec(),
            values: vec![BTreeMap::new(); objectives.len()],
            speed: (0, 0.0),
            last_samples: 0,
            steps: None,
            capacity: None,
            names: Vec::new(),
        }
    }

    /// Takes in the events that were added.
    pub fn read(&mut self) -> Result<(), Error> {
        loop {
            let lines = self.events.lines()?;
            if lines.is_empty() {
                return Ok(());
            }
            for line in lines {
                if let Ok(recorded) = serde_json::from_str::<RecordedEvent>(&line) {
                    self.add(&recorded.event.kind);
                }
            }
        }
    }

    fn add(&mut self, event: &EventKind) {
        match event {
            EventKind::Started(started) => {
                self.steps = Some(started.steps);
                self.capacity = started.memory.capacity.or(self.capacity);
            }
            EventKind::Step(step) => {
                self.speed.0 += step.samples.saturating_sub(self.last_samples);
                self.speed.1 += step.ms;
                self.last_samples = step.samples;
                self.put(step.step, "loss", step.loss);
            }
            EventKind::Eval(eval) => {
                self.put(eval.step, "eval.loss", eval.loss);
                for (name, score) in &eval.scores {
                    self.put(eval.step, Metric::named(name).to_string().as_str(), *score);
                }
            }
            EventKind::Metrics(metrics) => {
                self.steps = metrics.steps.or(self.steps);
                for (name, value) in &metrics.values {
                    self.put(metrics.step, name, *value);
                }
            }
            _ => {}
        }
    }

    fn put(&mut self, step: u64, name: &str, value: f64) {
        if self.names.len() < MOST_NAMES && !self.names.iter().any(|known| known == name) {
            self.names.push(name.to_owned());
        }
        for (objective, values) in self.objectives.iter().zip(&mut self.values) {
            if is_metric(&objective.metric, name) {
                values.insert(step, value);
            }
        }
    }

    /// The first objective by step, for those who decide whether the trial goes on: of a metric that is known at every step only some.
    pub fn intermediate(&self) -> BTreeMap<u64, f64> {
        let Some(values) = self.values.first() else { return BTreeMap::new() };
        let every = self.steps.unwrap_or(values.len() as u64).div_ceil(KEPT).max(1);
        let at_every_step = self.objectives.first().is_some_and(|objective| objective.metric == "loss");
        let is_kept = |step: &u64| !at_every_step || step.is_multiple_of(every);
        values.iter().filter(|(step, _)| is_kept(step)).map(|(step, value)| (*step, *value)).collect()
    }

    /// The value of each objective at the end of the run, or which of them there is none of.
    pub fn values(&self, run: &RunState) -> Result<Vec<f64>, String> {
        self.objectives.iter().zip(&self.values).map(|(objective, values)| self.value(objective, values, run)).collect()
    }

    fn value(&self, objective: &Objective, values: &BTreeMap<u64, f64>, run: &RunState) -> Result<f64, String> {
        let metric = objective.metric.as_str();
        let found = match metric {
            "seconds" => Some(run.attempts().iter().map(|attempt| attempt.figures.seconds).sum()),
            "peak_memory" => peak(run).map(|bytes| bytes as f64),
            "samples_per_second" => (self.speed.1 > 0.0).then(|| self.speed.0 as f64 * 1000.0 / self.speed.1),
            _ => match objective.value {
                Which::Last => values.values().next_back().copied(),
                Which::Best => values.values().copied().filter(|value| value.is_finite()).reduce(|best, value| {
                    match objective.direction {
                        Goal::Minimize => best.min(value),
                        Goal::Maximize => best.max(value),
                    }
                }),
            },
        };
        match found {
            Some(value) if value.is_finite() => Ok(value),
            Some(value) => Err(format!("{metric} is {value}")),
            None if self.names.is_empty() => Err(format!("it has no {metric}: it reported no metric at all")),
            None => Err(format!("it has no {metric}; it reported {}", self.names.join(", "))),
        }
    }
}

/// Whether `name`, as events have it, is the metric `wanted`. A command writes `eval_loss` for `eval.loss`.
fn is_metric(wanted: &str, name: &str) -> bool {
    wanted == name || wanted.strip_prefix("eval.").is_some_and(|rest| name.strip_prefix("eval_") == Some(rest))
}

/// Bytes that a run has held at most.
pub fn peak(run: &RunState) -> Option<u64> {
    run.attempts().iter().filter_map(|attempt| attempt.figures.peak_memory).max()
}

#[cfg(test)]
mod tests {
    use pipe_spec::event::{Eval, Started, Step};
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

    fn objective(metric: &str, value: Which) -> Objective {
        Objective { metric: metric.to_owned(), direction: Goal::Maximize, value }
    }

    fn curves(objectives: &[Objective]) -> Curves {
        Curves::new(&RunFolder::new("nowhere"), objectives)
    }

    fn eval(step: u64, accuracy: f64) -> EventKind {
        EventKind::Eval(Eval {
            step,
            loss: 1.0,
            samples: 1,
            ms: 1.0,
            headline: None,
            scores: [("accuracy".to_owned(), accuracy)].into(),
        })
    }

    #[test]
    fn the_last_or_the_best_value() {
        let run = RunState::new("x", "x", "toy");
        let mut curves = curves(&[objective("eval.accuracy", Which::Last), objective("eval.accuracy", Which::Best)]);
        for (step, accuracy) in [(10, 0.4), (20, 0.9), (30, 0.6)] {
            curves.add(&eval(step, accuracy));
        }
        assert_eq!(curves.values(&run), Ok(vec![0.6, 0.9]));
        assert_eq!(curves.intermediate(), [(10, 0.4), (20, 0.9), (30, 0.6)].into());
        // The same evaluation after a resume.
        curves.add(&eval(30, 0.6));
        assert_eq!(curves.intermediate().len(), 3);
    }

    #[test]
    fn what_is_not_there_is_named() {
        let run = RunState::new("x", "x", "toy");
        let mut curves = curves(&[objective("eval.bleu", Which::Last)]);
        assert_eq!(curves.values(&run).unwrap_err(), "it has no eval.bleu: it reported no metric at all");
        curves.add(&eval(10, 0.4));
        assert_eq!(curves.values(&run).unwrap_err(), "it has no eval.bleu; it reported eval.loss, eval.accuracy");
    }

    #[test]
    fn a_loss_is_kept_for_some_steps() {
        let mut curves = curves(&[objective("loss", Which::Last)]);
        let started = serde_json::json!({ "device": "cpu", "libtorch": "2", "params": 1, "batch": 1, "accum": 1, "effective_batch": 1,
            "steps": 1000, "samples": 1, "capacity": null, "driver": null, "resumed_from": null });
        curves.add(&EventKind::Started(serde_json::from_value::<Started>(started).unwrap()));
        for step in 1..=1000 {
            curves.add(&EventKind::Step(Step { step, loss: step as f64, ..Step::default() }));
        }
        assert_eq!(curves.intermediate().len(), 100);
        assert_eq!(curves.values(&RunState::new("x", "x", "toy")), Ok(vec![1000.0]));
    }

    #[test]
    fn a_command_has_its_own_names() {
        assert!(is_metric("eval.loss", "eval_loss") && is_metric("score", "score") && !is_metric("eval.loss", "loss"));
    }
}

//! What a run has achieved, from its events. Pure.

use std::collections::BTreeMap;

use pipe_spec::event::Eval;
use pipe_spec::pipeline::{Metric, Task};
use pipe_spec::run::{Evaluation, RunResult};

use super::record::History;

/// The name of the training loss, for runs that are not evaluated.
const TRAINING_LOSS: &str = "loss";

/// The result of a run with these events; `known` is what was known when it began.
pub fn result(history: &History, known: &RunResult) -> RunResult {
    // An evaluation that was repeated after a resume counts once.
    let evals: BTreeMap<u64, &Eval> = history.evals.iter().map(|eval| (eval.step, eval)).collect();
    let (first, last) = (evals.values().next(), evals.values().last());
    let metric = known.save_best.clone().or_else(|| last.map(|eval| main_metric(eval)));
    let told = history.finished.as_ref().and_then(|finished| finished.best.as_ref());
    let best = match (told.and_then(|best| evals.get(&best.step)), &metric) {
        (Some(best), _) => Some(*best),
        (None, Some(metric)) => best_eval(evals.values().copied(), metric),
        (None, None) => None,
    };
    let shown = if known.save_best.is_some() { best } else { last.copied() };
    let value = match &metric {
        Some(metric) => shown.and_then(|eval| eval.value(metric)),
        None => history.last_loss(),
    };
    let name = metric.map_or(TRAINING_LOSS.to_owned(), |metric| metric.to_string());
    let finished = history.finished.as_ref();
    RunResult {
        value: value.filter(|value| value.is_finite()),
        metric: Some(name),
        first: first.map(|eval| evaluation(eval)),
        best: best.map(evaluation),
        last: last.map(|eval| evaluation(eval)),
        model_step: finished.and_then(|finished| finished.model_step),
        stopped_early: finished.and_then(|finished| finished.stopped_early.as_ref()).map(ToString::to_string),
        ..known.clone()
    }
}

/// The first score of the task, else the loss. No two tasks have a score of the same name in a different order.
fn main_metric(eval: &Eval) -> Metric {
    let names = Task::ALL.iter().flat_map(|task| task.metrics()).filter(|name| **name != Metric::LOSS);
    let mut metrics = names.map(|name| Metric::named(name));
    metrics.find(|metric| eval.value(metric).is_some()).unwrap_or_else(Metric::loss)
}

/// The first evaluation where the metric is best.
fn best_eval<'a>(evals: impl Iterator<Item = &'a Eval>, metric: &Metric) -> Option<&'a Eval> {
    evals.fold(None, |best: Option<&Eval>, eval| {
        let value = eval.value(metric).filter(|value| value.is_finite());
        let better = value.is_some_and(|value| metric.is_better(value, best.and_then(|best| best.value(metric))));
        if better { Some(eval) } else { best }
    })
}

fn evaluation(eval: &Eval) -> Evaluation {
    let scores = eval.scores.iter().map(|(name, score)| (Metric::named(name).to_string(), *score));
    let loss = (Metric::loss().to_string(), eval.loss);
    let metrics = scores.chain([loss]).filter(|(_, value)| value.is_finite()).collect();
    Evaluation { step: eval.step, metrics }
}

#[cfg(test)]
mod tests {
    use pipe_spec::event::{BestEval, Finished};

    use super::*;

    fn eval(step: u64, loss: f64, accuracy: f64) -> Eval {
        let scores = [("accuracy".to_owned(), accuracy), ("f1".to_owned(), 0.1)].into();
        Eval { step, loss, samples: 1, ms: 0.0, scores }
    }

    fn steps(result: &RunResult) -> [Option<u64>; 3] {
        [&result.first, &result.best, &result.last].map(|eval| eval.as_ref().map(|eval| eval.step))
    }

    #[test]
    fn first_best_and_last() {
        let mut history = History { evals: vec![eval(4, 0.9, 0.5), eval(8, 0.5, 0.7)], ..History::default() };
        // Repeated after a resume, with the same figures.
        history.evals.extend([eval(8, 0.5, 0.7), eval(12, 0.6, 0.8), eval(16, f64::NAN, 0.8)]);
        let plain = result(&history, &RunResult::default());
        assert_eq!((plain.metric.as_deref(), plain.value), (Some("eval.accuracy"), Some(0.8)));
        assert_eq!(steps(&plain), [Some(4), Some(12), Some(16)]);
        assert!(!plain.last.unwrap().metrics.contains_key("eval.loss"));

        let known = RunResult { save_best: Some(Metric::loss()), ..RunResult::default() };
        let by_loss = result(&history, &known);
        assert_eq!((by_loss.metric.as_deref(), by_loss.value), (Some("eval.loss"), Some(0.5)));
        assert_eq!(steps(&by_loss), [Some(4), Some(8), Some(16)]);

        // What the trainer says counts.
        let best = Some(BestEval { metric: Metric::loss(), step: 12, value: 0.6 });
        history.finished = Some(Finished { step: 16, best, model_step: Some(12), ..Finished::default() });
        let told = result(&history, &known);
        assert_eq!((steps(&told)[1], told.model_step), (Some(12), Some(12)));
    }

    #[test]
    fn a_run_without_evaluations_has_its_loss() {
        let empty = result(&History::default(), &RunResult::default());
        assert_eq!((empty.metric.as_deref(), empty.value, steps(&empty)), (Some("loss"), None, [None; 3]));
    }
}

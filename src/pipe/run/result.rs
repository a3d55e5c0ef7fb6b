//! The result of a run, from its events. Pure.
//!
//! The details of its evaluations beside their scores, from the files that its jobs wrote.
//!
//! Memory and time of each rank of a training.

use std::collections::BTreeMap;

use pipe_spec::evaluation::EvaluationDetails;
use pipe_spec::event::{Eval, Step};
use pipe_spec::pipeline::{Metric, Task};
use pipe_spec::run::{Evaluation, JobFolder, RunResult};
use pipe_spec::{RunFolder, RunState};
use serde::Serialize;

use super::history::History;
use super::job_file;

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

/// Bytes that are read of a file: pictures included, one has a tenth of that.
const LIMIT: u64 = 8 << 20;

/// Those of the evaluation of the exported model: the best by `save.best`, else the last. Absent where no attempt wrote any.
/// The events say which is the best: of a run that has not ended, the state does not know it yet.
pub fn of_model(folder: &RunFolder, state: &RunState, history: &History) -> Option<EvaluationDetails> {
    let known = state.result().filter(|known| known.save_best.is_some());
    let best = known.and_then(|known| result(history, known).best);
    let best = best.and_then(|best| newest(folder, state, JobFolder::BEST_EVALUATION, Some(best.step)));
    best.or_else(|| newest(folder, state, JobFolder::EVALUATION, None))
}

/// The details in the last attempt that has such a file, of the evaluation after `step` where one is given.
fn newest(folder: &RunFolder, state: &RunState, name: &str, step: Option<u64>) -> Option<EvaluationDetails> {
    let mut attempts = state.attempts().iter().rev();
    attempts.find_map(|attempt| {
        let bytes = job_file::read(folder.attempt(attempt.number).job().path(), name, LIMIT).ok()?;
        let details: EvaluationDetails = serde_json::from_slice(&bytes).ok()?;
        (!details.is_empty() && step.is_none_or(|step| step == details.step)).then_some(details)
    })
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct RankFigures {
    /// Bytes.
    pub peak: u64,
    /// Milliseconds of the median step, without waiting for the others.
    pub ms: f64,
}

/// The figures of each of several ranks in the steps of the last attempt that had as many; none of one.
pub fn figures(steps: &[Step]) -> Vec<RankFigures> {
    let count = steps.last().map_or(0, |step| step.ranks.len());
    let steps: Vec<&Step> = steps.iter().rev().take_while(|step| step.ranks.len() == count).collect();
    let of = |rank: usize| {
        let mut times: Vec<f64> = steps.iter().map(|step| step.ranks[rank].ms).collect();
        times.sort_by(f64::total_cmp);
        let peak = steps.iter().map(|step| step.ranks[rank].peak).max().unwrap_or(0);
        RankFigures { peak, ms: times[times.len() / 2] }
    };
    (0..count).map(of).collect()
}

/// The rank that took longest.
pub fn slowest(ranks: &[RankFigures]) -> Option<usize> {
    (0..ranks.len()).max_by(|a, b| ranks[*a].ms.total_cmp(&ranks[*b].ms))
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

        // The best evaluation that the trainer names counts.
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

#[cfg(test)]
mod evaluation_tests {
    use pipe_spec::Attempt;
    use pipe_spec::evaluation::ClassDetails;
    use pipe_spec::event::{Eval, Scores};
    use pipe_spec::pipeline::Metric;
    use pipe_spec::run::RunResult;

    use super::*;

    fn write(folder: &RunFolder, attempt: u32, name: &str, step: u64) {
        let job = folder.attempt(attempt).job();
        std::fs::create_dir_all(job.path()).unwrap();
        let classes = Some(ClassDetails::default());
        let details = EvaluationDetails { step, classes, ..EvaluationDetails::default() };
        std::fs::write(job.path().join(name), serde_json::to_string(&details).unwrap()).unwrap();
    }

    #[test]
    fn the_last_attempt_that_has_it() {
        let folder = RunFolder::new(std::env::temp_dir().join(format!("pipe-evaluation-{}", std::process::id())));
        let mut state = RunState::new("a", "a", "process");
        state.single_mut().unwrap().attempts = (1..=3).map(|number| Attempt::new(number, 1, 1)).collect();
        let mut history = History::default();
        let step = |state: &RunState, history: &History| of_model(&folder, state, history).map(|details| details.step);
        assert_eq!(step(&state, &history), None);
        write(&folder, 1, JobFolder::EVALUATION, 4);
        write(&folder, 1, JobFolder::BEST_EVALUATION, 4);
        write(&folder, 2, JobFolder::EVALUATION, 8);
        assert_eq!(step(&state, &history), Some(8));
        std::fs::create_dir_all(folder.attempt(3).job().path()).unwrap();
        std::fs::write(folder.attempt(3).job().evaluation(), "{\"step\": ").unwrap();
        assert_eq!(step(&state, &history), Some(8));

        let eval = |step, loss| Eval { step, loss, samples: 1, ms: 0.0, scores: Scores::new() };
        history.evals = vec![eval(4, 0.5), eval(8, 0.6)];
        assert_eq!(step(&state, &history), Some(8));
        state.single_mut().unwrap().result =
            Some(RunResult { save_best: Some(Metric::loss()), ..RunResult::default() });
        assert_eq!(step(&state, &history), Some(4));
        // A file of another evaluation than the best one is not taken for it.
        history.evals.push(eval(6, 0.4));
        assert_eq!(step(&state, &history), Some(8));
        std::fs::remove_dir_all(folder.path()).unwrap();
    }
}

#[cfg(test)]
mod ranks_tests {
    use pipe_spec::event::RankUse;

    use super::*;

    #[test]
    fn of_the_last_number_of_ranks() {
        let step = |ranks: &[(u64, f64)]| Step {
            ranks: ranks.iter().map(|(peak, ms)| RankUse { peak: *peak, ms: *ms, ..RankUse::default() }).collect(),
            ..Step::default()
        };
        assert_eq!((figures(&[]), figures(&[step(&[])])), (Vec::new(), Vec::new()));
        let steps =
            [step(&[(9, 9.0)]), step(&[(1, 5.0), (4, 2.0)]), step(&[(3, 1.0), (2, 2.0)]), step(&[(2, 4.0), (1, 3.0)])];
        let ranks = figures(&steps);
        assert_eq!(ranks, [RankFigures { peak: 3, ms: 4.0 }, RankFigures { peak: 4, ms: 2.0 }]);
        assert_eq!((slowest(&ranks), slowest(&[])), (Some(0), None));
    }
}

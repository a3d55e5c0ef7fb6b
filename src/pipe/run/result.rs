//! The result of a run, from its events. Pure.
//!
//! The details of its evaluations beside their scores, from the files that its jobs wrote.
//!
//! Memory and time of each rank of a training.

use std::collections::BTreeMap;

use pipe_spec::evaluation::EvaluationDetails;
use pipe_spec::event::{Eval, Metrics, Scores, Step};
use pipe_spec::pipeline::{Metric, Task};
use pipe_spec::run::{Answer, Evaluation, JobFolder, RunResult};
use pipe_spec::{RunFolder, RunState};
use serde::Serialize;

use super::history::History;
use super::job_file;

/// The name of the training loss, for runs that are not evaluated.
const TRAINING_LOSS: &str = "loss";

/// The result of a run with these events; `known` is what was known when it began.
pub fn result(history: &History, known: &RunResult) -> RunResult {
    // An evaluation that was repeated after a resume counts once.
    let of_command: Vec<Eval> = history.metrics.iter().filter_map(eval_of_command).collect();
    let evals: BTreeMap<u64, &Eval> = history.evals.iter().chain(&of_command).map(|eval| (eval.step, eval)).collect();
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
        answer: answer(shown, history).map(|answer| Answer { trained_on: known.trains_on_evaluation, ..answer }),
        model_step: finished.and_then(|finished| finished.model_step),
        stopped_early: finished.and_then(|finished| finished.stopped_early.as_ref()).map(ToString::to_string),
        ..known.clone()
    }
}

/// How good the model is by its evaluation; without one, the loss of the training.
fn answer(eval: Option<&Eval>, history: &History) -> Option<Answer> {
    let finite = |value: &f64| value.is_finite();
    let of_eval = eval.and_then(|eval| {
        let told = eval.headline.as_ref();
        let metric = told.map_or_else(|| main_metric(eval), |headline| Metric::named(&headline.metric));
        let answer = Answer {
            value: eval.value(&metric).filter(finite)?,
            metric: metric.to_string(),
            step: eval.step,
            rows: told.map(|headline| headline.rows),
            classes: told.and_then(|headline| headline.classes),
            baseline: told.and_then(|headline| headline.baseline.clone()),
            ..Answer::default()
        };
        Some(Answer { learned: learned(&metric, &answer, eval, history), ..answer })
    });
    of_eval.or_else(|| {
        let value = history.last_loss().filter(finite)?;
        let (metric, step) = (TRAINING_LOSS.to_owned(), history.last_step()?);
        Some(Answer { metric, value, step, learned: loss_fell(history), ..Answer::default() })
    })
}

/// A classifier that does not always give the same answer has at least this correlation with the right one.
const CORRELATED: f64 = 0.1;

/// Whether the model is better than an answer that ignores the input.
fn learned(metric: &Metric, answer: &Answer, eval: &Eval, history: &History) -> Option<bool> {
    match (&answer.baseline, metric.name()) {
        _ if answer.classes == Some(1) => None,
        (Some(baseline), name) => {
            // With few rows of most classes, a good model may be right less often than one that always gives the largest.
            let correlation = eval.scores.get("mcc").filter(|_| name == Some("accuracy"));
            let correlates = correlation.is_some_and(|mcc| *mcc >= CORRELATED);
            Some(correlates || metric.is_better(answer.value, Some(baseline.value)))
        }
        (None, Some("exact_match")) => Some(answer.value > 0.0),
        (None, _) => loss_fell(history),
    }
}

/// Steps from which on the first and the last tenth can be compared.
const COMPARABLE: usize = 10;

/// Whether the training loss is lower at the end than at the start; nothing where there are few steps.
fn loss_fell(history: &History) -> Option<bool> {
    let of_command = || history.metrics.iter().filter_map(|metrics| metrics.loss());
    let losses: Vec<f64> = history.steps.iter().map(|step| step.loss).chain(of_command()).collect();
    let tenth = losses.len() / COMPARABLE;
    let mean = |losses: &[f64]| losses.iter().sum::<f64>() / losses.len() as f64;
    (tenth > 0).then(|| mean(&losses[losses.len() - tenth..]) < mean(&losses[..tenth]))
}

/// The first score of the task, else the loss. No two tasks have a score of the same name in a different order. A command may
/// have scores of its own and no loss.
fn main_metric(eval: &Eval) -> Metric {
    // Several labels a text have an exact match too, which generated texts have earlier in the list.
    let names = Metric::OF_SEVERAL[..2].iter().chain(Task::ALL.iter().flat_map(|task| task.metrics()));
    let mut metrics = names.filter(|name| **name != Metric::LOSS).map(|name| Metric::named(name));
    let own = || eval.scores.keys().next().filter(|_| !eval.loss.is_finite()).map(|name| Metric::named(name));
    metrics.find(|metric| eval.value(metric).is_some()).or_else(own).unwrap_or_else(Metric::loss)
}

/// The evaluation in the metrics that a command printed: the values whose names begin with `eval_`.
fn eval_of_command(metrics: &Metrics) -> Option<Eval> {
    let values = metrics.values.iter().filter_map(|(name, value)| Some((name.strip_prefix("eval_")?, *value)));
    let mut scores: Scores = values.map(|(name, value)| (name.to_owned(), value)).collect();
    if scores.is_empty() {
        return None;
    }
    let loss = scores.remove(Metric::LOSS).unwrap_or(f64::NAN);
    Some(Eval { step: metrics.step, loss, samples: 0, ms: 0.0, scores, headline: None })
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
    use pipe_spec::event::{BestEval, Finished, Headline};

    use super::*;

    fn eval(step: u64, loss: f64, accuracy: f64) -> Eval {
        let scores = [("accuracy".to_owned(), accuracy), ("f1".to_owned(), 0.1)].into();
        Eval { step, loss, samples: 1, ms: 0.0, headline: None, scores }
    }

    #[test]
    fn what_was_learned() {
        let steps = |losses: [f64; 2]| -> Vec<Step> {
            (1..=40).map(|step| Step { step, loss: losses[usize::from(step > 20)], ..Step::default() }).collect()
        };
        let (fell, rose) = (steps([2.0, 1.0]), steps([1.0, 2.0]));
        let score = |name: &str, value: f64, mcc: f64| {
            let scores = [(name.to_owned(), value), ("mcc".to_owned(), mcc)].into();
            Eval { scores, ..eval(40, 1.0, 0.0) }
        };
        let against = |eval: Eval, metric: &str, classes, value: f64| {
            let headline = Headline { classes, ..Headline::new(metric, 90) };
            Eval { headline: Some(headline.against("guessing", value)), ..eval }
        };
        let plain = |eval: Eval, metric: &str| Eval { headline: Some(Headline::new(metric, 32)), ..eval };
        let accuracy = |value, mcc, classes| against(score("accuracy", value, mcc), "accuracy", classes, 0.5);
        for (eval, steps, want) in [
            (accuracy(0.9, 0.8, Some(3)), &fell, Some(true)),
            (accuracy(0.9, 0.8, Some(3)), &rose, Some(true)),
            (accuracy(0.5, 0.0, Some(3)), &fell, Some(false)),
            // More of the small classes than the baseline.
            (accuracy(0.45, 0.4, Some(3)), &fell, Some(true)),
            (accuracy(1.0, 0.0, Some(1)), &fell, None),
            (against(score("mse", 0.1, 0.0), "mse", None, 1.0), &fell, Some(true)),
            (against(score("mse", 1.0, 0.9), "mse", None, 1.0), &fell, Some(false)),
            (against(score("text_recall_1", 0.1, 0.0), "text_recall_1", None, 0.1), &fell, Some(false)),
            (against(score("entity_f1", 0.0, 0.0), "entity_f1", None, 0.0), &fell, Some(false)),
            (plain(score("exact_match", 0.0, 0.0), "exact_match"), &fell, Some(false)),
            (plain(score("exact_match", 0.1, 0.0), "exact_match"), &rose, Some(true)),
            (plain(score("perplexity", 2.0, 0.0), "perplexity"), &fell, Some(true)),
            (plain(score("perplexity", 2.0, 0.0), "perplexity"), &rose, Some(false)),
        ] {
            let history = History { steps: steps.clone(), evals: vec![eval.clone()], ..History::default() };
            let answer = result(&history, &RunResult::default()).answer.unwrap();
            assert_eq!((answer.learned, answer.step), (want, 40), "{eval:?}");
        }
        let history = History { steps: rose, ..History::default() };
        let answer = result(&history, &RunResult::default()).answer.unwrap();
        assert_eq!((answer.metric.as_str(), answer.value, answer.learned), ("loss", 2.0, Some(false)));
        let old = History { evals: vec![eval(4, 0.9, 0.5)], ..History::default() };
        let answer = result(&old, &RunResult::default()).answer.unwrap();
        assert_eq!((answer.metric.as_str(), answer.rows, answer.learned), ("eval.accuracy", None, None));
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
    fn evaluations_that_a_command_printed() {
        let metrics = |step, values: &[(&str, f64)]| {
            let values = values.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect();
            Metrics { step, steps: None, values }
        };
        let printed = vec![
            metrics(4, &[("loss", 2.0), ("lr", 0.1)]),
            metrics(4, &[("eval_loss", 0.9), ("eval_accuracy", 0.5)]),
            metrics(8, &[("eval_loss", 0.7), ("eval_accuracy", 0.75)]),
            metrics(9, &[("loss", 1.0)]),
            metrics(12, &[("eval_loss", 0.8), ("eval_accuracy", 0.7)]),
        ];
        let history = History { metrics: printed, ..History::default() };
        let known = result(&history, &RunResult::default());
        assert_eq!((known.metric.as_deref(), known.value), (Some("eval.accuracy"), Some(0.7)));
        assert_eq!(steps(&known), [Some(4), Some(8), Some(12)]);
        assert_eq!(known.best.unwrap().metrics["eval.loss"], 0.7);

        let own = History { metrics: vec![metrics(1, &[("eval_bleu", 20.0)])], ..History::default() };
        let known = result(&own, &RunResult::default());
        assert_eq!((known.metric.as_deref(), known.value), (Some("eval.bleu"), Some(20.0)));
        assert!(!known.last.unwrap().metrics.contains_key("eval.loss"));
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

        let eval = |step, loss| Eval { step, loss, samples: 1, ms: 0.0, headline: None, scores: Scores::new() };
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

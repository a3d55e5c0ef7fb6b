//! What is drawn of runs: loss, learning rate, gradient norm, throughput, memory, and every metric of their evaluations.

use std::collections::{BTreeMap, BTreeSet};

use pipe_spec::event::{Eval, Step};
use pipe_spec::pipeline::Metric;
use pipe_spec::text::human_bytes;

use super::curve::{Chart, Curve, Kind, Mark};
use super::scale::Unit;
use super::thin::Point;
use crate::run::Record;

/// The colour of evaluations in the figure of the loss, in a whole line.
const EVALUATION_STYLE: usize = 25;
/// A job may report any number of metrics.
const MOST_METRICS: usize = 24;
const THROUGHPUT: &str = "throughput";
const PARTS: &str = "parts";

type Get = fn(&Step) -> f64;

struct Figure {
    key: &'static str,
    title: &'static str,
    unit: Unit,
    kind: Kind,
    get: Get,
}

const FIGURES: [Figure; 7] = [
    figure("loss", "Loss", Kind::Noisy, |step| step.loss),
    figure("lr", "Learning rate", Kind::Line, |step| step.lr),
    figure("norm", "Gradient norm", Kind::Noisy, |step| step.grad_norm),
    figure(THROUGHPUT, "Throughput", Kind::Noisy, Step::tokens_per_second),
    Figure { unit: Unit::Bytes, ..figure("memory", "Peak memory", Kind::Line, |step| step.peak as f64) },
    figure("waiting", "Waiting for data, percent of a step", Kind::Noisy, waiting),
    figure(PARTS, "Parts of a step", Kind::Noisy, |step| f64::from(step.parts)),
];

const fn figure(key: &'static str, title: &'static str, kind: Kind, get: Get) -> Figure {
    Figure { key, title, unit: Unit::Number, kind, get }
}

fn waiting(step: &Step) -> f64 {
    if step.ms > 0.0 { step.data_ms / step.ms * 100.0 } else { f64::NAN }
}

/// The figures that show something: parts only where they change from step to step.
fn drawn(runs: &[&Record]) -> impl Iterator<Item = &'static Figure> {
    let fills = runs.iter().any(|run| run.history.steps.iter().any(|step| step.filled.is_some()));
    FIGURES.iter().filter(move |figure| fills || figure.key != PARTS)
}

/// The figures of one run, with its attempts.
pub fn of_one(run: &Record) -> Vec<Chart> {
    let draw = |figure: &Figure| {
        let mut curves =
            vec![Curve { name: "train".to_owned(), points: points(run, figure.get), style: 0, kind: figure.kind }];
        if figure.key == "loss" && !run.history.evals.is_empty() {
            let points = evals(run, |eval| Some(eval.loss));
            curves.push(Curve { name: "eval".to_owned(), points, style: 1, kind: Kind::Dots });
        }
        chart(figure, curves, &[run], attempts(run, None))
    };
    drawn(&[run]).map(draw).collect()
}

/// The figures of several runs, one over the other.
pub fn of_all(runs: &[Record]) -> Vec<Chart> {
    let every: Vec<&Record> = runs.iter().collect();
    let draw = |figure: &Figure| {
        let mut curves = Vec::new();
        for (style, run) in runs.iter().enumerate() {
            curves.push(Curve { name: run.id.clone(), points: points(run, figure.get), style, kind: figure.kind });
            if figure.key == "loss" && !run.history.evals.is_empty() {
                let points = evals(run, |eval| Some(eval.loss));
                curves.push(Curve { name: format!("{}, eval", run.id), points, style, kind: Kind::Dots });
            }
        }
        // That a run began needs no mark; that it began again does.
        let retried = |run: &Record| run.state.as_ref().is_some_and(|state| state.attempts().len() > 1);
        let marks = runs.iter().enumerate().filter(|(_, run)| retried(run));
        chart(figure, curves, &every, marks.flat_map(|(style, run)| attempts(run, Some(style))).collect())
    };
    drawn(&every).map(draw).collect()
}

/// A figure for each metric of the evaluations, of one run or of several.
pub fn of_metrics(runs: &[Record]) -> Vec<Chart> {
    let evaluations = runs.iter().flat_map(|run| &run.history.evals);
    let names: BTreeSet<&str> = evaluations.flat_map(Eval::shown_scores).map(|(name, _)| name).collect();
    let draw = |name: &&str| {
        let curve = |(style, run): (usize, &Record)| {
            let points = evals(run, |eval| eval.scores.get(*name).copied());
            let style = if runs.len() == 1 { EVALUATION_STYLE } else { style };
            Curve { name: run.id.clone(), points, style, kind: Kind::Marked }
        };
        let curves: Vec<Curve> = runs.iter().enumerate().map(curve).collect();
        let is_share = curves.iter().flat_map(|curve| &curve.points).all(|point| (-1.0..=1.0).contains(&point.1));
        Chart {
            key: format!("metric-{}", plain(name)),
            title: metric_title(name),
            unit: Unit::Number,
            curves,
            // Shares are easier to compare on one scale.
            top: if is_share && !Metric::less_is_better(name) { 1.0 } else { 0.0 },
            levels: Vec::new(),
            marks: Vec::new(),
        }
    };
    names.iter().take(MOST_METRICS).map(draw).collect()
}

/// A figure for each metric of commands, those of evaluations last.
pub fn of_commands(runs: &[Record]) -> Vec<Chart> {
    let all = runs.iter().flat_map(|run| &run.history.metrics).flat_map(|metrics| metrics.values.keys());
    let names: BTreeSet<(bool, &String)> = all.map(|name| (name.starts_with("eval_"), name)).collect();
    let draw = |(_, name): &(bool, &String)| {
        let curve = |(style, run): (usize, &Record)| {
            // A step that is done again says it again: the last time counts.
            let values =
                run.history.metrics.iter().filter_map(|metrics| Some((metrics.step, *metrics.values.get(*name)?)));
            let by_step: BTreeMap<u64, f64> = values.collect();
            let points = by_step.into_iter().map(|(step, value)| (step as f64, value)).filter_map(drawable).collect();
            Curve { name: run.id.clone(), points, style, kind: Kind::Line }
        };
        Chart {
            key: format!("command-{}", plain(name)),
            title: metric_title(name),
            unit: Unit::Number,
            curves: runs.iter().enumerate().map(curve).collect(),
            top: 0.0,
            levels: Vec::new(),
            marks: if let [run] = runs { attempts(run, None) } else { Vec::new() },
        }
    };
    names.iter().take(MOST_METRICS).map(draw).collect()
}

/// The name of a metric as papers write it.
fn metric_title(name: &str) -> String {
    match name {
        "mcc" | "mse" => return name.to_uppercase(),
        "rouge_l" => return "ROUGE-L".to_owned(),
        "lr" => return "Learning rate".to_owned(),
        "f1" | "macro_f1" => return name.replace("macro_", "Macro ").replace("f1", "F1"),
        _ => {}
    }
    let words = name.replace("recall_", "recall@").replace('_', " ");
    let mut letters = words.chars();
    letters.next().map_or(String::new(), |first| first.to_uppercase().chain(letters).collect())
}

/// What may be part of an id.
fn plain(name: &str) -> String {
    name.chars().map(|letter| if letter.is_ascii_alphanumeric() { letter } else { '-' }).collect()
}

fn chart(figure: &Figure, curves: Vec<Curve>, runs: &[&Record], marks: Vec<Mark>) -> Chart {
    let mut capacities: Vec<u64> = runs.iter().filter_map(|run| run.history.capacity()).collect();
    capacities.sort_unstable();
    capacities.dedup();
    let levels = capacities
        .iter()
        .filter(|_| figure.key == "memory")
        .map(|bytes| (format!("capacity {}", human_bytes(*bytes)), *bytes as f64));
    let levels = levels.collect();
    let Figure { key, title, unit, .. } = *figure;
    let title = if key == THROUGHPUT { format!("{title}, {} per second", counted(runs)) } else { title.to_owned() };
    Chart { key: key.to_owned(), title, unit, curves, top: 0.0, levels, marks }
}

/// What the speed of all runs is counted in.
fn counted(runs: &[&Record]) -> &'static str {
    let mut units: Vec<&str> = runs.iter().map(|run| run.unit().name()).collect();
    units.dedup();
    match units[..] {
        [unit] => unit,
        _ => "tokens or samples",
    }
}

fn points(run: &Record, get: Get) -> Vec<Point> {
    let points = run.history.steps.iter().map(|step| (step.step as f64, get(step)));
    points.filter_map(drawable).collect()
}

fn evals(run: &Record, value: impl Fn(&Eval) -> Option<f64>) -> Vec<Point> {
    // A step that is done again is evaluated again: the last evaluation counts.
    let values = run.history.evals.iter().filter_map(|eval| Some((eval.step, value(eval)?)));
    let by_step: BTreeMap<u64, f64> = values.collect();
    by_step.into_iter().map(|(step, loss)| (step as f64, loss)).filter_map(drawable).collect()
}

/// A point whose height an axis can have: numbers at the ends of what a float holds have no ticks.
fn drawable((step, height): Point) -> Option<Point> {
    let height = if height.abs() < 1e-100 { 0.0 } else { height };
    (height.abs() < 1e100).then_some((step, height))
}

/// Where attempts begin; those that begin at the same step share a mark. With `style` it is one run of several.
fn attempts(run: &Record, style: Option<usize>) -> Vec<Mark> {
    let mut begins: BTreeMap<u32, u64> = BTreeMap::new();
    let mut done = 0;
    for attempt in run.state.iter().flat_map(|state| state.attempts()) {
        begins.insert(attempt.number, attempt.first_step.map_or(done, |step| step.saturating_sub(1)));
        done = attempt.last_step.unwrap_or(done);
    }
    for (number, started) in &run.history.started {
        begins.insert(*number, started.resumed_from.unwrap_or(0));
    }
    let mut at: BTreeMap<u64, Vec<u32>> = BTreeMap::new();
    begins.into_iter().for_each(|(number, step)| at.entry(step).or_default().push(number));
    let of = |style| (run.id.clone(), style);
    let mark =
        |(step, numbers): (u64, Vec<u32>)| Mark { step: step as f64, name: together(&numbers), run: style.map(of) };
    at.into_iter().map(mark).collect()
}

/// `2`, `1, 2`, `1-4`.
fn together(numbers: &[u32]) -> String {
    match numbers {
        [first, .., last] if numbers.len() > 2 && (last - first) as usize == numbers.len() - 1 => {
            format!("{first}-{last}")
        }
        _ => numbers.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heights_that_can_be_drawn() {
        for (height, want) in [(1.5, Some(1.5)), (1e-320, Some(0.0)), (f64::MAX, None), (f64::NAN, None)] {
            assert_eq!(drawable((1.0, height)).map(|point| point.1), want, "{height}");
        }
    }

    #[test]
    fn titles_of_metrics() {
        for (name, want) in [
            ("accuracy", "Accuracy"),
            ("macro_f1", "Macro F1"),
            ("mcc", "MCC"),
            ("rouge_l", "ROUGE-L"),
            ("lr", "Learning rate"),
            ("text_recall_5", "Text recall@5"),
            ("", ""),
        ] {
            assert_eq!(metric_title(name), want);
        }
        assert_eq!(crate::report::html::curve::style(EVALUATION_STYLE), "c1 d0");
    }

    #[test]
    fn attempts_at_one_step() {
        for (numbers, want) in [(&[2][..], "2"), (&[1, 2], "1, 2"), (&[1, 2, 3], "1-3"), (&[1, 2, 5], "1, 2, 5")] {
            assert_eq!(together(numbers), want);
        }
    }
}

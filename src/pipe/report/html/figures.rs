//! The charts of runs: loss, every metric of their evaluations, learning rate, gradient norm, throughput, and memory as `pipe plan`
//! predicts it and as it was measured.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::num::NonZeroU32;

use pipe_spec::Variables;
use pipe_spec::event::{Eval, Step};
use pipe_spec::pipeline::{BatchSetting, Limit, Metric};
use pipe_spec::text::{ByteSize, count, human_bytes};

use super::axis::Unit;
use super::chart::Point;
use super::curve::{AttemptLine, Chart, Curve, Look, View};
use super::markup::{escape, table};
use crate::engine::registry;
use crate::fit::{Forecast, Forecaster};
use crate::run::Record;

/// The colour of evaluations in the figure of the loss, in a whole line.
const EVALUATION_STYLE: usize = 25;
/// A job may report any number of metrics.
const MOST_METRICS: usize = 24;
const THROUGHPUT: &str = "throughput";
const WAITING: &str = "waiting";
/// The share of the capacity from which on it is drawn.
const NEAR: f64 = 0.25;
const PARTS: &str = "parts";

type Get = fn(&Step) -> f64;

struct Figure {
    key: &'static str,
    title: &'static str,
    unit: Unit,
    look: Look,
    get: Get,
}

const FIGURES: [Figure; 7] = [
    figure("loss", "Loss", Look::Noisy, |step| step.loss),
    figure("lr", "Learning rate", Look::Line, |step| step.lr),
    figure("norm", "Gradient norm", Look::Noisy, |step| step.grad_norm),
    figure(THROUGHPUT, "Throughput", Look::Noisy, Step::tokens_per_second),
    Figure { unit: Unit::Bytes, ..figure("memory", "Peak memory", Look::Line, |step| step.peak as f64) },
    figure(WAITING, "Waiting for data, percent of a step", Look::Noisy, waiting),
    figure(PARTS, "Parts of a step", Look::Noisy, |step| f64::from(step.parts)),
];

const fn figure(key: &'static str, title: &'static str, look: Look, get: Get) -> Figure {
    Figure { key, title, unit: Unit::Number, look, get }
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
            vec![Curve { name: "train".to_owned(), points: points(run, figure.get), style: 0, look: figure.look }];
        if figure.key == "loss" && !run.history.evals.is_empty() {
            let points = evals(run, |eval| Some(eval.loss));
            curves.push(Curve { name: "eval".to_owned(), points, style: 1, look: Look::Dots });
        }
        chart(figure, curves, &[run], attempt_lines(run, None))
    };
    drawn(&[run]).map(draw).collect()
}

/// The figures of several runs, one over the other.
pub fn of_all(runs: &[Record]) -> Vec<Chart> {
    let every: Vec<&Record> = runs.iter().collect();
    let draw = |figure: &Figure| {
        let mut curves = Vec::new();
        for (style, run) in runs.iter().enumerate() {
            curves.push(Curve { name: run.id.clone(), points: points(run, figure.get), style, look: figure.look });
            if figure.key == "loss" && !run.history.evals.is_empty() {
                let points = evals(run, |eval| Some(eval.loss));
                curves.push(Curve { name: format!("{}, eval", run.id), points, style, look: Look::Dots });
            }
        }
        // That a run began needs no mark; that it began again does.
        let retried = |run: &Record| run.state.as_ref().is_some_and(|state| state.attempts().len() > 1);
        let marks = runs.iter().enumerate().filter(|(_, run)| retried(run));
        chart(figure, curves, &every, marks.flat_map(|(style, run)| attempt_lines(run, Some(style))).collect())
    };
    drawn(&every).map(draw).collect()
}

/// The section of one run: the loss large with the scores beside it, then curves that change; the others are folded away.
pub fn section(run: &Record, view: &View) -> String {
    let mut charts = charts(run).into_iter();
    let (first, rest) = (charts.next(), charts.collect::<Vec<_>>());
    let is_smoothed = first.iter().chain(&rest).any(|(chart, _)| chart.is_smoothed(view));
    let smoothing = is_smoothed.then(|| view.smoothing_note());
    let first = first.map_or(String::new(), |(chart, _)| chart.draw(view));
    let (folded, shown): (Vec<_>, Vec<_>) = rest.iter().partition(|(_, is_folded)| *is_folded);
    let draw = |charts: &[&(Chart, bool)]| -> String {
        let charts: String = charts.iter().map(|(chart, _)| chart.draw(view)).collect();
        if charts.is_empty() { charts } else { format!("<div class=\"figures small\">{charts}</div>") }
    };
    let summary = format!("<summary>{}</summary>", count(folded.len(), "more curve"));
    let folded =
        if folded.is_empty() { String::new() } else { format!("<details>{summary}{}</details>", draw(&folded)) };
    let (legend, scores, shown) = (legend(run, smoothing), super::run::scores(run), draw(&shown));
    format!(
        "<section id=\"curves\"><h2>Curves</h2>{legend}<div class=\"main\">{first}{scores}</div>{shown}{folded}</section>\n"
    )
}

/// The charts of a run, the most important first, each with whether it is folded away.
fn charts(run: &Record) -> Vec<(Chart, bool)> {
    let runs = std::slice::from_ref(run);
    let (commands, mut own) = (of_commands(runs), of_one(run));
    if run.history.steps.is_empty() {
        own.truncate(usize::from(commands.is_empty()));
    }
    let at = own.len().min(1);
    own.splice(at..at, of_metrics(runs));
    let own = own.into_iter().map(|chart| (chart, 0));
    let fold = |(chart, rank): (Chart, u8)| {
        let is_folded = rank == CLOCK || chart.is_flat() || is_idle(&chart);
        (chart, is_folded)
    };
    commands.into_iter().chain(own).map(fold).collect()
}

/// The meaning of what is drawn.
fn legend(run: &Record, smoothing: Option<String>) -> String {
    let eval = "<span class=\"curve c1\"><svg viewBox=\"0 0 14 10\" aria-hidden=\"true\">\
                <circle cx=\"7\" cy=\"5\" r=\"3.5\"/></svg> evaluation</span>";
    let retried = run.state.as_ref().is_some_and(|state| state.attempts().len() > 1);
    let mut keys: Vec<&str> = Vec::new();
    let smoothing = smoothing.as_deref();
    keys.extend((!run.history.evals.is_empty()).then_some(eval));
    keys.extend(smoothing);
    keys.extend(retried.then_some("dotted: start of an attempt, with its number"));
    if keys.is_empty() { String::new() } else { format!("<p class=\"note\">{}</p>", keys.join(" &middot; ")) }
}

/// Percent of a step that nobody notices.
const IDLE: f64 = 5.0;

/// Whether it shows that nothing waits for data.
fn is_idle(chart: &Chart) -> bool {
    let mean = |curve: &Curve| curve.points.iter().map(|point| point.1).sum::<f64>() / curve.points.len().max(1) as f64;
    chart.key == WAITING && chart.curves.iter().all(|curve| mean(curve) < IDLE)
}

/// The section with a chart for each metric of the evaluations of several runs; empty where there are none.
pub fn metrics(runs: &[Record], view: &View) -> String {
    let charts: String = of_metrics(runs).iter().map(|chart| chart.draw(view)).collect();
    if charts.is_empty() {
        return charts;
    }
    format!(
        "<section id=\"metrics\"><h2>Evaluation metrics</h2><div class=\"figures small\">{charts}</div></section>\n"
    )
}

/// A chart for each metric of the evaluations, of one run or of several.
fn of_metrics(runs: &[Record]) -> Vec<Chart> {
    let evaluations = || runs.iter().flat_map(|run| &run.history.evals);
    let names: BTreeSet<&str> = evaluations().flat_map(Eval::shown_scores).map(|(name, _)| name).collect();
    let mut names: Vec<&str> = names.into_iter().collect();
    // The one that says most comes first.
    let first = evaluations().last().and_then(|eval| eval.headline.as_ref()).map(|headline| headline.metric.as_str());
    names.sort_by_key(|name| Some(*name) != first);
    let draw = |name: &&str| {
        let curve = |(style, run): (usize, &Record)| {
            let points = evals(run, |eval| eval.scores.get(*name).copied());
            let style = if runs.len() == 1 { EVALUATION_STYLE } else { style };
            Curve { name: run.id.clone(), points, style, look: Look::Marked }
        };
        Chart {
            key: format!("metric-{}", plain(name)),
            title: metric_title(name),
            unit: Unit::Number,
            curves: runs.iter().enumerate().map(curve).collect(),
            levels: Vec::new(),
            attempts: Vec::new(),
        }
    };
    names.iter().take(MOST_METRICS).map(draw).collect()
}

/// How early a metric of a command is shown: its loss, those of its evaluations, the others, and at last those about the clock.
fn rank(name: &str) -> u8 {
    let is_clock =
        ["runtime", "per_second", "epoch", "flos", "time", "tokens_seen"].iter().any(|word| name.contains(word));
    match name {
        _ if is_clock => CLOCK,
        "loss" => 0,
        "eval_loss" | "val_loss" => 1,
        _ if name.starts_with("eval_") || name.starts_with("val_") => 2,
        _ if name.contains("loss") => 3,
        _ => 4,
    }
}

const CLOCK: u8 = 5;

/// A figure for each metric of commands, with its rank.
pub fn of_commands(runs: &[Record]) -> Vec<(Chart, u8)> {
    let all = runs.iter().flat_map(|run| &run.history.metrics).flat_map(|metrics| metrics.values.keys());
    let names: BTreeSet<(u8, &String)> = all.map(|name| (rank(name), name)).collect();
    let draw = |(rank, name): &(u8, &String)| {
        let curve = |(style, run): (usize, &Record)| {
            // A step that is done again says it again: the last time counts.
            let values =
                run.history.metrics.iter().filter_map(|metrics| Some((metrics.step, *metrics.values.get(*name)?)));
            let by_step: BTreeMap<u64, f64> = values.collect();
            let points = by_step.into_iter().map(|(step, value)| (step as f64, value)).filter_map(drawable).collect();
            Curve { name: run.id.clone(), points, style, look: if *rank == 0 { Look::Noisy } else { Look::Line } }
        };
        let chart = Chart {
            key: format!("command-{}", plain(name)),
            title: metric_title(name),
            unit: Unit::Number,
            curves: runs.iter().enumerate().map(curve).collect(),
            levels: Vec::new(),
            attempts: if let [run] = runs { attempt_lines(run, None) } else { Vec::new() },
        };
        (chart, *rank)
    };
    names.iter().take(MOST_METRICS).map(draw).collect()
}

/// The name of a metric as papers write it.
fn metric_title(name: &str) -> String {
    let words = Metric::title(name);
    let mut letters = words.chars();
    letters.next().map_or(String::new(), |first| first.to_uppercase().chain(letters).collect())
}

/// The name with letters and digits that an id may have.
fn plain(name: &str) -> String {
    name.chars().map(|letter| if letter.is_ascii_alphanumeric() { letter } else { '-' }).collect()
}

fn chart(figure: &Figure, curves: Vec<Curve>, runs: &[&Record], attempts: Vec<AttemptLine>) -> Chart {
    let mut capacities: Vec<u64> = runs.iter().filter_map(|run| run.history.capacity()).collect();
    capacities.sort_unstable();
    capacities.dedup();
    let capacity = |bytes: &u64| (format!("capacity: {}", human_bytes(*bytes)), *bytes as f64);
    let mut levels: Vec<(String, f64)> = capacities.iter().filter(|_| figure.key == "memory").map(capacity).collect();
    let Figure { key, title, unit, .. } = *figure;
    let mut title = if key == THROUGHPUT { format!("{title}, {} per second", counted(runs)) } else { title.to_owned() };
    let highest = curves.iter().flat_map(|curve| &curve.points).map(|point| point.1).fold(0.0, f64::max);
    // A line far above the curve would press it flat.
    if let [(name, bytes)] = &levels[..]
        && highest < bytes * NEAR
    {
        title = format!("{title}; {name}");
        levels.clear();
    }
    Chart { key: key.to_owned(), title, unit, curves, levels, attempts }
}

/// The unit in which the speed of all runs is counted.
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

/// Where attempts begin, if there are several; those that begin at the same step share a mark. With `style` it is one run of several.
fn attempt_lines(run: &Record, style: Option<usize>) -> Vec<AttemptLine> {
    let mut begins: BTreeMap<u32, u64> = BTreeMap::new();
    let mut done = 0;
    for attempt in run.state.iter().flat_map(|state| state.attempts()) {
        begins.insert(attempt.number, attempt.figures.first_step.map_or(done, |step| step.saturating_sub(1)));
        done = attempt.figures.last_step.unwrap_or(done);
    }
    for (number, started) in &run.history.started {
        begins.insert(*number, started.resumed_from.unwrap_or(0));
    }
    if begins.len() < 2 {
        return Vec::new();
    }
    let mut at: BTreeMap<u64, Vec<u32>> = BTreeMap::new();
    begins.into_iter().for_each(|(number, step)| at.entry(step).or_default().push(number));
    let of = |style| (run.id.clone(), style);
    let mark = |(step, numbers): (u64, Vec<u32>)| AttemptLine {
        step: step as f64,
        name: together(&numbers),
        run: style.map(of),
    };
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

/// The section; nothing where no prediction can be made. On the CPU none is: what `pipe plan` predicts is tensors on a card,
/// and what is measured is the whole process.
pub fn memory_section(run: &Record, variables: &Variables) -> String {
    if on_cpu(run) {
        return String::new();
    }
    let Some(forecast) = forecast(run, variables) else { return String::new() };
    let measured = run.peak_memory();
    let capacity = run.history.capacity();
    let mut html = "<section id=\"memory\"><h2>Memory, predicted and measured</h2>".to_owned();
    let ranks = match forecast.ranks {
        1 => String::new(),
        ranks => format!(" &times; {ranks} ranks, on each card"),
    };
    let batch = format!("batch {} &times; accum {}{ranks}", forecast.batch, forecast.accum);
    let limit =
        capacity.map_or(String::new(), |bytes| format!(" The dashed line is the capacity, {}.", human_bytes(bytes)));
    let moment = escape(&forecast.moment);
    write!(html, "<p>What <code>pipe plan</code> predicts for {batch}; peak memory is in the {moment}.{limit}</p>")
        .ok();
    html.push_str(&bars(&forecast, measured, capacity));
    let mut rows: Vec<Vec<String>> =
        parts(&forecast).iter().enumerate().map(|(index, (name, bytes))| row(index, name, *bytes)).collect();
    rows.push(vec!["<b>predicted peak</b>".to_owned(), format!("<b>{}</b>", human_bytes(forecast.allocated))]);
    if let Some(measured) = measured {
        let off = (measured as f64 / forecast.allocated.max(1) as f64 - 1.0) * 100.0;
        let off = if off.abs() < 1000.0 { format!(" ({off:+.1}%)") } else { String::new() };
        rows.push(vec!["<b>measured peak</b>".to_owned(), format!("<b>{}</b>{off}", human_bytes(measured))]);
    }
    html.push_str(&table(&["part", "memory"], &rows));
    for note in notes(run, &forecast) {
        write!(html, "<p class=\"note\">{}</p>", escape(&note)).ok();
    }
    html.push_str("</section>\n");
    html
}

/// The forecast for the batch that the run ended with.
fn forecast(run: &Record, variables: &Variables) -> Option<Forecast> {
    let mut pipeline = registry::parse_pipeline(run.resolved.as_ref()?, &[], variables).ok()?;
    let training = pipeline.training_mut()?;
    let config = training.model.config.clone().or_else(|| run.config.clone())?;
    let last = run.state.as_ref().and_then(|state| state.attempts().last());
    if let Some(batch) = last.and_then(|attempt| NonZeroU32::new(attempt.batch)) {
        training.train.batch = BatchSetting::Fixed(batch);
    }
    // `checkpointing: auto` depends on the capacity.
    training.memory.limit = run.history.capacity().map(|bytes| Limit::Size(ByteSize(bytes)));
    let ranks = run.history.started.last().map_or(1, |(_, started)| started.ranks.max(1));
    Forecaster::new(training, &config).with_ranks(ranks).forecast(None).ok()
}

fn parts(forecast: &Forecast) -> [(&'static str, u64); 6] {
    let parts = &forecast.breakdown;
    [
        ("weights", parts.weights),
        ("gradients", parts.gradients),
        ("optimizer", parts.optimizer),
        ("activations", parts.activations),
        ("logits", parts.logits),
        ("workspace", parts.workspace),
    ]
}

fn row(index: usize, name: &str, bytes: u64) -> Vec<String> {
    vec![format!("<span class=\"swatch f{index}\"></span>{name}"), human_bytes(bytes)]
}

/// Two bars, one made of parts, and a line where the device ends.
fn bars(forecast: &Forecast, measured: Option<u64>, capacity: Option<u64>) -> String {
    const LEFT: f64 = 84.0;
    const WIDTH: f64 = 640.0 - LEFT - 6.0;
    let longest = [forecast.allocated, measured.unwrap_or(0), capacity.unwrap_or(0)].into_iter().max().unwrap_or(0);
    let wide = |bytes: u64| bytes as f64 / longest.max(1) as f64 * WIDTH;
    let mut svg = "<svg class=\"bars\" viewBox=\"0 0 640 86\" role=\"img\">".to_owned();
    svg.push_str("<title>Predicted and measured peak memory</title>");
    svg.push_str("<text class=\"end\" x=\"76\" y=\"27\">predicted</text>");
    let mut x = LEFT;
    for (index, (name, bytes)) in parts(forecast).iter().enumerate() {
        let width = wide(*bytes);
        write!(svg, "<rect class=\"f{index}\" x=\"{x:.1}\" y=\"10\" width=\"{width:.1}\" height=\"26\">").ok();
        write!(svg, "<title>{name}: {}</title></rect>", human_bytes(*bytes)).ok();
        x += width;
    }
    if let Some(measured) = measured {
        let width = wide(measured);
        svg.push_str("<text class=\"end\" x=\"76\" y=\"65\">measured</text>");
        write!(svg, "<rect class=\"measured\" x=\"{LEFT}\" y=\"48\" width=\"{width:.1}\" height=\"26\">").ok();
        write!(svg, "<title>measured: {}</title></rect>", human_bytes(measured)).ok();
    }
    if let Some(capacity) = capacity {
        let x = LEFT + wide(capacity);
        write!(svg, "<g class=\"level\"><title>capacity: {}</title>", human_bytes(capacity)).ok();
        write!(svg, "<path d=\"M{x:.1} 2V82\"/></g>").ok();
    }
    svg.push_str("</svg>");
    svg
}

fn notes(run: &Record, forecast: &Forecast) -> Vec<String> {
    let context = human_bytes(forecast.breakdown.context);
    let mut notes = vec![format!(
        "Both are what torch's allocator hands out; the process holds about {context} of the card beside it."
    )];
    let changed = run.state.iter().flat_map(|state| state.attempts().last()).flat_map(|attempt| &attempt.changes);
    let changed: Vec<&str> = changed.map(String::as_str).collect();
    if !changed.is_empty() {
        notes.push(format!(
            "Predicted for the pipeline as it was asked for; the run had changed: {}.",
            changed.join(", ")
        ));
    }
    notes.extend(forecast.notes.iter().map(|note| format!("Note: {note}.")));
    notes
}

fn on_cpu(run: &Record) -> bool {
    run.history.started.last().is_some_and(|(_, started)| started.device == "cpu")
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
            ("mse", "Mean squared error"),
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
    fn metrics_of_commands_have_an_order() {
        let mut names = ["epoch", "eval_accuracy", "eval_loss", "eval_runtime", "grad_norm", "loss", "train_loss"];
        names.sort_by_key(|name| rank(name));
        let want = ["loss", "eval_loss", "eval_accuracy", "train_loss", "grad_norm", "epoch", "eval_runtime"];
        assert_eq!(names, want);
    }

    #[test]
    fn attempts_at_one_step() {
        for (numbers, want) in [(&[2][..], "2"), (&[1, 2], "1, 2"), (&[1, 2, 3], "1-3"), (&[1, 2, 5], "1, 2, 5")] {
            assert_eq!(together(numbers), want);
        }
    }
}

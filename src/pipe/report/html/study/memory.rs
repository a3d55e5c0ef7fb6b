//! Peak memory by batch, measured and predicted, with the capacity.

use std::fmt::Write;

use pipe_search::{Domain, Trial};
use pipe_spec::text::human_bytes;
use serde_json::Value;

use super::StudyPage;
use super::ranking::{Outcome, attribute, was_retried};
use crate::report::html::axis::{Axis, Unit, usable};
use crate::report::html::chart::{Frame, Mark, Series, Shape, figure as drawing, key, legend};
use crate::report::html::markup::{escape, short, title};

/// Trials that are drawn.
const MOST: usize = 1000;
/// Lines of different capacities.
const MOST_LINES: usize = 3;
/// A prediction above so many times the capacity is drawn at the edge.
const HIGHEST: f64 = 1.6;

struct Point<'a> {
    trial: &'a Trial,
    x: f64,
    bytes: f64,
    is_measured: bool,
}

/// A peak below this share of the capacity decides nothing.
const NEAR: f64 = 0.25;

/// Nothing where no trial knows its memory or comes near the capacity, or nothing that it could depend on.
pub fn figure(page: &StudyPage<'_>, parameters: &[(String, Domain)]) -> String {
    let Some(name) = cause(parameters) else { return String::new() };
    let all: Vec<Point<'_>> = page.trials.iter().filter_map(|trial| point(trial, name)).collect();
    if all.is_empty() {
        return String::new();
    }
    let stride = all.len().div_ceil(MOST);
    let points: Vec<&Point<'_>> = all.iter().step_by(stride).collect();
    let capacities = capacities(page.trials);
    let highest = all.iter().map(|point| point.bytes).fold(0.0, f64::max);
    if capacities.last().is_some_and(|capacity| highest < capacity * NEAR) {
        return String::new();
    }
    let frame = Frame { x: horizontal(&all), y: vertical(&all, &capacities), name: name.to_owned(), lane: false };
    let series = |shape: Shape, class: &'static str, wanted: &dyn Fn(&Point<'_>) -> bool| {
        let marks = points.iter().filter(|point| wanted(point)).map(|point| mark(&frame, point));
        Series::new(shape, class, marks.collect())
    };
    let is_infeasible = |point: &Point<'_>| Outcome::of(point.trial) == Outcome::Infeasible;
    let measured = series(Shape::Dot, "complete", &|point| point.is_measured && !is_infeasible(point));
    let over = series(Shape::Dot, "bad", &|point| point.is_measured && is_infeasible(point));
    let predicted = series(Shape::Ring, "complete", &|point| !point.is_measured && !is_infeasible(point));
    let infeasible = series(Shape::Ring, "bad", &|point| !point.is_measured && is_infeasible(point));
    let mut svg = String::new();
    frame.axes(&mut svg);
    for capacity in &capacities {
        frame.level(&mut svg, &format!("capacity: {}", human_bytes(*capacity as u64)), *capacity);
    }
    let every = [&predicted, &infeasible, &over, &measured];
    every.iter().for_each(|series| series.draw(&mut svg));
    let retried: Vec<&&Point<'_>> = points.iter().filter(|point| was_retried(point.trial)).collect();
    for point in &retried {
        let mark = mark(&frame, point);
        write!(svg, "<circle class=\"again\" cx=\"{:.1}\" cy=\"{:.1}\" r=\"7\"/>", mark.x, mark.y).ok();
    }
    let mut note = legend(&[
        (&measured, "measured"),
        (&over, "measured, outside a constraint"),
        (&predicted, "predicted"),
        (&infeasible, "predicted, infeasible"),
    ]);
    if !retried.is_empty() {
        let ring = "<circle class=\"again\" cx=\"7\" cy=\"7\" r=\"6\"/>";
        write!(note, " {}", key(ring, "retried after running out of memory")).ok();
    }
    if every.iter().flat_map(|series| &series.marks).any(|mark| mark.beyond.1 > 0) {
        note.push_str(" Triangles at the edge: more than the axis shows.");
    }
    if points.len() < all.len() {
        write!(note, " Drawn: {} of {} trials, an even selection.", points.len(), all.len()).ok();
    }
    let caption = format!("Peak memory by {}", title(name));
    let label = format!("Peak memory of each trial by {}, and the capacity", title(name));
    drawing("memory", &caption, &label, &svg, &note)
}

/// The parameter on which memory depends most: the batch, or else the first parameter that is a number.
fn cause(parameters: &[(String, Domain)]) -> Option<&str> {
    let is_number = |domain: &Domain| match domain {
        Domain::Choices(values) => values.iter().all(Value::is_number),
        _ => true,
    };
    let numbers = || parameters.iter().filter(|(_, domain)| is_number(domain)).map(|(name, _)| name.as_str());
    let batch =
        numbers().find(|name| *name == "train.batch").or_else(|| numbers().find(|name| name.ends_with("batch")));
    batch.or_else(|| numbers().next())
}

fn point<'a>(trial: &'a Trial, name: &str) -> Option<Point<'a>> {
    let x = trial.point.get(name).and_then(Value::as_f64).and_then(usable)?;
    let measured = attribute(trial, "peak_memory");
    let bytes = measured.or_else(|| attribute(trial, "predicted_peak"))?;
    Some(Point { trial, x, bytes, is_measured: measured.is_some() })
}

/// The different capacities, the largest first; as text they differ too.
fn capacities(trials: &[Trial]) -> Vec<f64> {
    let mut all: Vec<f64> =
        trials.iter().filter_map(|trial| attribute(trial, "capacity")).filter(|bytes| *bytes > 0.0).collect();
    all.sort_by(|a, b| b.total_cmp(a));
    all.dedup_by_key(|bytes| human_bytes(*bytes as u64));
    all.truncate(MOST_LINES);
    all
}

fn horizontal(points: &[Point<'_>]) -> Axis {
    let values: Vec<f64> = points.iter().map(|point| point.x).collect();
    Axis::numbers(&values)
}

fn vertical(points: &[Point<'_>], capacities: &[f64]) -> Axis {
    let capacity = capacities.first().copied();
    let highest = |bytes: f64, is_measured: bool| match capacity {
        Some(capacity) if !is_measured => bytes.min(capacity * HIGHEST),
        _ => bytes,
    };
    let top = points.iter().map(|point| highest(point.bytes, point.is_measured)).fold(0.0, f64::max);
    Axis::around(0.0, top.max(capacity.unwrap_or(0.0)).max(1.0), Unit::Bytes)
}

fn mark(frame: &Frame, point: &Point<'_>) -> Mark {
    let kind = if point.is_measured { "measured" } else { "predicted" };
    let again = if was_retried(point.trial) {
        format!(", {} attempts", attribute(point.trial, "attempts").unwrap_or(0.0))
    } else {
        String::new()
    };
    let Point { trial, x, bytes, .. } = point;
    let (size, outcome) = (human_bytes(*bytes as u64), Outcome::of(trial).name());
    let tip = format!("trial {}, {outcome}: {size} {kind}, {} {}{again}", trial.number, escape(&frame.name), short(*x));
    frame.mark(frame.x.at(*x), *bytes, tip)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::html::study::parameters;
    use crate::report::html::study::samples::{Sample, infeasible, trial};
    use serde_json::json;

    #[test]
    fn measured_predicted_and_the_capacity() {
        let mut trials = vec![trial(0, 0.5), trial(1, 0.5), trial(2, 0.5), infeasible(6)];
        trials[0].user_attrs.insert("peak_memory".to_owned(), json!(8_u64 << 30));
        trials[1].user_attrs =
            [("predicted_peak".to_owned(), json!(9_u64 << 30)), ("attempts".to_owned(), json!(2))].into();
        let sample = Sample::of(trials);
        let page = sample.page();
        let html = figure(&page, &parameters(&page));
        let drawing = html.split("</svg>").next().unwrap_or_default();
        assert_eq!(drawing.matches("<circle").count(), 3, "{drawing}");
        assert_eq!(drawing.matches("h8l-4 -7z").count(), 1, "beyond: {drawing}");
        assert!(drawing.contains("capacity: 24.0 GiB") && drawing.contains("class=\"again\""), "{drawing}");
        assert!(html.contains("Peak memory by train.batch") && html.contains("9.0 GiB predicted"), "{html}");
        assert!(drawing.contains("trial 6, infeasible: 48.0 GiB predicted, train.batch 64"), "{drawing}");
    }

    #[test]
    fn memory_far_below_the_capacity_is_not_drawn() {
        for (peak, is_drawn) in [(1_u64 << 30, false), (12 << 30, true)] {
            let mut one = trial(0, 0.5);
            let attributes = [("peak_memory", json!(peak)), ("capacity", json!(24_u64 << 30))];
            one.user_attrs = attributes.map(|(name, value)| (name.to_owned(), value)).into();
            let sample = Sample::of(vec![one]);
            let page = sample.page();
            assert_eq!(figure(&page, &parameters(&page)).is_empty(), !is_drawn);
        }
    }

    #[test]
    fn nothing_is_known() {
        let sample = Sample::of(vec![trial(0, 0.5)]);
        let page = sample.page();
        assert_eq!(figure(&page, &parameters(&page)), "");
        assert_eq!(figure(&page, &[]), "");
    }

    #[test]
    fn what_it_depends_on() {
        let number = Domain::Int { low: 1, high: 2, log: false, step: 1 };
        let named = |names: &[&str]| -> Vec<(String, Domain)> {
            names.iter().map(|name| (name.to_string(), number.clone())).collect()
        };
        assert_eq!(cause(&named(&["lr", "train.effective_batch", "train.batch"])), Some("train.batch"));
        assert_eq!(cause(&named(&["lr", "train.effective_batch"])), Some("train.effective_batch"));
        assert_eq!(cause(&named(&["lr", "x"])), Some("lr"));
        assert_eq!(cause(&[("optimizer".to_owned(), Domain::Choices(vec![json!("adamw")]))]), None);
    }
}

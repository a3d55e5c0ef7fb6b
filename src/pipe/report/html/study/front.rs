//! Two objectives against each other, with the trials that no other dominates.

use std::fmt::Write;

use pipe_search::{Direction, Trial};

use super::StudyPage;
use super::attributes::value;
use super::axis::Axis;
use super::ranking::{Level, Ranking, front, selection_note};
use super::scatter::{Frame, Series, Shape, beyond_note, empty, figure, legend};
use super::text::{number, title};
use crate::report::html::escape::escape;

/// Pairs of objectives that are drawn.
const MOST_PAIRS: usize = 6;
/// Marks of all pairs together.
const MOST: usize = 1800;

/// A chart for each pair; nothing for one objective.
pub fn figures(page: &StudyPage<'_>, ranking: &Ranking<'_>) -> String {
    let count = page.objectives.len();
    let pairs = (0..count).flat_map(|first| (first + 1..count).map(move |second| (first, second)));
    let pairs: Vec<(usize, usize)> = pairs.take(MOST_PAIRS).collect();
    pairs.iter().map(|pair| chart(page, ranking, *pair, MOST / pairs.len())).collect()
}

fn chart(page: &StudyPage<'_>, ranking: &Ranking<'_>, pair: (usize, usize), most: usize) -> String {
    let [(x_name, x_to), (y_name, y_to)] = [pair.0, pair.1].map(|index| &page.objectives[index]);
    let key = format!("front-{}-{}", pair.0, pair.1);
    let caption = format!("{} against {}", title(y_name), title(x_name));
    let drawn = ranking.select(ranking.ranked.clone(), most);
    if drawn.is_empty() {
        return empty(&key, &caption, "No trial is complete.");
    }
    let both = |trial: &Trial| (value(trial, pair.0).unwrap_or(0.0), value(trial, pair.1).unwrap_or(0.0));
    let axis = |index: usize, direction: Direction| {
        let values =
            |trials: &[&Trial]| -> Vec<f64> { trials.iter().filter_map(|trial| value(trial, index)).collect() };
        Axis::objective(&values(&drawn), direction, &values(&ranking.best))
    };
    let (x, y) = (axis(pair.0, *x_to), axis(pair.1, *y_to));
    let frame =
        Frame { x, y, name: format!("{x_name}, {}", crate::report::html::study::text::better(*x_to)), lane: false };
    let series = |class: &'static str, wanted: bool| {
        let of = drawn.iter().filter(|trial| (ranking.level(trial) == Some(Level::Best)) == wanted);
        let mark = |trial: &&Trial| {
            let (across, down) = both(trial);
            let tip = format!(
                "trial {}: {} {}, {} {}",
                trial.number,
                escape(&crate::report::bounded(x_name, 40)),
                number(across),
                escape(&crate::report::bounded(y_name, 40)),
                number(down)
            );
            let mut mark = frame.mark(frame.x.at(across), down, tip);
            mark.beyond.0 = frame.x.beyond(across);
            mark
        };
        Series::new(Shape::Dot, class, of.map(mark).collect())
    };
    let (others, best) = (series("faint", false), series("winner", true));
    let mut svg = String::new();
    frame.axes(&mut svg);
    others.draw(&mut svg);
    let line: Vec<(f64, f64)> = stairs(&drawn, (pair.0, *x_to), (pair.1, *y_to));
    stair_line(&mut svg, &frame, &line);
    best.draw(&mut svg);
    let note = [
        legend(&[(&best, "on the Pareto front: no other trial dominates it"), (&others, "dominated")]),
        format!(" {}: {}.", title(y_name), crate::report::html::study::text::better(*y_to)),
        beyond_note(&[&others, &best]).to_owned(),
        selection_note(drawn.len(), ranking.ranked.len()),
    ];
    let label = format!("{caption}, with the Pareto front");
    figure(&key, &caption, &label, &svg, &note.concat())
}

/// The front of two objectives alone, from the best of the first to the best of the second.
fn stairs(trials: &[&Trial], x: (usize, Direction), y: (usize, Direction)) -> Vec<(f64, f64)> {
    let point = |trial: &&Trial| Some((value(trial, x.0)?, value(trial, y.0)?));
    let mut points: Vec<(f64, f64)> = front(trials, &[x, y]).iter().filter_map(point).collect();
    points.sort_by(|a, b| if x.1 == Direction::Minimize { a.0.total_cmp(&b.0) } else { b.0.total_cmp(&a.0) });
    points.dedup();
    points
}

/// Up to the next trial of the front, the value of the one before is what can be had.
fn stair_line(svg: &mut String, frame: &Frame, points: &[(f64, f64)]) {
    let place = |point: &(f64, f64)| (frame.across(frame.x.at(point.0)), frame.down(frame.y.at(point.1)));
    let Some((x, y)) = points.first().map(place) else { return };
    write!(svg, "<path class=\"best-line\" d=\"M{x:.1} {y:.1}").ok();
    for (x, y) in points[1..].iter().map(place) {
        write!(svg, "H{x:.1}V{y:.1}").ok();
    }
    svg.push_str("\"><title>Pareto front</title></path>");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::html::study::samples::{Sample, trial};

    #[test]
    fn the_front_is_strong_and_the_others_faint() {
        let pairs = [(1.0, 0.5), (2.0, 0.9), (3.0, 0.7), (4.0, 0.95)];
        let mut trials: Vec<Trial> = (0..).zip(pairs).map(|(number, pair)| trial(number, pair.0)).collect();
        trials.iter_mut().zip(pairs).for_each(|(trial, pair)| trial.values = vec![pair.0, pair.1]);
        let mut sample = Sample::of(trials);
        sample.objectives.push(("accuracy".to_owned(), Direction::Maximize));
        let page = sample.page();
        let html = figures(&page, &Ranking::new(page.trials, page.objectives));
        let drawing = html.split("</svg>").next().unwrap_or_default();
        let (faint, strong) = drawing.split_once("class=\"best-line\"").unwrap_or_default();
        assert_eq!((faint.matches("<circle").count(), strong.matches("<circle").count()), (1, 3), "{html}");
        assert_eq!(strong.split('"').nth(1).map(|path| path.matches('V').count()), Some(2), "{strong}");
        let all: Vec<&Trial> = sample.trials.iter().collect();
        let line = stairs(&all, (1, Direction::Maximize), (0, Direction::Minimize));
        assert_eq!(line, [(0.95, 4.0), (0.9, 2.0), (0.5, 1.0)]);
    }

    #[test]
    fn one_objective_has_none() {
        let sample = Sample::of(vec![trial(0, 1.0)]);
        let page = sample.page();
        assert_eq!(figures(&page, &Ranking::new(page.trials, page.objectives)), "");
    }
}

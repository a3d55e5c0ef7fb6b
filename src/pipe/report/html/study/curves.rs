//! The first objective on the way, of the trials that report it.

use std::fmt::Write;

use pipe_search::Trial;

use super::StudyPage;
use super::attributes::usable;
use super::axis::Axis;
use super::outcome::Outcome;
use super::ranking::{Level, Ranking, selection_note};
use super::scatter::{Frame, figure as drawing};
use super::text::{number, title};
use crate::report::html::thin::{Point, thin};

/// Curves that are drawn.
const MOST: usize = 150;
/// Points of one curve.
const MOST_POINTS: usize = 60;

struct Curve<'a> {
    trial: &'a Trial,
    points: Vec<Point>,
}

/// Nothing where no trial reports values on the way.
pub fn figure(page: &StudyPage<'_>, ranking: &Ranking<'_>) -> String {
    let Some((metric, direction)) = page.objectives.first() else { return String::new() };
    let reporting: Vec<&Trial> = page.trials.iter().filter(|trial| !points(trial).is_empty()).collect();
    let all = reporting.len();
    let curve = |trial| Curve { trial, points: thin(&points(trial), MOST_POINTS) };
    let mut curves: Vec<Curve<'_>> = ranking.select(reporting, MOST).into_iter().map(curve).collect();
    if curves.is_empty() {
        return String::new();
    }
    // The strongest is drawn last, over the others.
    curves.sort_by_key(|curve| ranking.level(curve.trial));
    let heights: Vec<f64> = curves.iter().flat_map(|curve| curve.points.iter().map(|point| point.1)).collect();
    let last = curves.iter().flat_map(|curve| curve.trial.intermediate.keys()).max().copied().unwrap_or(0);
    let y = Axis::objective(&heights, *direction, &[]);
    let frame = Frame { x: Axis::counted(last), y, name: "step".to_owned(), lane: false };
    let mut svg = String::new();
    frame.axes(&mut svg);
    curves.iter().for_each(|curve| line(&mut svg, &frame, curve, class(curve.trial, ranking)));
    let any = |wanted: &dyn Fn(&Curve<'_>) -> bool, text| if curves.iter().any(wanted) { text } else { "" };
    let note = [
        any(&|curve| ranking.is_best(curve.trial), "Strong: the best trial; the better, the stronger."),
        any(&|curve| class(curve.trial, ranking) == "cut", " Dashed: pruned, ended at the dot."),
        any(&|curve| curve.points.iter().any(|at| frame.y.beyond(at.1) != 0), " At the edge: beyond the axis."),
        &selection_note(curves.len(), all),
    ]
    .concat();
    let caption = format!("Intermediate values of {}", title(metric));
    drawing("curves", &caption, &format!("{} of each trial by step", title(metric)), &svg, &note)
}

fn points(trial: &Trial) -> Vec<Point> {
    trial.intermediate.iter().filter_map(|(step, value)| Some((*step as f64, usable(*value)?))).collect()
}

fn class(trial: &Trial, ranking: &Ranking<'_>) -> &'static str {
    match Outcome::of(trial) {
        Outcome::Pruned => "cut",
        Outcome::Running => Level::Fair.class(),
        _ => ranking.level(trial).unwrap_or(Level::Poor).class(),
    }
}

fn line(svg: &mut String, frame: &Frame, curve: &Curve<'_>, class: &str) {
    let place = |point: &Point| (frame.across(frame.x.at(point.0)), frame.down(frame.y.at(point.1)));
    let places: Vec<(f64, f64)> = curve.points.iter().map(place).collect();
    let (Some((x, y)), Some((step, value))) = (places.last(), curve.points.last()) else { return };
    let texts: Vec<String> = places.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
    let (number, value) = (curve.trial.number, number(*value));
    let outcome = Outcome::of(curve.trial).name();
    write!(svg, "<g class=\"line {class}\"><title>trial {number}, {outcome}: {value} at step {step}</title>").ok();
    write!(svg, "<polyline points=\"{}\"/>", texts.join(" ")).ok();
    if class == "cut" || places.len() == 1 {
        write!(svg, "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"2.6\"/>").ok();
    }
    svg.push_str("</g>");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::html::study::samples::{Sample, trial};
    use pipe_search::TrialState;

    #[test]
    fn a_line_for_each_trial_and_a_dot_where_one_was_ended() {
        let mut trials: Vec<Trial> = (0..4).map(|number| trial(number, 1.0 + number as f64)).collect();
        for trial in &mut trials[..3] {
            trial.intermediate = (1..=10).map(|step| (step, 1.0 / step as f64)).collect();
        }
        trials[0].intermediate.insert(11, f64::NAN);
        trials[1].state = TrialState::Pruned;
        let sample = Sample::of(trials);
        let page = sample.page();
        let html = figure(&page, &Ranking::new(page.trials, page.objectives));
        assert_eq!((html.matches("<polyline").count(), html.matches("<circle").count()), (3, 1), "{html}");
        assert!(html.contains("class=\"line best\"><title>trial 0, complete: 0.1000 at step 10<"), "{html}");
        assert!(!html.contains("NaN"), "{html}");
    }

    #[test]
    fn none_report() {
        let sample = Sample::of(vec![trial(0, 1.0)]);
        let page = sample.page();
        assert_eq!(figure(&page, &Ranking::new(page.trials, page.objectives)), "");
    }
}

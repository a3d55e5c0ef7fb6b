//! How the search went: the value of each trial, its values on the way, and how much each parameter explains.

use std::collections::BTreeMap;
use std::fmt::Write;

use pipe_search::{Direction, Trial};

use super::StudyPage;
use super::ranking::{Level, Outcome, Ranking, last_intermediate, selection_note, value};
use crate::report::html::axis::{Axis, usable};
use crate::report::html::chart::{
    Frame, Mark, Point, Series, Shape, beyond_note, empty, figure, figure_of_height, key, legend,
};
use crate::report::html::curve::thin;
use crate::report::html::markup::{better, end_of, escape, number, title};

/// Marks of all charts together.
const MOST_MARKS: usize = 2000;

/// A chart for each objective.
pub fn history(page: &StudyPage<'_>, ranking: &Ranking<'_>) -> String {
    (0..page.objectives.len()).map(|index| history_chart(page, ranking, index)).collect()
}

fn history_chart(page: &StudyPage<'_>, ranking: &Ranking<'_>, objective: usize) -> String {
    let (metric, direction) = &page.objectives[objective];
    let id = format!("history-{objective}");
    let caption = format!("{} by trial; {}", title(metric), better(*direction));
    let trials: Vec<&Trial> = page.trials.iter().collect();
    let drawn = ranking.select(trials, MOST_MARKS / page.objectives.len());
    let points: Vec<(&Trial, f64)> =
        drawn.iter().filter_map(|trial| height(trial, objective).map(|value| (*trial, value))).collect();
    if drawn.is_empty() {
        return empty(&id, &caption, "No trial has begun.");
    }
    let steps = best_so_far(page.trials, objective, *direction);
    let values: Vec<f64> = points.iter().map(|point| point.1).collect();
    let last = page.trials.iter().map(|trial| trial.number).max().unwrap_or(0);
    let shown: Vec<f64> = steps.iter().skip(1).map(|step| step.1).collect();
    let y = Axis::objective(&values, *direction, &shown);
    let lane = drawn.iter().any(|trial| is_in_lane(trial, objective));
    let frame = Frame { x: Axis::counted(last as f64), y, name: "trial".to_owned(), lane };
    let with_value = |outcome: Outcome| -> Vec<Mark> {
        let of = points.iter().filter(|(trial, _)| Outcome::of(trial) == outcome);
        of.map(|(trial, value)| frame.mark(frame.x.at(trial.number as f64), *value, tip(trial, outcome, *value)))
            .collect()
    };
    let in_lane = |outcome: Outcome| -> Vec<Mark> {
        let without = drawn.iter().filter(|trial| is_in_lane(trial, objective) && Outcome::of(trial) == outcome);
        let tip = |trial: &Trial| format!("trial {}: {}", trial.number, outcome.name());
        without.map(|trial| frame.mark_in_lane(frame.x.at(trial.number as f64), tip(trial))).collect()
    };
    let complete = Series::new(Shape::Dot, "complete", with_value(Outcome::Complete));
    let pruned = Series::new(Shape::Ring, "pruned", with_value(Outcome::Pruned));
    let outside = Series::new(Shape::Ring, "bad", with_value(Outcome::Infeasible));
    let infeasible = Series::new(Shape::Tick, "bad", in_lane(Outcome::Infeasible));
    let failed = Series::new(Shape::Cross, "bad", in_lane(Outcome::Failed));
    let mut svg = String::new();
    frame.axes(&mut svg);
    let series = [&pruned, &outside, &complete, &infeasible, &failed];
    series.iter().for_each(|series| series.draw(&mut svg));
    frame.stairs(&mut svg, "best so far", &steps, Some(1.0));
    let line = if steps.is_empty() {
        String::new()
    } else {
        key("<path class=\"best-line\" d=\"M0 3H7V11H14\"/>", "best so far")
    };
    let meaning = [
        (&complete, "complete"),
        (&pruned, "pruned, at its last value"),
        (&outside, "outside a constraint"),
        (&infeasible, "infeasible, not launched"),
        (&failed, "failed"),
    ];
    let note =
        [&line, " ", &legend(&meaning), beyond_note(&series), &selection_note(drawn.len(), page.trials.len())].concat();
    let label = format!("{} of each trial, and the best so far", title(metric));
    figure(&id, &caption, &label, &svg, &note)
}

fn tip(trial: &Trial, outcome: Outcome, value: f64) -> String {
    let how = if outcome == Outcome::Complete { String::new() } else { format!(", {}", outcome.name()) };
    format!("trial {}: {}{how}", trial.number, number(value))
}

/// The height at which a trial is drawn: its value, or the last on the way of one that was pruned.
fn height(trial: &Trial, objective: usize) -> Option<f64> {
    match Outcome::of(trial) {
        Outcome::Complete | Outcome::Infeasible => value(trial, objective),
        Outcome::Pruned if objective == 0 => last_intermediate(trial),
        _ => None,
    }
}

/// Whether it ended without a value, and is marked all the same.
fn is_in_lane(trial: &Trial, objective: usize) -> bool {
    matches!(Outcome::of(trial), Outcome::Infeasible | Outcome::Failed) && height(trial, objective).is_none()
}

/// Every trial that was better than all before it: its number and its value.
fn best_so_far(trials: &[Trial], objective: usize, direction: Direction) -> Vec<Point> {
    let mut complete: Vec<Point> = trials
        .iter()
        .filter(|trial| Outcome::of(trial) == Outcome::Complete)
        .filter_map(|trial| Some((trial.number as f64, value(trial, objective)?)))
        .collect();
    complete.sort_by(|a, b| a.0.total_cmp(&b.0));
    let mut steps: Vec<Point> = Vec::new();
    for (number, value) in complete {
        let is_better = |best: f64| if direction == Direction::Minimize { value < best } else { value > best };
        if steps.last().is_none_or(|(_, best)| is_better(*best)) {
            steps.push((number, value));
        }
    }
    steps
}

/// Curves that are drawn.
const MOST_CURVES: usize = 150;
/// Points of one curve.
const MOST_POINTS: usize = 60;

struct Curve<'a> {
    trial: &'a Trial,
    points: Vec<Point>,
}

/// Nothing where no trial reports values on the way.
pub fn curves(page: &StudyPage<'_>, ranking: &Ranking<'_>) -> String {
    let Some((metric, direction)) = page.objectives.first() else { return String::new() };
    let reporting: Vec<&Trial> = page.trials.iter().filter(|trial| !points(trial).is_empty()).collect();
    let all = reporting.len();
    let curve = |trial| Curve { trial, points: thin(&points(trial), MOST_POINTS) };
    let mut curves: Vec<Curve<'_>> = ranking.select(reporting, MOST_CURVES).into_iter().map(curve).collect();
    if curves.is_empty() {
        return String::new();
    }
    // The strongest is drawn last, over the others.
    curves.sort_by_key(|curve| ranking.level(curve.trial));
    let heights: Vec<f64> = curves.iter().flat_map(|curve| curve.points.iter().map(|point| point.1)).collect();
    let last = curves.iter().flat_map(|curve| curve.trial.intermediate.keys()).max().copied().unwrap_or(0);
    let y = Axis::objective(&heights, *direction, &[]);
    let frame = Frame { x: Axis::counted(last as f64), y, name: "step".to_owned(), lane: false };
    let mut svg = String::new();
    frame.axes(&mut svg);
    curves.iter().for_each(|curve| curve_line(&mut svg, &frame, curve, class(curve.trial, ranking)));
    let any = |wanted: &dyn Fn(&Curve<'_>) -> bool, text| if curves.iter().any(wanted) { text } else { "" };
    let note = [
        any(&|curve| ranking.is_best(curve.trial), "Best trial highlighted; darker is better."),
        any(&|curve| class(curve.trial, ranking) == "cut", " Dashed: pruned, ended at the dot."),
        any(&|curve| curve.points.iter().any(|at| frame.y.beyond(at.1) != 0), " At the edge: beyond the axis."),
        &selection_note(curves.len(), all),
    ]
    .concat();
    let caption = format!("Intermediate values of {}", title(metric));
    figure("curves", &caption, &format!("{} of each trial by step", title(metric)), &svg, &note)
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

fn curve_line(svg: &mut String, frame: &Frame, curve: &Curve<'_>, class: &str) {
    let Some((step, value)) = curve.points.last().copied() else { return };
    let ((x, y), number, value) = (frame.point((step, value)), curve.trial.number, number(value));
    let outcome = Outcome::of(curve.trial).name();
    write!(svg, "<g class=\"line {class}\"><title>trial {number}, {outcome}: {value} at step {step}</title>").ok();
    frame.polyline(svg, "", &curve.points);
    if class == "cut" || curve.points.len() == 1 {
        write!(svg, "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"2.6\"/>").ok();
    }
    svg.push_str("</g>");
}

/// Bars of one objective.
const MOST_BARS: usize = 12;
const ROW: f64 = 40.0;
const BAR: f64 = 400.0;

/// A block for each objective.
pub fn importance(page: &StudyPage<'_>, ranking: &Ranking<'_>) -> String {
    let nothing = BTreeMap::new();
    let block = |index: usize| {
        let metric = &page.objectives[index].0;
        let known = page.importances.iter().find(|(name, _)| name == metric);
        block(index, metric, known.map_or(&nothing, |known| &known.1), ranking.ranked.len())
    };
    (0..page.objectives.len()).map(block).collect()
}

fn block(index: usize, metric: &str, shares: &BTreeMap<String, f64>, complete: usize) -> String {
    let key = format!("importance-{index}");
    let caption = format!("Parameter importance for {}", title(metric));
    let mut bars: Vec<(&String, f64)> =
        shares.iter().map(|(name, share)| (name, *share)).filter(|bar| bar.1.is_finite() && bar.1 >= 0.0).collect();
    bars.sort_by(|a, b| b.1.total_cmp(&a.1));
    let sum: f64 = bars.iter().map(|bar| bar.1).sum();
    if !(sum > 0.0 && sum.is_finite()) {
        let why = format!("Too few trials to tell: {complete} complete.");
        return empty(&key, &caption, &why);
    }
    let left_out = bars.len().saturating_sub(MOST_BARS);
    bars.truncate(MOST_BARS);
    let mut svg = String::new();
    for (row, (name, share)) in bars.iter().enumerate() {
        bar(&mut svg, row as f64 * ROW, name, share / sum);
    }
    let left_out = if left_out > 0 { format!(" {left_out} with smaller shares left out.") } else { String::new() };
    let note = format!("How much of the differences between trials each parameter explains.{left_out}");
    let (height, label) =
        (bars.len() as f64 * ROW + 4.0, format!("Importance of each parameter for {}", title(metric)));
    figure_of_height(height, &key, &caption, &label, &svg, &note)
}

fn bar(html: &mut String, top: f64, name: &str, share: f64) {
    let (width, percent) = ((share * BAR).max(1.0), share * 100.0);
    let percent = if percent > 0.0 && percent < 1.0 { "&lt; 1%".to_owned() } else { format!("{percent:.0}%") };
    write!(html, "<g><title>{}: {percent}</title>", escape(name)).ok();
    write!(html, "<text class=\"strong\" x=\"2\" y=\"{:.1}\">{}</text>", top + 15.0, escape(&end_of(name, 44))).ok();
    write!(html, "<rect class=\"bar\" x=\"2\" y=\"{:.1}\" width=\"{width:.1}\" height=\"12\" rx=\"2\"/>", top + 21.0)
        .ok();
    write!(html, "<text x=\"{:.1}\" y=\"{:.1}\">{percent}</text></g>", width + 9.0, top + 32.0).ok();
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::html::study::samples::{Sample, infeasible, trial};
    use pipe_search::TrialState;

    #[test]
    fn a_mark_for_each_trial() {
        let mut trials = vec![trial(0, 0.9), trial(1, 0.4), trial(2, 0.6), infeasible(3), trial(4, 0.0), trial(5, 0.0)];
        (trials[4].state, trials[4].intermediate) = (TrialState::Pruned, [(1, 0.95), (2, 0.8)].into());
        trials[5].state = TrialState::Failed;
        let sample = Sample::of(trials);
        let page = sample.page();
        let html = history(&page, &Ranking::new(page.trials, page.objectives));
        let drawing = html.split("</svg>").next().unwrap_or_default();
        let count = |text: &str| drawing.matches(text).count();
        assert_eq!((count("<circle"), count("v10\">"), count("l7 7m0-7")), (4, 1, 1), "{drawing}");
        assert!(drawing.contains("trial 4: 0.8000, pruned") && drawing.contains("class=\"best-line\""), "{drawing}");
        assert!(html.contains("infeasible,</span> not launched") && html.contains("failed</span>"), "{html}");
    }

    #[test]
    fn the_best_only_gets_better() {
        let trials = [trial(2, 0.9), trial(0, 0.5), trial(1, f64::NAN), trial(3, 0.25), trial(4, 0.3)];
        assert_eq!(best_so_far(&trials, 0, Direction::Minimize), [(0.0, 0.5), (3.0, 0.25)]);
        assert_eq!(best_so_far(&trials, 0, Direction::Maximize), [(0.0, 0.5), (2.0, 0.9)]);
    }

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
        let html = curves(&page, &Ranking::new(page.trials, page.objectives));
        assert_eq!((html.matches("<polyline").count(), html.matches("<circle").count()), (3, 1), "{html}");
        assert!(html.contains("class=\"line best\"><title>trial 0, complete: 0.1000 at step 10<"), "{html}");
        assert!(!html.contains("NaN"), "{html}");
    }

    #[test]
    fn none_report() {
        let sample = Sample::of(vec![trial(0, 1.0)]);
        let page = sample.page();
        assert_eq!(curves(&page, &Ranking::new(page.trials, page.objectives)), "");
    }

    #[test]
    fn bars_are_shares() {
        let shares = [("lr", 3.0), ("<b>", 1.0), ("none", 0.0), ("odd", f64::NAN)];
        let shares = shares.map(|(name, share)| (name.to_owned(), share)).into();
        let html = block(0, "loss", &shares, 9);
        assert_eq!(html.matches("<rect").count(), 3, "{html}");
        assert!(html.contains("75%") && html.contains("&lt;b&gt;: 25%") && !html.contains("NaN"), "{html}");
        assert!(html.find("lr: 75%") < html.find("&lt;b&gt;: 25%"));
    }

    #[test]
    fn too_few_trials() {
        assert!(block(0, "loss", &BTreeMap::new(), 2).contains("Too few trials to tell: 2 complete"));
        let odd = [("lr".to_owned(), f64::INFINITY), ("b".to_owned(), 0.0)].into();
        assert!(block(0, "loss", &odd, 0).contains("Too few trials"));
        let many = (0..30).map(|index| (format!("p{index}"), 1.0)).collect();
        assert!(block(0, "loss", &many, 40).contains("18 with smaller shares left out"));
    }
}

//! The value of each trial in the order of their numbers, and the best so far.

use std::fmt::Write;

use pipe_search::{Direction, Trial};

use super::StudyPage;
use super::attributes::{last_intermediate, value};
use super::axis::Axis;
use super::outcome::Outcome;
use super::ranking::{Ranking, selection_note};
use super::scatter::{Frame, Mark, Series, Shape, beyond_note, empty, figure, key, legend};
use super::text::{better, number, title};

/// Marks of all charts together.
const MOST: usize = 2000;

/// A chart for each objective.
pub fn figures(page: &StudyPage<'_>, ranking: &Ranking<'_>) -> String {
    (0..page.objectives.len()).map(|index| chart(page, ranking, index)).collect()
}

fn chart(page: &StudyPage<'_>, ranking: &Ranking<'_>, objective: usize) -> String {
    let (metric, direction) = &page.objectives[objective];
    let id = format!("history-{objective}");
    let caption = format!("{} by trial; {}", title(metric), better(*direction));
    let trials: Vec<&Trial> = page.trials.iter().collect();
    let drawn = ranking.select(trials, MOST / page.objectives.len());
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
    let frame = Frame { x: Axis::counted(last), y, name: "trial".to_owned(), lane };
    let with_value = |outcome: Outcome| -> Vec<Mark> {
        let of = points.iter().filter(|(trial, _)| Outcome::of(trial) == outcome);
        of.map(|(trial, value)| frame.mark(frame.x.at(trial.number as f64), *value, tip(trial, outcome, *value)))
            .collect()
    };
    let in_lane = |outcome: Outcome| -> Vec<Mark> {
        let without = drawn.iter().filter(|trial| is_in_lane(trial, objective) && Outcome::of(trial) == outcome);
        without
            .map(|trial| Mark {
                x: frame.across(frame.x.at(trial.number as f64)),
                y: frame.in_lane(),
                beyond: (0, 0),
                tip: format!("trial {}: {}", trial.number, outcome.name()),
            })
            .collect()
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
    best_line(&mut svg, &frame, &steps);
    let line = match steps.is_empty() {
        true => String::new(),
        false => key("<path class=\"best-line\" d=\"M0 3H7V11H14\"/>", "best so far"),
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

/// What is drawn of a trial: its value, or the last on the way of one that was given up.
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
fn best_so_far(trials: &[Trial], objective: usize, direction: Direction) -> Vec<(u64, f64)> {
    let mut complete: Vec<(u64, f64)> = trials
        .iter()
        .filter(|trial| Outcome::of(trial) == Outcome::Complete)
        .filter_map(|trial| Some((trial.number, value(trial, objective)?)))
        .collect();
    complete.sort_by_key(|trial| trial.0);
    let mut steps: Vec<(u64, f64)> = Vec::new();
    for (number, value) in complete {
        let is_better = |best: f64| if direction == Direction::Minimize { value < best } else { value > best };
        if steps.last().is_none_or(|(_, best)| is_better(*best)) {
            steps.push((number, value));
        }
    }
    steps
}

/// A line that ends at the last trial, not at the last that was better.
fn best_line(svg: &mut String, frame: &Frame, steps: &[(u64, f64)]) {
    let Some((first, value)) = steps.first() else { return };
    let across = |number: u64| frame.across(frame.x.at(number as f64));
    let down = |value: f64| frame.down(frame.y.at(value));
    write!(svg, "<path class=\"best-line\" d=\"M{:.1} {:.1}", across(*first), down(*value)).ok();
    for (number, value) in &steps[1..] {
        write!(svg, "H{:.1}V{:.1}", across(*number), down(*value)).ok();
    }
    write!(svg, "H{:.1}\"><title>best so far</title></path>", frame.across(1.0)).ok();
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
        let html = figures(&page, &Ranking::new(page.trials, page.objectives));
        let drawing = html.split("</svg>").next().unwrap_or_default();
        let count = |text: &str| drawing.matches(text).count();
        assert_eq!((count("<circle"), count("v10\">"), count("l7 7m0-7")), (4, 1, 1), "{drawing}");
        assert!(drawing.contains("trial 4: 0.8000, pruned") && drawing.contains("class=\"best-line\""), "{drawing}");
        assert!(html.contains("infeasible,</span> not launched") && html.contains("failed</span>"), "{html}");
    }

    #[test]
    fn the_best_only_gets_better() {
        let trials = [trial(2, 0.9), trial(0, 0.5), trial(1, f64::NAN), trial(3, 0.25), trial(4, 0.3)];
        assert_eq!(best_so_far(&trials, 0, Direction::Minimize), [(0, 0.5), (3, 0.25)]);
        assert_eq!(best_so_far(&trials, 0, Direction::Maximize), [(0, 0.5), (2, 0.9)]);
    }
}

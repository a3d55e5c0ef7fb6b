//! Parallel coordinates: each trial is a line through its settings to its value.

use std::collections::BTreeMap;
use std::fmt::Write;

use pipe_search::{Domain, Trial};
use serde_json::Value;

use super::ranking::{Level, Outcome, Ranking, selection_note, value};
use super::{StudyPage, most_important};
use crate::report::bounded;
use crate::report::html::axis::Axis;
use crate::report::html::markup::{end_of, escape, number, path_parts};

/// Lines that are drawn.
const MOST: usize = 300;
/// Lines of infeasible trials, which are among them.
const MOST_INFEASIBLE: usize = 60;
/// From so many on, each is fainter.
const MANY: usize = 100;
/// Axes of parameters, and of objectives.
const MOST_PARAMETERS: usize = 14;
const MOST_OBJECTIVES: usize = 3;
const HEIGHT: f64 = 330.0;
const TOP: f64 = 52.0;
const BOTTOM: f64 = 44.0;
const LEFT: f64 = 26.0;
/// From one axis to the next, at least, and of all axes together.
const GAP: f64 = 132.0;
const WIDTH: f64 = 1100.0;
/// The width of the ticks of the last.
const RIGHT: f64 = 98.0;
/// Characters of a name over an axis, and of a category beside it.
const NAME: usize = 15;
const LABEL: usize = 14;

/// One axis: its name, and where each trial crosses it.
struct Column {
    /// Not escaped.
    name: String,
    axis: Axis,
    /// By the number of the trial; absent where it has no value.
    crossings: BTreeMap<u64, f64>,
}

pub fn section(page: &StudyPage<'_>, ranking: &Ranking<'_>, parameters: &[(String, Domain)]) -> String {
    let drawn = drawn(page, ranking);
    if parameters.is_empty() || drawn.iter().all(|trial| ranking.level(trial).is_none()) {
        return String::new();
    }
    let shown = most_important(page, parameters, MOST_PARAMETERS);
    let columns = columns(page, &drawn, &shown);
    let gap = gap(columns.len());
    let width = LEFT + gap * (columns.len() - 1) as f64 + RIGHT;
    let label = "Settings and value of each trial as a line";
    let class = if drawn.len() > MANY { " class=\"many\"" } else { "" };
    let mut html = format!(
        "<section id=\"parallel\"><h2>Parallel coordinates</h2><figure id=\"figure-parallel\"><div class=\"scroll\" tabindex=\"0\">\
         <svg{class} viewBox=\"0 0 {width} {HEIGHT}\" role=\"img\" aria-label=\"{label}\" \
         style=\"min-width:{:.0}px\"><title>{label}</title>",
        (LEFT + GAP * (columns.len() - 1) as f64 + RIGHT) * 0.95
    );
    for (index, column) in columns.iter().enumerate() {
        draw_axis(&mut html, across(index, gap), column, &drawn);
    }
    draw_lines(&mut html, &columns, &drawn, ranking);
    for (index, column) in columns.iter().enumerate() {
        draw_texts(&mut html, across(index, gap), column, &drawn);
    }
    for (index, column) in columns.iter().enumerate() {
        draw_handle(&mut html, across(index, gap), column);
    }
    let left_out = parameters.len() - shown.len();
    let left_out = match left_out {
        0 => String::new(),
        _ => format!(" The {} most important of {} parameters.", shown.len(), parameters.len()),
    };
    let infeasible = drawn.iter().any(|trial| ranking.level(trial).is_none());
    let infeasible = if infeasible { " Dashed: infeasible, without a value." } else { "" };
    let best = if page.objectives.len() > 1 {
        "Highlighted: on the Pareto front."
    } else {
        "Best trial highlighted; darker is better."
    };
    let none = if columns.iter().any(|column| has_gap(column, &drawn)) {
        " A line passes <i>none</i> where a parameter does not apply, or a trial has no value."
    } else {
        ""
    };
    let all = page.trials.iter().filter(|trial| ranking.level(trial).is_some() || is_infeasible(trial)).count();
    let note = format!("{best}{infeasible}{none}{left_out}{}", selection_note(drawn.len(), all));
    writeln!(html, "</svg></div><p class=\"note\">{note}</p></figure></section>").ok();
    html
}

fn is_infeasible(trial: &Trial) -> bool {
    Outcome::of(trial) == Outcome::Infeasible
}

/// The ranked trials, and those that cannot fit.
fn drawn<'a>(page: &StudyPage<'a>, ranking: &Ranking<'a>) -> Vec<&'a Trial> {
    let infeasible: Vec<&Trial> = page.trials.iter().filter(|trial| is_infeasible(trial)).collect();
    let mut drawn = ranking.select(infeasible, MOST_INFEASIBLE);
    let ranked = ranking.select(ranking.ranked.clone(), MOST - drawn.len());
    drawn.extend(ranked);
    // The strongest is drawn last, over the others.
    drawn.sort_by_key(|trial| ranking.level(trial));
    drawn
}

fn columns(page: &StudyPage<'_>, drawn: &[&Trial], parameters: &[(String, Domain)]) -> Vec<Column> {
    let parameter = |(name, domain): &(String, Domain)| {
        let values: Vec<&Value> = drawn.iter().filter_map(|trial| trial.point.get(name)).collect();
        let axis = Axis::parameter(domain, &values);
        let crossing = |trial: &&Trial| Some((trial.number, axis.setting(trial.point.get(name)?)?));
        let crossings = drawn.iter().filter_map(crossing).collect();
        Column { name: name.clone(), axis, crossings }
    };
    let objective = |index: usize| {
        let (name, direction) = &page.objectives[index];
        let values: Vec<f64> = drawn.iter().filter_map(|trial| value(trial, index)).collect();
        let axis = Axis::objective(&values, *direction, &[]);
        let crossings = drawn.iter().filter_map(|trial| Some((trial.number, axis.at(value(trial, index)?)))).collect();
        Column { name: name.clone(), axis, crossings }
    };
    let objectives = 0..page.objectives.len().min(MOST_OBJECTIVES);
    parameters.iter().map(parameter).chain(objectives.map(objective)).collect()
}

/// From one of so many axes to the next: few of them use all of the width.
fn gap(columns: usize) -> f64 {
    let gaps = columns.saturating_sub(1).max(1) as f64;
    ((WIDTH - LEFT - RIGHT) / gaps).max(GAP)
}

fn across(index: usize, gap: f64) -> f64 {
    LEFT + gap * index as f64
}

/// `share` from 0 to 1; absent is under the axis.
fn down(share: Option<f64>) -> f64 {
    let bottom = HEIGHT - BOTTOM;
    share.map_or(bottom + 24.0, |share| bottom - share * (bottom - TOP))
}

fn has_gap(column: &Column, drawn: &[&Trial]) -> bool {
    column.crossings.len() < drawn.len()
}

fn draw_axis(html: &mut String, x: f64, column: &Column, drawn: &[&Trial]) {
    let (top, bottom) = (down(Some(1.0)), down(Some(0.0)));
    write!(html, "<path class=\"axis\" d=\"M{x:.1} {top:.1}V{bottom:.1}\"/>").ok();
    for (share, _) in &column.axis.ticks {
        write!(html, "<path class=\"axis\" d=\"M{x:.1} {:.1}h5\"/>", down(Some(*share))).ok();
    }
    if has_gap(column, drawn) {
        let y = down(None);
        write!(html, "<circle class=\"gap\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"4\"/>").ok();
    }
}

/// Texts are written over the lines.
fn draw_texts(html: &mut String, x: f64, column: &Column, drawn: &[&Trial]) {
    if has_gap(column, drawn) {
        write!(html, "<text class=\"halo\" x=\"{:.1}\" y=\"{:.1}\">none</text>", x + 8.0, down(None) + 17.0).ok();
    }
    let (path, leaf) = path_parts(&column.name);
    // The first name would be cut at the edge if its middle stood over the axis.
    let from = (x - 24.0).max(2.0);
    write!(html, "<g><title>{}</title>", escape(&column.name)).ok();
    write!(html, "<text x=\"{from:.1}\" y=\"16\">{}</text>", escape(&end_of(path, NAME))).ok();
    write!(html, "<text class=\"strong\" x=\"{from:.1}\" y=\"33\">{}</text></g>", escape(&bounded(leaf, NAME))).ok();
    for (share, text) in &column.axis.ticks {
        let (y, short) = (down(Some(*share)) + 4.0, escape(&bounded(text, LABEL)));
        write!(html, "<text class=\"halo\" x=\"{:.1}\" y=\"{y:.1}\">{short}</text>", x + 8.0).ok();
    }
}

/// Half of the width of the area around an axis that a script selects trials by.
const HANDLE: f64 = 14.0;

/// The area of an axis with its scale, for a script.
fn draw_handle(html: &mut String, x: f64, column: &Column) {
    let (top, bottom) = (down(Some(1.0)), down(Some(0.0)));
    write!(
        html,
        "<rect class=\"handle\" data-name=\"{}\" {} x=\"{:.1}\" y=\"{top:.1}\" width=\"{}\" height=\"{:.1}\"/>",
        escape(&column.name),
        column.axis.attributes(),
        x - HANDLE,
        2.0 * HANDLE,
        bottom - top
    )
    .ok();
}

fn draw_lines(html: &mut String, columns: &[Column], drawn: &[&Trial], ranking: &Ranking<'_>) {
    let gap = gap(columns.len());
    for level in std::iter::once(None).chain(Level::ALL.map(Some)) {
        let class = level.map_or("cut bad", Level::class);
        write!(html, "<g class=\"line {class}\">").ok();
        for trial in drawn.iter().filter(|trial| ranking.level(trial) == level) {
            let crossing = |(index, column): (usize, &Column)| {
                format!("{:.0},{:.1}", across(index, gap), down(column.crossings.get(&trial.number).copied()))
            };
            let points: Vec<String> = columns.iter().enumerate().map(crossing).collect();
            let value = value(trial, 0).map_or(Outcome::of(trial).name().to_owned(), number);
            write!(html, "<polyline points=\"{}\"><title>trial {}: ", points.join(" "), trial.number).ok();
            write!(html, "{value}</title></polyline>").ok();
        }
        html.push_str("</g>");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::html::study::parameters;
    use crate::report::html::study::samples::{Sample, infeasible, trial};

    fn html(trials: Vec<Trial>) -> String {
        let sample = Sample::of(trials);
        let page = sample.page();
        section(&page, &Ranking::new(page.trials, page.objectives), &parameters(&page))
    }

    #[test]
    fn a_line_for_each_trial() {
        let mut trials = vec![trial(0, 0.5), trial(1, 0.25), infeasible(2)];
        trials[0].point.remove("lr");
        let html = html(trials);
        assert_eq!(html.matches("<polyline").count(), 3, "{html}");
        let best = html.split("line best\">").nth(1).unwrap_or_default();
        assert!(best.starts_with("<polyline points=\"") && best.contains("trial 1: 0.2500"), "{best}");
        // The parameter that one has not, and the value that the infeasible one has not.
        assert_eq!(html.matches(">none</text>").count(), 2, "{html}");
        assert!(html.contains("trial 2: infeasible") && html.contains("Dashed: infeasible"), "{html}");
        // The areas that a script selects trials by.
        let handle = "class=\"handle\" data-name=\"lr\" data-scale=\"log\" data-low=\"1e-5\" data-high=\"1e-1\"";
        assert!(html.contains(handle) && html.matches("class=\"handle\"").count() == 3, "{html}");
    }

    #[test]
    fn nothing_without_a_complete_trial() {
        assert_eq!(html(Vec::new()), "");
        assert_eq!(html(vec![infeasible(0)]), "");
        assert_eq!(html(vec![trial(0, f64::NAN)]), "");
    }

    #[test]
    fn many_trials_are_thinned() {
        let html = html((0..3000).map(|number| trial(number, number as f64)).collect());
        assert_eq!(html.matches("<polyline").count(), MOST);
        assert!(html.contains("300 of 3000 trials") && html.len() < 60_000, "{}", html.len());
    }
}

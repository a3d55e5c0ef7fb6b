//! One parameter against one objective, in small charts.

use std::fmt::Write;

use pipe_search::{Domain, Trial};
use serde_json::Value;

use super::attributes::value;
use super::axis::Axis;
use super::outcome::Outcome;
use super::ranking::{Level, Ranking, selection_note};
use super::scatter::{Frame, Mark, Series, Shape, figure, legend};
use super::text::{better, end_of, number, plain_setting, title};
use super::{StudyPage, most_important};
use crate::report::html::escape::escape;

/// Charts of one objective, and objectives that have them.
const MOST_CHARTS: usize = 24;
const MOST_OBJECTIVES: usize = 3;
/// Marks of all charts together, and of one.
const MOST_MARKS: usize = 5000;
const MOST_IN_ONE: usize = 400;

/// The charts of one objective.
struct Slices<'a> {
    page: &'a StudyPage<'a>,
    ranking: &'a Ranking<'a>,
    objective: usize,
    /// The same in all, so that they can be compared.
    y: Axis,
    /// Marks of one chart.
    most: usize,
}

pub fn section(page: &StudyPage<'_>, ranking: &Ranking<'_>, parameters: &[(String, Domain)]) -> String {
    let objectives = page.objectives.len().min(MOST_OBJECTIVES);
    if ranking.ranked.is_empty() || parameters.is_empty() || objectives == 0 {
        return String::new();
    }
    let shown = most_important(page, parameters, MOST_CHARTS);
    let most = (MOST_MARKS / (shown.len() * objectives)).clamp(20, MOST_IN_ONE);
    let mut html = "<section id=\"slices\"><h2>Each parameter against the objective</h2>".to_owned();
    write!(html, "<p class=\"note\">{}</p>", kinds(page, parameters.len(), shown.len())).ok();
    for objective in 0..objectives {
        let (metric, direction) = &page.objectives[objective];
        let values: Vec<f64> = ranking.ranked.iter().filter_map(|trial| value(trial, objective)).collect();
        let y = Axis::objective(&values, *direction, &[]);
        let is_beyond = values.iter().any(|value| y.beyond(*value) != 0);
        let beyond = if is_beyond { "; triangles at the edge: far worse, beyond the axis" } else { "" };
        let slices = Slices { page, ranking, objective, y, most };
        let charts: String =
            shown.iter().enumerate().map(|(index, parameter)| slices.chart(index, parameter)).collect();
        write!(html, "<h3>{}, {}{beyond}</h3>", title(metric), better(*direction)).ok();
        write!(html, "<div class=\"figures small\">{charts}</div>").ok();
    }
    html.push_str("</section>\n");
    html
}

/// What the marks of all charts mean.
fn kinds(page: &StudyPage<'_>, all: usize, shown: usize) -> String {
    let one =
        |shape, class| Series::new(shape, class, vec![Mark { x: 0.0, y: 0.0, beyond: (0, 0), tip: String::new() }]);
    let (best, complete, ticks) = (one(Shape::Dot, "winner"), one(Shape::Dot, "complete"), one(Shape::Tick, "bad"));
    let best_text = if page.objectives.len() > 1 { "on the Pareto front" } else { "the best" };
    let mut keys = vec![(&best, best_text), (&complete, "complete")];
    if page.trials.iter().any(|trial| Outcome::of(trial) == Outcome::Infeasible) {
        keys.push((&ticks, "infeasible"));
    }
    let left_out =
        if shown < all { format!(" The {shown} most important of {all} parameters.") } else { String::new() };
    format!("{}{left_out}", legend(&keys))
}

impl Slices<'_> {
    fn chart(&self, index: usize, (name, domain): &(String, Domain)) -> String {
        let Self { page, ranking, objective, .. } = self;
        let is_drawn = |trial: &&Trial| {
            let ended = ranking.level(trial).is_some() || Outcome::of(trial) == Outcome::Infeasible;
            ended && trial.point.contains_key(name)
        };
        let all: Vec<&Trial> = page.trials.iter().filter(is_drawn).collect();
        let count = all.len();
        let drawn = ranking.select(all, self.most);
        let settings: Vec<&Value> = drawn.iter().filter_map(|trial| trial.point.get(name)).collect();
        let lane = drawn.iter().any(|trial| ranking.level(trial).is_none());
        let frame = Frame { x: Axis::parameter(domain, &settings), y: self.y.clone(), name: String::new(), lane };
        let series = |shape, class, wanted: &dyn Fn(Option<Level>) -> bool| {
            let of = drawn.iter().filter(|trial| wanted(ranking.level(trial)));
            Series::new(shape, class, of.filter_map(|trial| self.mark(&frame, trial, name)).collect())
        };
        let mut svg = String::new();
        frame.axes(&mut svg);
        series(Shape::Tick, "bad", &|level| level.is_none()).draw(&mut svg);
        series(Shape::Dot, "complete", &|level| level.is_some_and(|level| level < Level::Best)).draw(&mut svg);
        series(Shape::Dot, "winner", &|level| level == Some(Level::Best)).draw(&mut svg);
        let caption = escape(&end_of(name, 60));
        let label = format!("{} by {caption}", title(&page.objectives[*objective].0));
        let key = format!("slice-{objective}-{index}");
        figure(&key, &caption, &label, &svg, &selection_note(drawn.len(), count))
    }

    fn mark(&self, frame: &Frame, trial: &Trial, name: &str) -> Option<Mark> {
        let setting = trial.point.get(name)?;
        let x = frame.x.place(setting)? + jitter(trial.number) * frame.x.category_width();
        let setting = escape(&plain_setting(setting, 24));
        match value(trial, self.objective).filter(|_| self.ranking.level(trial).is_some()) {
            Some(value) => {
                Some(frame.mark(x, value, format!("trial {}: {} at {setting}", trial.number, number(value))))
            }
            None => {
                let tip = format!("trial {}: infeasible at {setting}", trial.number);
                Some(Mark { x: frame.across(x), y: frame.in_lane(), beyond: (0, 0), tip })
            }
        }
    }
}

/// From -0.25 to 0.25, always the same for a trial: marks of one category would cover each other.
fn jitter(number: u64) -> f64 {
    (number as f64 * 0.618_033_988_75).fract() * 0.5 - 0.25
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::html::study::parameters;
    use crate::report::html::study::samples::{Sample, infeasible, trial};
    use pipe_search::{Direction, TrialState};

    fn html(sample: &Sample) -> String {
        let page = sample.page();
        section(&page, &Ranking::new(page.trials, page.objectives), &parameters(&page))
    }

    #[test]
    fn a_chart_for_each_parameter() {
        let mut trials = vec![trial(0, 0.5), trial(1, 0.25), infeasible(2), trial(3, 0.1)];
        trials[0].point.remove("lr");
        trials[3].state = TrialState::Failed;
        let html = html(&Sample::of(trials));
        let charts: Vec<&str> = html.split("<figure").skip(1).collect();
        let count = |chart: usize, text: &str| charts[chart].matches(text).count();
        assert_eq!((charts.len(), count(0, "<circle"), count(1, "<circle")), (2, 1, 2), "{html}");
        assert_eq!((count(0, "v10\">"), count(1, "v10\">")), (1, 1), "{html}");
        assert!(html.contains("trial 1: 0.2500 at 2") && html.contains("1e-4"), "{html}");
    }

    #[test]
    fn each_objective_has_its_own() {
        let mut one = trial(0, 0.5);
        one.values.push(0.75);
        let mut sample = Sample::of(vec![one]);
        sample.objectives.push(("accuracy".to_owned(), Direction::Maximize));
        assert_eq!(html(&sample).matches("<figure").count(), 4);
        assert_eq!(html(&Sample::default()), "");
    }

    #[test]
    fn marks_of_a_category_stay_in_it() {
        assert!((0..1000).all(|number| jitter(number).abs() <= 0.25));
    }
}

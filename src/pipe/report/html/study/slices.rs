//! Small charts: each parameter against each objective, and each objective against another with the Pareto front.

use std::fmt::Write;

use pipe_search::{Direction, Domain, Trial};
use serde_json::Value;

use super::ranking::{Level, Outcome, Ranking, front, selection_note, value};
use super::{StudyPage, most_important};
use crate::report::bounded;
use crate::report::html::axis::Axis;
use crate::report::html::chart::{Frame, Mark, Point, Series, Shape, beyond_note, empty, figure, legend};
use crate::report::html::markup::{better, end_of, escape, number, plain_setting, title};

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

/// The charts of each parameter against each objective.
pub fn section(page: &StudyPage<'_>, ranking: &Ranking<'_>, parameters: &[(String, Domain)]) -> String {
    let objectives = page.objectives.len().min(MOST_OBJECTIVES);
    if ranking.ranked.is_empty() || parameters.is_empty() || objectives == 0 {
        return String::new();
    }
    let shown = most_important(page, parameters, MOST_CHARTS);
    let most = (MOST_MARKS / (shown.len() * objectives)).clamp(20, MOST_IN_ONE);
    let mut html = "<section id=\"slices\"><h2>Each parameter against the objective</h2>".to_owned();
    write!(html, "<p class=\"note\">{}</p>", marks_legend(page, parameters.len(), shown.len())).ok();
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

/// The meaning of the marks of all charts.
fn marks_legend(page: &StudyPage<'_>, all: usize, shown: usize) -> String {
    let [best, complete, ticks] = [(Shape::Dot, "winner"), (Shape::Dot, "complete"), (Shape::Tick, "bad")]
        .map(|(shape, class)| Series::sample(shape, class));
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
        let x = frame.x.setting(setting)? + jitter(trial.number) * frame.x.category_width();
        let setting = escape(&plain_setting(setting, 24));
        match value(trial, self.objective).filter(|_| self.ranking.level(trial).is_some()) {
            Some(value) => {
                Some(frame.mark(x, value, format!("trial {}: {} at {setting}", trial.number, number(value))))
            }
            None => Some(frame.mark_in_lane(x, format!("trial {}: infeasible at {setting}", trial.number))),
        }
    }
}

/// From -0.25 to 0.25, always the same for a trial: marks of one category would cover each other.
fn jitter(number: u64) -> f64 {
    (number as f64 * 0.618_033_988_75).fract() * 0.5 - 0.25
}

/// Pairs of objectives that are drawn.
const MOST_PAIRS: usize = 6;
/// Marks of all pairs together.
const MOST_OF_PAIRS: usize = 1800;

/// A chart for each pair; nothing for one objective.
pub fn fronts(page: &StudyPage<'_>, ranking: &Ranking<'_>) -> String {
    let count = page.objectives.len();
    let pairs = (0..count).flat_map(|first| (first + 1..count).map(move |second| (first, second)));
    let pairs: Vec<(usize, usize)> = pairs.take(MOST_PAIRS).collect();
    pairs.iter().map(|pair| front_chart(page, ranking, *pair, MOST_OF_PAIRS / pairs.len())).collect()
}

fn front_chart(page: &StudyPage<'_>, ranking: &Ranking<'_>, pair: (usize, usize), most: usize) -> String {
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
    let frame = Frame { x, y, name: format!("{x_name}, {}", better(*x_to)), lane: false };
    let series = |class: &'static str, wanted: bool| {
        let of = drawn.iter().filter(|trial| (ranking.level(trial) == Some(Level::Best)) == wanted);
        let mark = |trial: &&Trial| {
            let (across, down) = both(trial);
            let tip = format!(
                "trial {}: {} {}, {} {}",
                trial.number,
                escape(&bounded(x_name, 40)),
                number(across),
                escape(&bounded(y_name, 40)),
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
    frame.stairs(&mut svg, "Pareto front", &stairs(&drawn, (pair.0, *x_to), (pair.1, *y_to)), None);
    best.draw(&mut svg);
    let note = [
        legend(&[(&best, "on the Pareto front: no other trial dominates it"), (&others, "dominated")]),
        format!(" {}: {}.", title(y_name), better(*y_to)),
        beyond_note(&[&others, &best]).to_owned(),
        selection_note(drawn.len(), ranking.ranked.len()),
    ];
    let label = format!("{caption}, with the Pareto front");
    figure(&key, &caption, &label, &svg, &note.concat())
}

/// The front of two objectives alone, from the best of the first to the best of the second.
fn stairs(trials: &[&Trial], x: (usize, Direction), y: (usize, Direction)) -> Vec<Point> {
    let point = |trial: &&Trial| Some((value(trial, x.0)?, value(trial, y.0)?));
    let mut points: Vec<Point> = front(trials, &[x, y]).iter().filter_map(point).collect();
    points.sort_by(|a, b| if x.1 == Direction::Minimize { a.0.total_cmp(&b.0) } else { b.0.total_cmp(&a.0) });
    points.dedup();
    points
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::html::study::parameters;
    use crate::report::html::study::samples::{Sample, infeasible, trial};
    use pipe_search::TrialState;

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

    #[test]
    fn the_front_is_strong_and_the_others_faint() {
        let pairs = [(1.0, 0.5), (2.0, 0.9), (3.0, 0.7), (4.0, 0.95)];
        let mut trials: Vec<Trial> = (0..).zip(pairs).map(|(number, pair)| trial(number, pair.0)).collect();
        trials.iter_mut().zip(pairs).for_each(|(trial, pair)| trial.values = vec![pair.0, pair.1]);
        let mut sample = Sample::of(trials);
        sample.objectives.push(("accuracy".to_owned(), Direction::Maximize));
        let page = sample.page();
        let html = fronts(&page, &Ranking::new(page.trials, page.objectives));
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
        assert_eq!(fronts(&page, &Ranking::new(page.trials, page.objectives)), "");
    }
}

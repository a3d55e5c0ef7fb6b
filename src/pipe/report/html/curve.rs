//! A chart of curves over the steps of runs, with lines where attempts start. Colours and dashes are the page's.

use std::fmt::Write;

use super::axis::{Axis, Unit};
use super::chart::{BOTTOM, Frame, Point, TOP, empty, figure};
use super::markup::escape;
use crate::report::figure as number;

/// Points of a curve, at most; where their values are beside them, fewer.
const MAX_POINTS: usize = 1000;
const MAX_VALUES: usize = 400;
/// From this many points on, noise hides a curve.
const NOISY_POINTS: usize = 200;
/// Names of attempts that are closer than this would cover each other.
const NAME_WIDTH: f64 = 36.0;

/// The part of curves that is drawn, and how.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct View {
    /// The first and the last step; all steps where it is absent.
    pub steps: Option<(f64, f64)>,
    pub smoothing: Smoothing,
    /// Whether the values are written beside the drawing, for a script that shows the one under the pointer.
    pub values: bool,
}

impl View {
    /// The legend of a curve that is drawn light, with a smooth one over it.
    pub fn smoothing_note(&self) -> String {
        match self.smoothing {
            Smoothing::Mean => "light: each step; dark: running mean".to_owned(),
            Smoothing::Exponential(weight) => format!("light: each value; dark: smoothed by {weight}"),
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Smoothing {
    /// A running mean over long curves that are noisy.
    #[default]
    Mean,
    /// An exponential mean with this weight, from 0 (none) to below 1, of what was before.
    Exponential(f64),
}

impl Smoothing {
    /// A larger weight would show the first value alone.
    pub const MOST: f64 = 0.999;
}

/// Points from which on a curve can be smoothed.
const FEW_POINTS: usize = 3;

/// Curves over steps.
pub struct Chart {
    /// The id of the figure: `loss`.
    pub key: String,
    pub title: String,
    pub unit: Unit,
    pub curves: Vec<Curve>,
    /// Heights that are the same at every step.
    pub levels: Vec<(String, f64)>,
    pub attempts: Vec<AttemptLine>,
}

/// A line where an attempt starts, or several do.
pub struct AttemptLine {
    pub step: f64,
    pub name: String,
    /// The name and the style of its run, where the chart shows several runs.
    pub run: Option<(String, usize)>,
}

pub struct Curve {
    pub name: String,
    pub points: Vec<Point>,
    /// The number of one of the page's colours and dashes.
    pub style: usize,
    pub look: Look,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    Line,
    /// A line that is drawn faint where it is long, with its running mean over it.
    Noisy,
    Dots,
    /// A line with a dot for each point.
    Marked,
}

/// The classes of a style: every one of the first forty is another.
pub fn style(index: usize) -> String {
    format!("c{} d{}", index % 8, index % 5)
}

/// Values that differ by less than this share of the largest are one height; memory is where it differs by less than that.
const FLAT: f64 = 0.01;
const FLAT_MEMORY: f64 = 0.1;

impl Chart {
    /// Whether its curves stay at one height, or there is nothing to show.
    pub fn is_flat(&self) -> bool {
        let share = if self.unit == Unit::Bytes { FLAT_MEMORY } else { FLAT };
        let is_flat = |curve: &Curve| {
            let heights = || curve.points.iter().map(|point| point.1);
            let (low, high) = (heights().fold(f64::INFINITY, f64::min), heights().fold(f64::NEG_INFINITY, f64::max));
            curve.points.len() < 2 || high - low <= share * high.abs().max(low.abs())
        };
        self.curves.iter().all(is_flat)
    }

    /// Whether a curve is drawn light, with a smooth one over it.
    pub fn is_smoothed(&self, view: &View) -> bool {
        self.curves.iter().any(|curve| curve.is_smoothed(view))
    }

    /// The figure, or a line that says that there is nothing to show.
    pub fn draw(&self, view: &View) -> String {
        let all = || self.curves.iter().flat_map(|curve| within(&curve.points, view));
        let title = escape(&self.title);
        if all().next().is_none() {
            let why = if view.steps.is_some() { "Nothing in these steps." } else { "Nothing was recorded." };
            return empty(&self.key, &title, why);
        }
        // A part of the steps may be far from what was before, which an exponential mean still holds.
        let smoothed: Vec<Point> = self.curves.iter().filter_map(|curve| curve.smoothed(view)).flatten().collect();
        let points = || all().chain(&smoothed).map(|point| point.1);
        let heights = || points().chain(self.levels.iter().map(|level| level.1));
        let low = heights().fold(f64::INFINITY, f64::min);
        let high = heights().fold(f64::NEG_INFINITY, f64::max);
        // An axis from 0 hides the progress of values that all lie far above it.
        let from_zero = self.unit == Unit::Bytes || low < high / 2.0 || low == high;
        let low = if low > 0.0 && from_zero { 0.0 } else { low };
        let high = if high < 0.0 && low == high { 0.0 } else { high };
        let y = Axis::around(low, high, self.unit);
        let is_seen = |step: f64| view.steps.is_none_or(|(first, last)| (first..=last).contains(&step));
        let attempts: Vec<&AttemptLine> = self.attempts.iter().filter(|attempt| is_seen(attempt.step)).collect();
        let ends = all().map(|point| point.0).chain(attempts.iter().map(|attempt| attempt.step));
        let x = match view.steps {
            Some((first, last)) => Axis::counted_between(first, ends.fold(first, f64::max).min(last)),
            None => Axis::counted(ends.fold(0.0, f64::max)),
        };
        let frame = Frame { x, y, name: "step".to_owned(), lane: false };
        let mut svg = String::new();
        if self.unit == Unit::Bytes {
            self.bands(&mut svg, &frame);
        }
        frame.axes(&mut svg);
        for (index, attempt) in attempts.iter().enumerate() {
            let across = |attempt: &AttemptLine| frame.across(frame.x.at(attempt.step));
            let beside = |other: &&&AttemptLine| (across(other) - across(attempt)).abs() < NAME_WIDTH;
            attempt.draw(&mut svg, across(attempt), attempts[..index].iter().filter(beside).count());
        }
        self.levels.iter().for_each(|(name, height)| frame.level(&mut svg, name, *height));
        self.curves.iter().for_each(|curve| curve.draw(&mut svg, &frame, view));
        if view.values {
            frame.scale(&mut svg);
        }
        figure(&self.key, &title, &format!("{title} over steps"), &svg, "")
    }

    /// Every second attempt as a band behind the curves.
    fn bands(&self, svg: &mut String, frame: &Frame) {
        let ends = self.attempts.iter().skip(1).map(|attempt| attempt.step).chain([f64::INFINITY]);
        for (attempt, end) in
            self.attempts.iter().zip(ends).skip(1).step_by(2).filter(|(attempt, _)| attempt.run.is_none())
        {
            let across = |step: f64| frame.across(if step.is_finite() { frame.x.at(step) } else { 1.0 });
            let (left, width) = (across(attempt.step), across(end) - across(attempt.step));
            let height = BOTTOM - TOP;
            write!(svg, "<rect class=\"band\" x=\"{left:.1}\" y=\"{TOP}\" width=\"{width:.1}\" height=\"{height}\">")
                .ok();
            write!(svg, "<title>attempt {}</title></rect>", escape(&attempt.name)).ok();
        }
    }
}

impl AttemptLine {
    /// Lines that are close to each other get a column each for their names.
    fn draw(&self, svg: &mut String, x: f64, column: usize) {
        let (name, step) = (escape(&self.name), self.step);
        let (class, of) = match &self.run {
            None => ("mark".to_owned(), String::new()),
            Some((run, index)) => (format!("mark own {}", style(*index)), format!(" of {}", escape(run))),
        };
        write!(svg, "<g class=\"{class}\"><title>attempt {name}{of} begins after step {step}</title>").ok();
        write!(svg, "<path d=\"M{x:.1} {}V{BOTTOM}\"/>", TOP - 8.0).ok();
        let (x, y) = (x + NAME_WIDTH * column as f64, TOP - 12.0);
        write!(svg, "<text class=\"middle\" x=\"{x:.1}\" y=\"{y}\">{name}</text></g>").ok();
    }
}

impl Curve {
    fn is_smoothed(&self, view: &View) -> bool {
        let count = within(&self.points, view).len();
        match view.smoothing {
            Smoothing::Mean => self.look == Look::Noisy && count >= NOISY_POINTS,
            Smoothing::Exponential(weight) => {
                weight > 0.0 && matches!(self.look, Look::Noisy | Look::Marked) && count >= FEW_POINTS
            }
        }
    }

    /// A smooth curve with a point for each that is drawn; nothing where it is drawn as it is.
    fn smoothed(&self, view: &View) -> Option<Vec<Point>> {
        let points = within(&self.points, view);
        self.is_smoothed(view).then(|| match view.smoothing {
            Smoothing::Mean => running_mean(points, points.len() / 100),
            // From the first step on, so that a part of the steps shows the same curve.
            Smoothing::Exponential(weight) => within(&exponential_mean(&self.points, weight), view).to_vec(),
        })
    }

    fn draw(&self, svg: &mut String, frame: &Frame, view: &View) {
        let points = thin(within(&self.points, view), if view.values { MAX_VALUES } else { MAX_POINTS });
        let dots = self.look == Look::Dots || points.len() == 1;
        let smoothed = self.smoothed(view);
        let name = escape(&self.name);
        write!(svg, "<g class=\"curve {}\"", style(self.style)).ok();
        if view.values {
            let list = |value: &dyn Fn(&Point) -> String| points.iter().map(value).collect::<Vec<_>>().join(" ");
            let (steps, values) = (list(&|point| point.0.to_string()), list(&|point| short_exact(point.1)));
            write!(svg, " data-name=\"{name}\" data-steps=\"{steps}\" data-values=\"{values}\"").ok();
            if let Some(smoothed) = &smoothed {
                let at = |step: f64| smoothed.get(smoothed.partition_point(|point| point.0 < step));
                let values = list(&|point| at(point.0).map_or(String::new(), |found| short_exact(found.1)));
                write!(svg, " data-smooth=\"{values}\"").ok();
            }
        }
        write!(svg, "><title>{name}</title>").ok();
        if !dots {
            frame.polyline(svg, if smoothed.is_some() { " class=\"faint\"" } else { "" }, &points);
        }
        if let Some(smoothed) = smoothed {
            frame.polyline(svg, "", &thin(&smoothed, MAX_POINTS / 4));
        }
        if dots || self.look == Look::Marked {
            for (step, height) in points {
                let (x, y) = frame.point((step, height));
                let tip = format!("{}, step {step}: {}", escape(&self.name), number(height));
                write!(svg, "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3.5\"><title>{tip}</title></circle>").ok();
            }
        }
        svg.push_str("</g>");
    }
}

/// The points of the steps that are drawn, of points in order.
fn within<'a>(points: &'a [Point], view: &View) -> &'a [Point] {
    let Some((first, last)) = view.steps else { return points };
    let begin = points.partition_point(|point| point.0 < first);
    let end = points.partition_point(|point| point.0 <= last);
    points.get(begin..end).unwrap_or_default()
}

/// At most `most` points, in order: the ends, and the lowest and the highest of every stretch, so that spikes stay.
pub fn thin(points: &[Point], most: usize) -> Vec<Point> {
    let [first, inner @ .., last] = points else { return points.to_vec() };
    if points.len() <= most {
        return points.to_vec();
    }
    let stretches = (most.saturating_sub(2) / 2).max(1);
    let mut kept = vec![*first];
    for stretch in inner.chunks(inner.len().div_ceil(stretches)) {
        let by_height = |a: &&Point, b: &&Point| a.1.total_cmp(&b.1);
        let (Some(low), Some(high)) = (stretch.iter().min_by(by_height), stretch.iter().max_by(by_height)) else {
            continue;
        };
        kept.push(if low.0 <= high.0 { *low } else { *high });
        if low.0 != high.0 {
            kept.push(if low.0 <= high.0 { *high } else { *low });
        }
    }
    kept.push(*last);
    kept
}

/// A number to seven digits.
fn short_exact(value: f64) -> String {
    let rounded: f64 = format!("{value:.6e}").parse().unwrap_or(value);
    if (1e-4..1e12).contains(&rounded.abs()) || rounded == 0.0 { rounded.to_string() } else { format!("{rounded:e}") }
}

/// The mean of as many points on each side; of fewer at the beginning, where curves are steep.
fn running_mean(points: &[Point], reach: usize) -> Vec<Point> {
    let mut sums = vec![0.0];
    for point in points {
        sums.push(sums[sums.len() - 1] + point.1);
    }
    let mean = |index: usize| {
        let before = reach.min(index);
        let after = before.min(points.len() - 1 - index);
        (sums[index + after + 1] - sums[index - before]) / (before + after + 1) as f64
    };
    points.iter().enumerate().map(|(index, point)| (point.0, mean(index))).collect()
}

/// The mean of all points before, each weighing `weight` times as much as the next one. It is divided by the sum of these
/// weights, so that it does not begin at 0 (the bias correction of Adam, https://arxiv.org/abs/1412.6980, section 3).
fn exponential_mean(points: &[Point], weight: f64) -> Vec<Point> {
    let (mut sum, mut weights) = (0.0, 0.0);
    let mut mean = |point: &Point| {
        sum = sum * weight + point.1;
        weights = weights * weight + 1.0;
        (point.0, sum / weights)
    };
    points.iter().map(&mut mean).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart(points: Vec<Point>) -> Chart {
        let curve = Curve { name: "<b>&\"".to_owned(), points, style: 0, look: Look::Noisy };
        let mark = |step, name: &str| AttemptLine { step, name: name.to_owned(), run: None };
        let attempts = vec![mark(0.0, "1"), mark(20.0, "2")];
        Chart {
            key: "loss".to_owned(),
            title: "Loss".to_owned(),
            unit: Unit::Number,
            curves: vec![curve],
            levels: Vec::new(),
            attempts,
        }
    }

    #[test]
    fn a_chart_has_its_parts() {
        let svg =
            chart((1..=5000).map(|step| (f64::from(step), 1.0 / f64::from(step))).collect()).draw(&View::default());
        assert!(svg.contains("<title>Loss over steps</title>") && svg.contains("&lt;b&gt;&amp;&quot;"));
        assert_eq!((svg.matches("<polyline").count(), svg.matches("class=\"mark\"").count()), (2, 2));
        assert!(svg.len() < 20_000 && !svg.contains("NaN") && !svg.contains("inf"), "{}", svg.len());
    }

    #[test]
    fn marks_of_several_runs_do_not_cover_each_other() {
        let mut chart = chart((1..=100).map(|step| (f64::from(step), 1.0)).collect());
        let mark = |step, run| AttemptLine { step, name: "1-3".to_owned(), run: Some(("a<b".to_owned(), run)) };
        chart.attempts = vec![mark(0.0, 0), mark(0.0, 1), mark(60.0, 1)];
        let svg = chart.draw(&View::default());
        assert!(svg.contains("class=\"mark own c1 d1\"") && svg.contains("attempt 1-3 of a&lt;b begins"), "{svg}");
        let positions: Vec<&str> =
            svg.split("\" y=\"14\">1-3</text>").filter_map(|part| part.rsplit("x=\"").next()).collect();
        assert_eq!(positions[..3], ["78.0", "114.0", "306.0"], "{svg}");
    }

    #[test]
    fn an_axis_starts_at_zero_only_where_that_hides_nothing() {
        let first_tick = |heights: [f64; 2]| {
            let svg = chart(vec![(1.0, heights[0]), (2.0, heights[1])]).draw(&View::default());
            let tick = svg.split("<text class=\"end\"").nth(1).and_then(|text| text.split(['>', '<']).nth(1));
            tick.unwrap_or_default().to_owned()
        };
        for (heights, want) in [([0.1, 0.9], "0"), ([2.0, 2.2], "2.00"), ([-1.0, 1.0], "-1.0"), ([3.0, 3.0], "0")] {
            assert_eq!(first_tick(heights), want, "{heights:?}");
        }
    }

    #[test]
    fn curves_at_one_height() {
        let is_flat = |heights: &[f64]| chart((1..).map(f64::from).zip(heights.iter().copied()).collect()).is_flat();
        for (heights, want) in [(&[][..], true), (&[1.0], true), (&[1.0, 1.005], true), (&[1.0, 1.1], false)] {
            assert_eq!(is_flat(heights), want, "{heights:?}");
        }
        assert!(is_flat(&[0.0, 0.0]) && !is_flat(&[0.0, 0.1]));
    }

    #[test]
    fn nothing_and_a_single_point() {
        assert!(chart(Vec::new()).draw(&View::default()).contains("Nothing was recorded"));
        let svg = chart(vec![(3.0, 7.0)]).draw(&View::default());
        assert!(svg.contains("<circle") && !svg.contains("NaN"));
    }

    #[test]
    fn a_part_of_the_steps() {
        let chart = chart((1..=5000).map(|step| (f64::from(step), if step == 1503 { 9.0 } else { 1.0 })).collect());
        let view = View { steps: Some((1500.0, 1600.0)), values: true, ..View::default() };
        let svg = chart.draw(&view);
        assert!(svg.contains("data-steps=\"1500 1501 ") && svg.contains(" 1600\" data-values=\"1 1 1 9 1 "), "{svg}");
        assert!(svg.contains("class=\"scale\" data-x=\"1500 1600\"") && !svg.contains("class=\"mark\""), "{svg}");
        let beyond = View { steps: Some((6000.0, 7000.0)), ..view };
        assert!(chart.draw(&beyond).contains("Nothing in these steps"));
        // A peak of one step of many stays.
        let all = chart.draw(&View { values: true, ..View::default() });
        assert!(all.contains(" 1503 ") && all.contains(" 9 "), "{all}");
        for (smoothing, want) in
            [(Smoothing::Mean, 2), (Smoothing::Exponential(0.0), 1), (Smoothing::Exponential(0.9), 2)]
        {
            assert_eq!(chart.draw(&View { smoothing, ..View::default() }).matches("<polyline").count(), want);
        }
    }

    #[test]
    fn an_exponential_mean_is_that_of_tensorboard() {
        let mean = |heights: &[f64], weight: f64| {
            let points: Vec<Point> = (1..).map(f64::from).zip(heights.iter().copied()).collect();
            exponential_mean(&points, weight).iter().map(|point| point.1).collect::<Vec<_>>()
        };
        // 4, then (4 * 0.5 + 2) / 1.5, then (4 * 0.25 + 2 * 0.5 + 0) / 1.75.
        let found = mean(&[4.0, 2.0, 0.0], 0.5);
        assert!(found.iter().zip([4.0, 8.0 / 3.0, 8.0 / 7.0]).all(|(a, b)| (a - b).abs() < 1e-12), "{found:?}");
        assert!(mean(&[7.0; 5000], 0.999).iter().all(|mean| (mean - 7.0).abs() < 1e-9));
        assert!(mean(&[], 0.9).is_empty());
        // A part of the steps shows the same curve, and its values are beside the drawing.
        let chart = chart((1..=10).map(|step| (f64::from(step), f64::from(10 - step))).collect());
        let smooth = |steps| {
            let view = View { steps, smoothing: Smoothing::Exponential(0.5), values: true };
            let svg = chart.draw(&view);
            assert!(chart.is_smoothed(&view) && svg.contains("class=\"faint\""), "{svg}");
            svg.split("data-smooth=\"").nth(1).and_then(|rest| rest.split('"').next()).unwrap_or_default().to_owned()
        };
        // Its axis holds what the mean still holds of the steps before.
        let mut steep = chart.curves[0].points.clone();
        steep[0].1 = 1000.0;
        let view = View { steps: Some((2.0, 10.0)), smoothing: Smoothing::Exponential(0.5), values: false };
        let svg = self::chart(steep).draw(&view);
        assert!(!svg.contains(&format!(",{TOP:.1}")), "{svg}");
        let all = smooth(None);
        assert_eq!(all.split(' ').count(), 10);
        assert_eq!(
            smooth(Some((8.0, 10.0))),
            all.rsplitn(4, ' ').take(3).collect::<Vec<_>>().into_iter().rev().collect::<Vec<_>>().join(" ")
        );
    }

    #[test]
    fn styles_differ() {
        let styles: std::collections::BTreeSet<String> = (0..40).map(style).collect();
        assert_eq!(styles.len(), 40);
    }

    #[test]
    fn few_points_stay() {
        let points: Vec<Point> = (0..10).map(|x| (f64::from(x), 1.0)).collect();
        assert_eq!(thin(&points, 10), points);
        assert_eq!(thin(&[], 10), []);
        assert_eq!(thin(&points[..1], 0), points[..1]);
    }

    #[test]
    fn means_follow_a_line_and_flatten_noise() {
        let line: Vec<Point> = (0..1000).map(|x| (f64::from(x), f64::from(2 * x))).collect();
        assert!(running_mean(&line, 10)[..990].iter().zip(&line).all(|(mean, point)| (mean.1 - point.1).abs() < 1e-6));
        let noise: Vec<Point> = (0..1000).map(|x| (f64::from(x), f64::from(x % 2))).collect();
        assert!(running_mean(&noise, 10)[20..].iter().all(|mean| (mean.1 - 0.5).abs() < 0.06));
        assert_eq!(running_mean(&[], 10), []);
    }

    #[test]
    fn spikes_and_ends_stay() {
        let height = |x: u32| match x {
            31_337 => 900.0,
            77_777 => -900.0,
            x => f64::from(x % 17),
        };
        let points: Vec<Point> = (0..100_000).map(|x| (f64::from(x), height(x))).collect();
        for most in [10, 999, 1000] {
            let kept = thin(&points, most);
            assert!(kept.len() <= most && kept.len() > most / 2, "{} of {most}", kept.len());
            assert!(kept.is_sorted_by(|a, b| a.0 < b.0));
            assert_eq!((kept.first(), kept.last()), (points.first(), points.last()));
            assert!(kept.contains(&(31_337.0, 900.0)) && kept.contains(&(77_777.0, -900.0)));
        }
    }
}

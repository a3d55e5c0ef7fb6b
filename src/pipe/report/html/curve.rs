//! A line chart as inline SVG: axes, curves, and lines where attempts begin. Colours and dashes are the page's.

use std::fmt::Write;

use super::escape::escape;
use super::scale::{Scale, Unit};
use super::thin::{Point, running_mean, thin};
use crate::report::figure;

/// Points of a curve, at most.
const MAX_POINTS: usize = 1000;
/// From so many points on, noise hides a curve.
const NOISY_POINTS: usize = 200;
const WIDTH: f64 = 480.0;
const HEIGHT: f64 = 240.0;
const LEFT: f64 = 62.0;
const RIGHT: f64 = 22.0;
const TOP: f64 = 26.0;
const BOTTOM: f64 = 36.0;
/// Names of marks that are closer than this would cover each other.
const NAME_WIDTH: f64 = 36.0;

/// One curve over steps.
pub struct Chart {
    /// The id of the figure: `loss`.
    pub key: String,
    pub title: String,
    pub unit: Unit,
    pub curves: Vec<Curve>,
    /// The axis reaches up to here at least.
    pub top: f64,
    /// Heights that are the same at every step.
    pub levels: Vec<(String, f64)>,
    pub marks: Vec<Mark>,
}

/// Where an attempt begins, or several.
pub struct Mark {
    pub step: f64,
    pub name: String,
    /// Which run it is of, where there are several: its name, and its style.
    pub run: Option<(String, usize)>,
}

pub struct Curve {
    pub name: String,
    pub points: Vec<Point>,
    /// Which of the page's colours and dashes it has.
    pub style: usize,
    pub kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
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

impl Chart {
    /// The figure, or a line that says that there is nothing to show.
    pub fn svg(&self) -> String {
        let all = || self.curves.iter().flat_map(|curve| &curve.points);
        let title = escape(&self.title);
        let mut html = format!("<figure id=\"figure-{}\"><figcaption>{title}</figcaption>", self.key);
        if all().next().is_none() {
            html.push_str("<p class=\"none\">Nothing was recorded.</p></figure>\n");
            return html;
        }
        let heights = || all().map(|point| point.1).chain(self.levels.iter().map(|level| level.1));
        let low = heights().fold(0.0, f64::min);
        let high = heights().fold(f64::NEG_INFINITY, f64::max);
        let y = Scale::around(low, if self.top > 0.0 { high.max(self.top) } else { high }, self.unit);
        let ends = all().map(|point| point.0).chain(self.marks.iter().map(|mark| mark.step));
        let x = Scale::of_steps(ends.fold(0.0, f64::max));
        let frame = Frame { x, y };
        write!(html, "<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\"><title>{title} over steps</title>").ok();
        frame.axes(&mut html);
        for (index, mark) in self.marks.iter().enumerate() {
            let beside = |other: &&Mark| (frame.across(other.step) - frame.across(mark.step)).abs() < NAME_WIDTH;
            frame.mark(&mut html, mark, self.marks[..index].iter().filter(beside).count());
        }
        self.levels.iter().for_each(|level| frame.level(&mut html, level));
        self.curves.iter().for_each(|curve| frame.curve(&mut html, curve));
        html.push_str("</svg></figure>\n");
        html
    }
}

struct Frame {
    x: Scale,
    y: Scale,
}

impl Frame {
    fn across(&self, x: f64) -> f64 {
        LEFT + self.x.position(x) * (WIDTH - LEFT - RIGHT)
    }

    fn down(&self, y: f64) -> f64 {
        HEIGHT - BOTTOM - self.y.position(y) * (HEIGHT - TOP - BOTTOM)
    }

    fn axes(&self, html: &mut String) {
        let (right, bottom) = (WIDTH - RIGHT, HEIGHT - BOTTOM);
        for (value, text) in &self.y.ticks {
            let y = self.down(*value);
            write!(html, "<path class=\"grid\" d=\"M{LEFT} {y:.1}H{right}\"/>").ok();
            write!(html, "<text class=\"end\" x=\"{}\" y=\"{:.1}\">{text}</text>", LEFT - 7.0, y + 4.0).ok();
        }
        for (value, text) in &self.x.ticks {
            let x = self.across(*value);
            write!(html, "<path class=\"axis\" d=\"M{x:.1} {bottom}v4\"/>").ok();
            write!(html, "<text class=\"middle\" x=\"{x:.1}\" y=\"{}\">{text}</text>", bottom + 17.0).ok();
        }
        write!(html, "<path class=\"axis\" d=\"M{LEFT} {bottom}H{right}\"/>").ok();
        write!(html, "<text class=\"end\" x=\"{right}\" y=\"{}\">step</text>", HEIGHT - 4.0).ok();
    }

    /// Marks that are close to each other get a column each for their names.
    fn mark(&self, html: &mut String, mark: &Mark, column: usize) {
        let (x, name, step) = (self.across(mark.step), escape(&mark.name), mark.step);
        let (class, of) = match &mark.run {
            None => ("mark".to_owned(), String::new()),
            Some((run, index)) => (format!("mark own {}", style(*index)), format!(" of {}", escape(run))),
        };
        write!(html, "<g class=\"{class}\"><title>attempt {name}{of} begins after step {step}</title>").ok();
        write!(html, "<path d=\"M{x:.1} {}V{}\"/>", TOP - 8.0, HEIGHT - BOTTOM).ok();
        let (x, y) = (x + NAME_WIDTH * column as f64, TOP - 12.0);
        write!(html, "<text class=\"middle\" x=\"{x:.1}\" y=\"{y}\">{name}</text></g>").ok();
    }

    fn level(&self, html: &mut String, (name, height): &(String, f64)) {
        let (y, name) = (self.down(*height), escape(name));
        let right = WIDTH - RIGHT;
        write!(html, "<g class=\"level\"><path d=\"M{LEFT} {y:.1}H{right}\"/>").ok();
        write!(html, "<text class=\"end\" x=\"{}\" y=\"{:.1}\">{name}</text></g>", right - 4.0, y + 15.0).ok();
    }

    fn curve(&self, html: &mut String, curve: &Curve) {
        let points = thin(&curve.points, MAX_POINTS);
        write!(html, "<g class=\"curve {}\"><title>{}</title>", style(curve.style), escape(&curve.name)).ok();
        if curve.kind == Kind::Dots || points.len() == 1 {
            points.iter().for_each(|point| self.dot(html, curve, *point));
        } else if curve.kind == Kind::Marked {
            self.line(html, "", &points);
            points.iter().for_each(|point| self.dot(html, curve, *point));
        } else if curve.kind == Kind::Noisy && curve.points.len() >= NOISY_POINTS {
            self.line(html, " class=\"faint\"", &points);
            self.line(html, "", &thin(&running_mean(&curve.points), MAX_POINTS / 4));
        } else {
            self.line(html, "", &points);
        }
        html.push_str("</g>");
    }

    fn line(&self, html: &mut String, class: &str, points: &[Point]) {
        let point = |(x, y): &Point| format!("{:.1},{:.1}", self.across(*x), self.down(*y));
        let places: Vec<String> = points.iter().map(point).collect();
        write!(html, "<polyline{class} points=\"{}\"/>", places.join(" ")).ok();
    }

    fn dot(&self, html: &mut String, curve: &Curve, (step, height): Point) {
        let (x, y) = (self.across(step), self.down(height));
        let tip = format!("{}, step {step}: {}", escape(&curve.name), figure(height));
        write!(html, "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3.5\"><title>{tip}</title></circle>").ok();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart(points: Vec<Point>) -> Chart {
        let curve = Curve { name: "<b>&\"".to_owned(), points, style: 0, kind: Kind::Noisy };
        let mark = |step, name: &str| Mark { step, name: name.to_owned(), run: None };
        let marks = vec![mark(0.0, "1"), mark(20.0, "2")];
        Chart {
            key: "loss".to_owned(),
            title: "Loss".to_owned(),
            unit: Unit::Number,
            curves: vec![curve],
            top: 0.0,
            levels: Vec::new(),
            marks,
        }
    }

    #[test]
    fn a_chart_has_its_parts() {
        let svg = chart((1..=5000).map(|step| (f64::from(step), 1.0 / f64::from(step))).collect()).svg();
        assert!(svg.contains("<title>Loss over steps</title>") && svg.contains("&lt;b&gt;&amp;&quot;"));
        assert_eq!((svg.matches("<polyline").count(), svg.matches("class=\"mark\"").count()), (2, 2));
        assert!(svg.len() < 20_000 && !svg.contains("NaN") && !svg.contains("inf"), "{}", svg.len());
    }

    #[test]
    fn marks_of_several_runs_do_not_cover_each_other() {
        let mut chart = chart((1..=100).map(|step| (f64::from(step), 1.0)).collect());
        let mark = |step, run| Mark { step, name: "1-3".to_owned(), run: Some(("a<b".to_owned(), run)) };
        chart.marks = vec![mark(0.0, 0), mark(0.0, 1), mark(60.0, 1)];
        let svg = chart.svg();
        assert!(svg.contains("class=\"mark own c1 d1\"") && svg.contains("attempt 1-3 of a&lt;b begins"), "{svg}");
        let places: Vec<&str> =
            svg.split("\" y=\"14\">1-3</text>").filter_map(|part| part.rsplit("x=\"").next()).collect();
        assert_eq!(places[..3], ["62.0", "98.0", "299.6"], "{svg}");
    }

    #[test]
    fn nothing_and_a_single_point() {
        assert!(chart(Vec::new()).svg().contains("Nothing was recorded"));
        let svg = chart(vec![(3.0, 7.0)]).svg();
        assert!(svg.contains("<circle") && !svg.contains("NaN"));
    }

    #[test]
    fn styles_differ() {
        let styles: std::collections::BTreeSet<String> = (0..40).map(style).collect();
        assert_eq!(styles.len(), 40);
    }
}

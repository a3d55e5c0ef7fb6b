//! The chart kit: a frame of two axes, with curves, marks, levels and a legend, as inline SVG. Colours are the page's.

use std::fmt::Write;

use super::axis::Axis;
use super::markup::escape;
use crate::report::bounded;

pub const WIDTH: f64 = 480.0;
pub const HEIGHT: f64 = 250.0;
/// Room for labels such as `184 MiB`, which are larger in small charts.
pub const LEFT: f64 = 78.0;
pub const RIGHT: f64 = WIDTH - 22.0;
/// Over the frame, charts of runs write the numbers of attempts.
pub const TOP: f64 = 26.0;
pub const BOTTOM: f64 = HEIGHT - 44.0;
/// The height of the lane under the values.
const LANE: f64 = 18.0;
/// The width of a character beside an axis.
const LETTER: f64 = 9.0;
/// From this many marks on, they are smaller.
const MANY: usize = 250;

/// A point of a curve: x, y.
pub type Point = (f64, f64);

/// The area of a chart.
pub struct Frame {
    pub x: Axis,
    pub y: Axis,
    /// The title of the axis `x`, not escaped.
    pub name: String,
    /// Whether there is a lane under the values, for trials without one.
    pub lane: bool,
}

impl Frame {
    /// A position on `x`, from 0 to 1, as a coordinate of the drawing.
    pub fn across(&self, share: f64) -> f64 {
        LEFT + share * (RIGHT - LEFT)
    }

    /// A position on `y`, from 0 to 1, as a coordinate of the drawing.
    pub fn down(&self, share: f64) -> f64 {
        let bottom = BOTTOM - if self.lane { LANE } else { 0.0 };
        bottom - share * (bottom - TOP)
    }

    /// A point, in values of both axes, as coordinates of the drawing.
    pub fn point(&self, (x, y): Point) -> Point {
        (self.across(self.x.at(x)), self.down(self.y.at(y)))
    }

    /// A mark at the position `x`, from 0 to 1, and at a value of `y`.
    pub fn mark(&self, x: f64, value: f64, tip: String) -> Mark {
        Mark { x: self.across(x), y: self.down(self.y.at(value)), beyond: (0, self.y.beyond(value)), tip }
    }

    /// A mark in the lane.
    pub fn mark_in_lane(&self, x: f64, tip: String) -> Mark {
        Mark { x: self.across(x), y: BOTTOM - LANE / 2.0, beyond: (0, 0), tip }
    }

    pub fn axes(&self, svg: &mut String) {
        for (share, label) in &self.y.ticks {
            let (y, label) = (self.down(*share), escape(label));
            write!(svg, "<path class=\"grid\" d=\"M{LEFT} {y:.1}H{RIGHT}\"/>").ok();
            write!(svg, "<text class=\"end\" x=\"{}\" y=\"{:.1}\">{label}</text>", LEFT - 7.0, y + 4.0).ok();
        }
        // Labels of categories are shortened so that none covers the next.
        let letters = (RIGHT - LEFT) / self.x.ticks.len().max(1) as f64 / LETTER;
        let letters = if self.x.category_width() > 0.0 { (letters as usize).max(2) } else { usize::MAX };
        for (share, label) in &self.x.ticks {
            let (x, short) = (self.across(*share), bounded(label, letters));
            let whole = if short == *label { String::new() } else { format!("<title>{}</title>", escape(label)) };
            write!(svg, "<path class=\"axis\" d=\"M{x:.1} {BOTTOM}v4\"/>").ok();
            write!(svg, "<text class=\"middle\" x=\"{x:.1}\" y=\"{}\">{}{whole}</text>", BOTTOM + 17.0, escape(&short))
                .ok();
        }
        write!(svg, "<path class=\"axis\" d=\"M{LEFT} {BOTTOM}H{RIGHT}\"/>").ok();
        if self.lane {
            write!(svg, "<rect class=\"lane\" x=\"{LEFT}\" y=\"{:.1}\" ", BOTTOM - LANE).ok();
            write!(svg, "width=\"{:.1}\" height=\"{LANE}\"/>", RIGHT - LEFT).ok();
        }
        let name = escape(&bounded(&self.name, 44));
        write!(svg, "<text class=\"end\" x=\"{RIGHT}\" y=\"{}\">{name}</text>", HEIGHT - 7.0).ok();
    }

    /// The ends of both axes, for a script.
    pub fn scale(&self, svg: &mut String) {
        let (Some((x0, x1)), Some((y0, y1))) = (self.x.ends(), self.y.ends()) else { return };
        write!(svg, "<rect class=\"scale\" data-x=\"{x0} {x1}\" data-y=\"{y0} {y1}\" x=\"{LEFT}\" y=\"{TOP}\" ").ok();
        write!(svg, "width=\"{}\" height=\"{}\"/>", RIGHT - LEFT, BOTTOM - TOP).ok();
    }

    /// A dashed line at a value of `y`, with its name under it; over it near the axis `x`.
    pub fn level(&self, svg: &mut String, name: &str, value: f64) {
        let (y, name) = (self.down(self.y.at(value)), escape(name));
        let text = if y > BOTTOM - 20.0 { y - 6.0 } else { y + 15.0 };
        write!(svg, "<g class=\"level\"><path d=\"M{LEFT} {y:.1}H{RIGHT}\"/>").ok();
        write!(svg, "<text class=\"halo\" x=\"{}\" y=\"{text:.1}\">{name}</text></g>", LEFT + 6.0).ok();
    }

    pub fn polyline(&self, svg: &mut String, class: &str, points: &[Point]) {
        let text = |point: &Point| {
            let (x, y) = self.point(*point);
            format!("{x:.1},{y:.1}")
        };
        let points: Vec<String> = points.iter().map(text).collect();
        write!(svg, "<polyline{class} points=\"{}\"/>", points.join(" ")).ok();
    }

    /// A line that goes across at the height of a point until the next one; at the end on to `until`, from 0 to 1.
    pub fn stairs(&self, svg: &mut String, title: &str, points: &[Point], until: Option<f64>) {
        let Some((x, y)) = points.first().map(|point| self.point(*point)) else { return };
        write!(svg, "<path class=\"best-line\" d=\"M{x:.1} {y:.1}").ok();
        for (x, y) in points[1..].iter().map(|point| self.point(*point)) {
            write!(svg, "H{x:.1}V{y:.1}").ok();
        }
        if let Some(until) = until {
            write!(svg, "H{:.1}", self.across(until)).ok();
        }
        write!(svg, "\"><title>{title}</title></path>").ok();
    }
}

/// Marks that look the same.
pub struct Series {
    shape: Shape,
    /// The class that colours them.
    class: &'static str,
    pub marks: Vec<Mark>,
}

pub struct Mark {
    pub x: f64,
    pub y: f64,
    /// On `x` and on `y`: above 0 where the value lies beyond the end of the axis, below 0 where it lies before its start.
    pub beyond: (i8, i8),
    /// The text under the mouse, escaped.
    pub tip: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    Dot,
    Ring,
    Cross,
    Tick,
}

impl Series {
    pub fn new(shape: Shape, class: &'static str, marks: Vec<Mark>) -> Self {
        Self { shape, class, marks }
    }

    /// One mark, as a legend shows it.
    pub fn sample(shape: Shape, class: &'static str) -> Self {
        Self::new(shape, class, vec![Mark { x: 7.0, y: 7.0, beyond: (0, 0), tip: String::new() }])
    }

    pub fn draw(&self, svg: &mut String) {
        if self.marks.is_empty() {
            return;
        }
        let size = if self.marks.len() > MANY { 2.6 } else { 3.6 };
        let open = if self.shape == Shape::Dot { "" } else { " open" };
        write!(svg, "<g class=\"marks {}{open}\">", self.class).ok();
        self.marks.iter().for_each(|mark| self.shape.draw(svg, mark, size));
        svg.push_str("</g>");
    }
}

impl Shape {
    fn draw(self, svg: &mut String, mark: &Mark, size: f64) {
        let Mark { x, y, beyond, tip } = mark;
        let title = if tip.is_empty() { String::new() } else { format!("<title>{tip}</title>") };
        match self {
            // The triangle points to where the value is.
            Self::Dot | Self::Ring if beyond.0 != 0 => {
                let (x, far) = (x - 3.0 * f64::from(beyond.0), 7.0 * f64::from(beyond.0));
                write!(svg, "<path d=\"M{x:.1} {:.1}v8l{far} -4z\">{title}</path>", y - 4.0).ok()
            }
            Self::Dot | Self::Ring if beyond.1 != 0 => {
                let (y, far) = (y + 3.0 * f64::from(beyond.1), -7.0 * f64::from(beyond.1));
                write!(svg, "<path d=\"M{:.1} {y:.1}h8l-4 {far}z\">{title}</path>", x - 4.0).ok()
            }
            Self::Dot | Self::Ring => {
                write!(svg, "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"{size}\">{title}</circle>").ok()
            }
            Self::Cross => {
                let (left, top) = (x - 3.5, y - 3.5);
                write!(svg, "<path d=\"M{left:.1} {top:.1}l7 7m0-7l-7 7\">{title}</path>").ok()
            }
            Self::Tick => write!(svg, "<path d=\"M{x:.1} {:.1}v10\">{title}</path>", y - 5.0).ok(),
        };
    }
}

/// The meaning of the shapes in a line; only of those that are drawn.
pub fn legend(series: &[(&Series, &str)]) -> String {
    let one = |(series, text): &(&Series, &str)| {
        let mut svg = String::new();
        Series::sample(series.shape, series.class).draw(&mut svg);
        key(&svg, text)
    };
    let keys: Vec<String> = series.iter().filter(|(series, _)| !series.marks.is_empty()).map(one).collect();
    keys.join(" ")
}

/// The meaning of a drawing of 14 by 14. Between it and the first word no line ends.
pub fn key(svg: &str, text: &str) -> String {
    let (first, others) = text.split_once(' ').unwrap_or((text, ""));
    format!(
        "<span class=\"key\"><span><svg viewBox=\"0 0 14 14\" aria-hidden=\"true\">{svg}</svg>{first}</span> {others}</span>"
    )
}

/// A sentence where marks lie beyond the axis.
pub fn beyond_note(series: &[&Series]) -> &'static str {
    if series.iter().flat_map(|series| &series.marks).any(|mark| mark.beyond != (0, 0)) {
        " Triangles at the edge: far worse than the others, beyond the axis."
    } else {
        ""
    }
}

/// A drawing of the usual height with its caption, and a note under it. All texts are escaped; `label` describes the drawing
/// to those who cannot see it.
pub fn figure(key: &str, caption: &str, label: &str, svg: &str, note: &str) -> String {
    figure_of_height(HEIGHT, key, caption, label, svg, note)
}

pub fn figure_of_height(height: f64, key: &str, caption: &str, label: &str, svg: &str, note: &str) -> String {
    let note = if note.trim().is_empty() { String::new() } else { format!("<p class=\"note\">{}</p>", note.trim()) };
    format!(
        "<figure id=\"figure-{key}\"><figcaption>{caption}</figcaption><svg viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" \
         aria-label=\"{label}\"><title>{label}</title>{svg}</svg>{note}</figure>\n"
    )
}

/// A figure with nothing to show yet.
pub fn empty(key: &str, caption: &str, why: &str) -> String {
    format!("<figure id=\"figure-{key}\"><figcaption>{caption}</figcaption><p class=\"none\">{why}</p></figure>\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::html::axis::Unit;
    use pipe_search::{Direction, Domain};
    use serde_json::json;

    #[test]
    fn shapes_and_their_legend() {
        let values: Vec<f64> = (0..20).map(f64::from).collect();
        let y = Axis::objective(&values, Direction::Minimize, &[]);
        let frame = Frame { x: Axis::counted(4.0), y, name: "<x>".to_owned(), lane: true };
        let dots = Series::new(
            Shape::Dot,
            "complete",
            vec![frame.mark(0.0, 1.0, "a".to_owned()), frame.mark(1.0, 1e9, String::new())],
        );
        let none = Series::new(Shape::Cross, "failed", Vec::new());
        let mut svg = String::new();
        frame.axes(&mut svg);
        dots.draw(&mut svg);
        none.draw(&mut svg);
        assert_eq!((svg.matches("<circle").count(), svg.matches("h8l-4 -7z").count()), (1, 1), "{svg}");
        assert!(svg.contains("&lt;x&gt;") && !svg.contains("failed"), "{svg}");
        assert!(legend(&[(&dots, "one"), (&none, "two")]).contains("</svg>one</span>"));
        assert!(beyond_note(&[&dots]).contains("far worse") && beyond_note(&[&none]).is_empty());
    }

    #[test]
    fn long_categories_are_cut() {
        let choices = (0..6).map(|index| json!(format!("a very long category {index}"))).collect();
        let x = Axis::parameter(&Domain::Choices(choices), &[]);
        let frame = Frame { x, y: Axis::around(0.0, 0.0, Unit::Bytes), name: String::new(), lane: false };
        let mut svg = String::new();
        frame.axes(&mut svg);
        assert!(svg.contains(">a very…<title>a very long category 0<"), "{svg}");
    }
}

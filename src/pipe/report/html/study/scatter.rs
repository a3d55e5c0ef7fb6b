//! Marks in a frame of two axes, as inline SVG. Colours are the page's.

use std::fmt::Write;

use super::axis::Axis;
use crate::report::bounded;
use crate::report::html::escape::escape;

pub const WIDTH: f64 = 480.0;
pub const HEIGHT: f64 = 250.0;
pub const LEFT: f64 = 62.0;
pub const RIGHT: f64 = 22.0;
pub const TOP: f64 = 16.0;
const BOTTOM: f64 = 44.0;
/// The height of the lane under the values.
const LANE: f64 = 18.0;
/// The width of a character beside an axis.
const LETTER: f64 = 9.0;
/// From so many marks on, they are smaller.
const MANY: usize = 250;

/// The place for marks: values over something.
pub struct Frame {
    pub x: Axis,
    pub y: Axis,
    /// What `x` is, as text.
    pub name: String,
    /// Under the values there is room for trials without one.
    pub lane: bool,
}

/// Marks that look the same.
pub struct Series {
    pub shape: Shape,
    /// The class that colours them.
    pub class: &'static str,
    pub marks: Vec<Mark>,
}

pub struct Mark {
    pub x: f64,
    pub y: f64,
    /// To the side and upwards: above 0 where the value lies beyond the end of the axis, below 0 where it lies before its begin.
    pub beyond: (i8, i8),
    /// Escaped.
    pub tip: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    Dot,
    Ring,
    Cross,
    Tick,
}

impl Frame {
    /// From 0 to 1 along the axis, as a place in the drawing.
    pub fn across(&self, place: f64) -> f64 {
        LEFT + place * (WIDTH - LEFT - RIGHT)
    }

    pub fn down(&self, place: f64) -> f64 {
        let bottom = self.bottom() - if self.lane { LANE } else { 0.0 };
        bottom - place * (bottom - TOP)
    }

    /// The middle of the lane.
    pub fn in_lane(&self) -> f64 {
        self.bottom() - LANE / 2.0
    }

    fn bottom(&self) -> f64 {
        HEIGHT - BOTTOM
    }

    pub fn mark(&self, x: f64, value: f64, tip: String) -> Mark {
        Mark { x: self.across(x), y: self.down(self.y.at(value)), beyond: (0, self.y.beyond(value)), tip }
    }

    pub fn axes(&self, svg: &mut String) {
        let (right, bottom) = (WIDTH - RIGHT, self.bottom());
        for (place, text) in &self.y.ticks {
            let (y, text) = (self.down(*place), escape(text));
            write!(svg, "<path class=\"grid\" d=\"M{LEFT} {y:.1}H{right}\"/>").ok();
            write!(svg, "<text class=\"end\" x=\"{}\" y=\"{:.1}\">{text}</text>", LEFT - 7.0, y + 4.0).ok();
        }
        // Labels of categories are cut so that none covers the next.
        let room = (WIDTH - LEFT - RIGHT) / self.x.ticks.len().max(1) as f64 / LETTER;
        let room = if self.x.category_width() > 0.0 { (room as usize).max(2) } else { usize::MAX };
        for (place, text) in &self.x.ticks {
            let (x, short) = (self.across(*place), escape(&bounded(text, room)));
            write!(svg, "<path class=\"axis\" d=\"M{x:.1} {bottom}v4\"/>").ok();
            write!(svg, "<text class=\"middle\" x=\"{x:.1}\" y=\"{}\">{short}", bottom + 17.0).ok();
            write!(svg, "<title>{}</title></text>", escape(text)).ok();
        }
        write!(svg, "<path class=\"axis\" d=\"M{LEFT} {bottom}H{right}\"/>").ok();
        if self.lane {
            write!(svg, "<rect class=\"lane\" x=\"{LEFT}\" y=\"{:.1}\" ", bottom - LANE).ok();
            write!(svg, "width=\"{:.1}\" height=\"{LANE}\"/>", right - LEFT).ok();
        }
        let name = escape(&bounded(&self.name, 44));
        write!(svg, "<text class=\"end\" x=\"{right}\" y=\"{}\">{name}</text>", HEIGHT - 7.0).ok();
    }
}

impl Series {
    pub fn new(shape: Shape, class: &'static str, marks: Vec<Mark>) -> Self {
        Self { shape, class, marks }
    }

    pub fn draw(&self, svg: &mut String) {
        if self.marks.is_empty() {
            return;
        }
        let size = if self.marks.len() > MANY { 2.6 } else { 3.6 };
        write!(svg, "<g class=\"marks {}{}\">", self.class, self.shape.class()).ok();
        for mark in &self.marks {
            self.shape.draw(svg, mark, size);
        }
        svg.push_str("</g>");
    }
}

impl Shape {
    fn class(self) -> &'static str {
        if self == Self::Dot { "" } else { " open" }
    }

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

/// What the shapes mean, in a line; only those that are there.
pub fn legend(series: &[(&Series, &str)]) -> String {
    let one = |(series, text): &(&Series, &str)| {
        let mut svg = String::new();
        let mark = Mark { x: 7.0, y: 7.0, beyond: (0, 0), tip: String::new() };
        Series::new(series.shape, series.class, vec![mark]).draw(&mut svg);
        key(&svg, text)
    };
    let keys: Vec<String> = series.iter().filter(|(series, _)| !series.marks.is_empty()).map(one).collect();
    keys.join(" ")
}

/// What a drawing of 14 by 14 means. Between it and the first word no line ends.
pub fn key(svg: &str, text: &str) -> String {
    let (first, others) = text.split_once(' ').unwrap_or((text, ""));
    format!(
        "<span class=\"key\"><span><svg viewBox=\"0 0 14 14\" aria-hidden=\"true\">{svg}</svg>{first}</span> {others}</span>"
    )
}

/// A sentence where marks lie beyond the axis.
pub fn beyond_note(series: &[&Series]) -> &'static str {
    match series.iter().flat_map(|series| &series.marks).any(|mark| mark.beyond != (0, 0)) {
        true => " Triangles at the edge: far worse than the others, beyond the axis.",
        false => "",
    }
}

/// A drawing with its title and what is said under it. All texts are escaped; `label` says what is drawn to those who cannot
/// see it.
pub fn figure(key: &str, caption: &str, label: &str, svg: &str, note: &str) -> String {
    let note = if note.trim().is_empty() { String::new() } else { format!("<p class=\"note\">{}</p>", note.trim()) };
    format!(
        "<figure id=\"figure-{key}\"><figcaption>{caption}</figcaption><svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" \
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
    use pipe_search::{Direction, Domain};
    use serde_json::json;

    #[test]
    fn shapes_and_their_legend() {
        let values: Vec<f64> = (0..20).map(f64::from).collect();
        let y = Axis::objective(&values, Direction::Minimize, &[]);
        let frame = Frame { x: Axis::counted(4), y, name: "<x>".to_owned(), lane: true };
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
        let frame = Frame { x, y: Axis::bytes(0.0), name: String::new(), lane: false };
        let mut svg = String::new();
        frame.axes(&mut svg);
        assert!(svg.contains(">a very…<title>a very long category 0<"), "{svg}");
    }
}

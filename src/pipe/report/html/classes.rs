//! How well a classifier tells its classes apart: the confusion matrix, scores of each class, and a reliability diagram.

use std::collections::BTreeMap;
use std::fmt::Write;

use pipe_spec::evaluation::{Calibration, CalibrationBin, ClassDetails, ClassScores};
use pipe_spec::text::count;

use super::axis::Axis;
use super::chart::{Frame, figure};
use super::markup::{escape, share, table};
use crate::report::{bounded, grouped};
use crate::run::Record;

/// Rows of the table.
const MOST_CLASSES: usize = 100;
/// Characters of the name of a class.
const NAME: usize = 60;

pub fn section(run: &Record) -> String {
    let Some(details) = &run.evaluation else { return String::new() };
    let Some(classes) = &details.classes else { return String::new() };
    // A matrix of many classes needs the whole width.
    let wide = if classes.scores.len() > WIDE_COLUMNS { " wide" } else { "" };
    let calibration = match calibration(&classes.calibration) {
        figure if figure.is_empty() => figure,
        figure => format!("<details><summary>Calibration</summary>{figure}</details>"),
    };
    format!(
        "<section id=\"classes\"><h2>Classes after step {}</h2><div class=\"figures{wide}\">{}<div>{}</div></div>\
         {calibration}</section>\n",
        details.step,
        confusion(classes),
        scores(classes)
    )
}

fn scores(classes: &ClassDetails) -> String {
    let shown = classes.largest(MOST_CLASSES);
    let rows: Vec<Vec<String>> = shown.iter().map(|class| row(class)).collect();
    let left_out = classes.count.saturating_sub(shown.len() as u64);
    let note = match left_out {
        0 => String::new(),
        _ => format!("<p class=\"note\">{} with fewer rows left out.</p>", count(left_out, "class")),
    };
    format!("{}{note}", table(&["class", "rows", "predicted", "precision", "recall", "F1"], &rows))
}

fn row(class: &ClassScores) -> Vec<String> {
    let ClassScores { rows, predicted, precision, recall, f1, .. } = class;
    let counts = [rows, predicted].map(|number| grouped(*number));
    [name(class)].into_iter().chain(counts).chain([precision, recall, f1].map(|value| share(*value))).collect()
}

/// The name of a class, or its number where it has none, escaped.
pub fn name(class: &ClassScores) -> String {
    if class.name.is_empty() { class.class.to_string() } else { escape(&bounded(&class.name, NAME)) }
}

/// Rows and columns.
const MOST_IN_MATRIX: usize = 20;
/// Names of columns are written upright where there are more columns, or one has a longer name.
const WIDE_COLUMNS: usize = 6;
const WIDE_NAME: usize = 10;

fn confusion(classes: &ClassDetails) -> String {
    let shown = classes.largest(MOST_IN_MATRIX);
    if shown.is_empty() || classes.confusion.is_empty() {
        return String::new();
    }
    let cells: BTreeMap<(u64, u64), u64> =
        classes.confusion.iter().map(|cell| ((cell.class, cell.predicted), cell.rows)).collect();
    let left_out = classes.count.saturating_sub(shown.len() as u64);
    let upright = shown.len() > WIDE_COLUMNS || shown.iter().any(|class| class.name.chars().count() > WIDE_NAME);
    let mut html = "<figure id=\"figure-confusion\"><figcaption>Confusion matrix: true class (rows), predicted class \
                    (columns)</figcaption><div class=\"scroll\" tabindex=\"0\">"
        .to_owned();
    write!(html, "<table class=\"confusion{}\"><thead><tr><td></td>", if upright { " upright" } else { "" }).ok();
    let others = if left_out > 0 { Some("others".to_owned()) } else { None };
    for name in shown.iter().map(|class| name(class)).chain(others) {
        write!(html, "<th scope=\"col\"><span>{name}</span></th>").ok();
    }
    html.push_str("</tr></thead><tbody>");
    shown.iter().for_each(|class| confusion_row(&mut html, class, &shown, &cells, left_out > 0));
    html.push_str("</tbody></table></div>");
    if left_out > 0 {
        write!(html, "<p class=\"note\">{} with fewer rows left out.</p>", count(left_out, "class")).ok();
    }
    html.push_str("</figure>\n");
    html
}

fn confusion_row(
    html: &mut String,
    class: &ClassScores,
    shown: &[&ClassScores],
    cells: &BTreeMap<(u64, u64), u64>,
    more: bool,
) {
    let own = name(class);
    write!(html, "<tr><th scope=\"row\">{own}</th>").ok();
    let mut told = 0u64;
    for other in shown {
        let rows = cells.get(&(class.class, other.class)).copied().unwrap_or(0);
        told = told.saturating_add(rows);
        let kind = if other.class == class.class { "right" } else { "wrong" };
        confusion_cell(html, kind, rows, class.rows, &format!("{own} taken for {}", name(other)));
    }
    if more {
        confusion_cell(
            html,
            "wrong",
            class.rows.saturating_sub(told),
            class.rows,
            &format!("{own} taken for another class"),
        );
    }
    html.push_str("</tr>");
}

fn confusion_cell(html: &mut String, kind: &str, rows: u64, all: u64, title: &str) {
    if rows == 0 {
        html.push_str("<td class=\"zero\">0</td>");
        return;
    }
    let percent = (100.0 * rows as f64 / all.max(1) as f64).clamp(0.0, 100.0);
    let text = grouped(rows);
    write!(html, "<td class=\"{kind}\" style=\"--share:{percent:.0}%\" title=\"{title}: {text}, {percent:.0}%\">").ok();
    write!(html, "{text}</td>").ok();
}

/// Bins that are drawn, whatever a file holds.
const MOST_BINS: usize = 20;

fn calibration(calibration: &Calibration) -> String {
    let bins = &calibration.bins[..calibration.bins.len().min(MOST_BINS)];
    if bins.iter().all(|bin| bin.rows == 0) {
        return String::new();
    }
    let frame = Frame { x: Axis::shares(), y: Axis::shares(), name: "confidence".to_owned(), lane: false };
    let mut svg = String::new();
    frame.axes(&mut svg);
    let most = bins.iter().map(|bin| bin.rows).max().unwrap_or(1);
    let width = 1.0 / bins.len() as f64;
    for (index, bin) in bins.iter().enumerate() {
        calibration_bar(&mut svg, &frame, index as f64 * width, width, bin, bin.rows as f64 / most as f64);
    }
    let ((left, bottom), (right, top)) = (frame.point((0.0, 0.0)), frame.point((1.0, 1.0)));
    write!(svg, "<path class=\"ideal\" d=\"M{left} {bottom}L{right} {top}\"/>").ok();
    for (index, bin) in bins.iter().enumerate().filter(|(_, bin)| bin.rows > 0) {
        let (x, y) = frame.point(((index as f64 + 0.5) * width, accuracy(bin).unwrap_or(0.0)));
        write!(svg, "<text class=\"middle rows\" x=\"{x:.1}\" y=\"{:.1}\">{}</text>", y - 4.0, grouped(bin.rows)).ok();
    }
    let error = share(Some(calibration.error));
    let caption = format!("Calibration: share right (height) by confidence; expected calibration error {error}");
    let note = "Below the dashed line the model is too confident, above it not confident enough. Numbers are rows.";
    figure("calibration", &caption, "Share of right predictions by confidence", &svg, note)
}

fn accuracy(bin: &CalibrationBin) -> Option<f64> {
    bin.accuracy.filter(|accuracy| (0.0..=1.0).contains(accuracy))
}

/// `shade` is 1 for the bin with the most rows.
fn calibration_bar(svg: &mut String, frame: &Frame, from: f64, width: f64, bin: &CalibrationBin, shade: f64) {
    let Some(accuracy) = accuracy(bin) else { return };
    let (x, width, bottom) = (frame.across(from), frame.across(width) - frame.across(0.0) - 3.0, frame.down(0.0));
    // A bin in which nothing is right is a line.
    let y = frame.down(accuracy).min(bottom - 1.0);
    let (height, opacity) = (bottom - y, 0.3 + 0.7 * shade);
    write!(svg, "<rect class=\"bar\" x=\"{:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" ", x + 1.5)
        .ok();
    write!(svg, "opacity=\"{opacity:.2}\"><title>{} rows, confidence ", grouped(bin.rows)).ok();
    write!(svg, "{}, right {accuracy:.3}</title></rect>", share(bin.confidence)).ok();
}

#[cfg(test)]
mod tests {
    use super::*;
    use pipe_spec::evaluation::ConfusionCell;
    use pipe_spec::evaluation::EvaluationDetails;

    fn page(count: u64, scores: Vec<ClassScores>) -> String {
        let classes = Some(ClassDetails { count, scores, ..ClassDetails::default() });
        let evaluation = Some(EvaluationDetails { step: 7, classes, ..EvaluationDetails::default() });
        section(&Record { evaluation, ..Record::default() })
    }

    #[test]
    fn a_row_for_each_class() {
        let class = ClassScores {
            class: 0,
            name: "<soup>".to_owned(),
            rows: 1200,
            predicted: 0,
            precision: None,
            recall: Some(0.0),
            f1: Some(1e300),
        };
        let html = page(3, vec![class]);
        let cells = "<td>&lt;soup&gt;</td><td>1,200</td><td>0</td><td>-</td><td>0.000</td><td>-</td>";
        assert!(html.contains("Classes after step 7") && html.contains(cells), "{html}");
        assert!(html.contains("2 classes with fewer rows left out"), "{html}");
        assert_eq!(section(&Record::default()), "");
    }

    #[test]
    fn very_many_classes() {
        let class = |class| ClassScores { class, name: "x".repeat(10_000), rows: class, ..ClassScores::default() };
        let html = page(5000, (0..1000).map(class).collect());
        assert!(html.contains("4900 classes with fewer rows left out"));
        assert!(html.len() < 60_000, "{}", html.len());
    }

    fn classes(count: u64) -> ClassDetails {
        let class = |class| ClassScores { class, name: format!("c{class}"), rows: 10, ..ClassScores::default() };
        let cell = |class, predicted, rows| ConfusionCell { class, predicted, rows };
        ClassDetails {
            count,
            scores: (0..count).map(class).collect(),
            confusion: vec![cell(0, 0, 7), cell(0, 1, 2), cell(0, 24, 1), cell(1, 1, 10)],
            ..ClassDetails::default()
        }
    }

    #[test]
    fn a_small_matrix() {
        let html = confusion(&classes(2));
        assert!(html.contains("<th scope=\"row\">c0</th><td class=\"right\" style=\"--share:70%\""), "{html}");
        assert!(html.contains("c0 taken for c1: 2, 20%\">2</td>"), "{html}");
        assert!(html.contains("<td class=\"zero\">0</td><td class=\"right\" style=\"--share:100%\""), "{html}");
        assert!(!html.contains("others") && !html.contains("upright"), "{html}");
    }

    #[test]
    fn a_large_matrix_is_cut() {
        let html = confusion(&classes(25));
        assert_eq!(html.matches("<tr>").count(), MOST_IN_MATRIX + 1, "{html}");
        assert!(html.contains("5 classes with fewer rows left out") && html.contains("upright"), "{html}");
        assert!(html.contains("c0 taken for another class: 1, 10%"), "{html}");
    }

    fn bin(rows: u64, accuracy: Option<f64>) -> CalibrationBin {
        CalibrationBin { rows, confidence: accuracy, accuracy }
    }

    #[test]
    fn a_bar_for_each_bin_with_rows() {
        let bins = vec![bin(0, None), bin(4, Some(0.25)), bin(6, Some(1.0)), bin(2, Some(0.0)), bin(1, Some(7e200))];
        let html = calibration(&Calibration { error: 0.0625, bins });
        assert_eq!(html.matches("<rect").count(), 3, "{html}");
        assert!(html.contains("error 0.062") || html.contains("error 0.063"), "{html}");
        assert!(html.contains("4 rows, confidence 0.250, right 0.250") && !html.contains("NaN"), "{html}");
    }

    #[test]
    fn nothing_to_show() {
        assert_eq!(confusion(&ClassDetails::default()), "");
        assert_eq!(calibration(&Calibration::default()), "");
        let many = Calibration { error: 0.0, bins: vec![bin(1, Some(0.5)); 100_000] };
        assert!(calibration(&many).len() < 10_000);
    }
}

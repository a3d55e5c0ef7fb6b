//! How well a classifier tells its classes apart: scores of each class, what is taken for what, and how sure the model is.

use pipe_spec::evaluation::{ClassDetails, ClassScores};
use pipe_spec::text::count;

use super::escape::escape;
use super::{calibration, confusion, share, table};
use crate::report::{bounded, grouped};
use crate::run::Record;

/// Rows of the table.
const MOST_CLASSES: usize = 100;
/// Characters of the name of a class.
const NAME: usize = 60;

pub fn section(run: &Record) -> String {
    let Some(details) = &run.evaluation else { return String::new() };
    let Some(classes) = &details.classes else { return String::new() };
    let figures = [confusion::figure(classes), calibration::figure(&classes.calibration)].concat();
    format!(
        "<section id=\"classes\"><h2>Classes after step {}</h2>{}<div class=\"figures\">{figures}</div></section>\n",
        details.step,
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

#[cfg(test)]
mod tests {
    use pipe_spec::evaluation::EvaluationDetails;

    use super::*;

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
}

//! The scores of single classes, as a table.

use pipe_spec::evaluation::{ClassDetails, ClassScores, EvaluationDetails};
use pipe_spec::text::count;

use super::Table;
use super::number::grouped;
use super::wrap::bounded;

/// Rows of the table.
const MOST_CLASSES: usize = 10;
/// Characters of the name of a class, so that the table fits 80 columns.
const NAME: usize = 30;

/// The classes with the most rows, and a line about those that are left out; nothing where no classes are predicted.
pub fn class_table(details: &EvaluationDetails) -> Option<(Table, Option<String>)> {
    let classes = details.classes.as_ref().filter(|classes| !classes.scores.is_empty())?;
    let head = format!("class, step {}", details.step);
    let mut table = Table::new(&[&head, "rows", "predicted", "precision", "recall", "f1"]);
    let shown = classes.largest(MOST_CLASSES);
    shown.iter().for_each(|class| table.row(class_row(class)));
    Some((table, left_out(classes, shown.len())))
}

fn class_row(class: &ClassScores) -> Vec<String> {
    let ClassScores { name, rows, predicted, precision, recall, f1, .. } = class;
    let share = |value: &Option<f64>| match value {
        Some(value) if (0.0..=1.0).contains(value) => format!("{value:.3}"),
        _ => "-".to_owned(),
    };
    let name = if name.is_empty() { class.class.to_string() } else { bounded(name, NAME) };
    vec![name, grouped(*rows), grouped(*predicted), share(precision), share(recall), share(f1)]
}

fn left_out(classes: &ClassDetails, shown: usize) -> Option<String> {
    let more = classes.count.saturating_sub(shown as u64);
    (more > 0)
        .then(|| format!("{} with fewer rows: in the report, and in `pipe show --json`", count(more, "more class")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn details(count: u64, name: &str) -> EvaluationDetails {
        let class = |class: u64| ClassScores {
            class,
            name: format!("{name}{class}"),
            rows: 100_000_000 + class,
            predicted: 1,
            precision: Some(1.0),
            recall: Some(0.0),
            f1: None,
        };
        let classes = ClassDetails { count, scores: (0..count).map(class).collect(), ..ClassDetails::default() };
        EvaluationDetails { step: 28, classes: Some(classes), ..EvaluationDetails::default() }
    }

    #[test]
    fn a_table_of_classes() {
        let (table, more) = class_table(&details(1, "soup")).unwrap();
        let want = "class, step 28  rows         predicted  precision  recall  f1\n\
                    soup0           100,000,000  1          1.000      0.000   -";
        assert_eq!((table.render(None).as_str(), more), (want, None));
        assert!(class_table(&EvaluationDetails::default()).is_none());
    }

    #[test]
    fn of_many_classes_the_largest() {
        let (table, more) = class_table(&details(12, &"ä".repeat(90))).unwrap();
        let text = table.render(None);
        assert_eq!(text.lines().count(), MOST_CLASSES + 1);
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        assert!(!text.contains("100,000,001") && text.contains("100,000,011"), "{text}");
        assert!(more.unwrap().starts_with("2 more classes with fewer rows"));
    }
}

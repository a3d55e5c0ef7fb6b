//! The confusion matrix as a table whose cells are coloured by their share of the row.

use std::collections::BTreeMap;
use std::fmt::Write;

use pipe_spec::evaluation::{ClassDetails, ClassScores};
use pipe_spec::text::count;

use super::classes::name;
use crate::report::grouped;

/// Rows and columns.
const MOST_CLASSES: usize = 20;
/// Names of columns are written upright where there are more columns, or one has a longer name.
const WIDE_COLUMNS: usize = 6;
const WIDE_NAME: usize = 10;

pub fn figure(classes: &ClassDetails) -> String {
    let shown = classes.largest(MOST_CLASSES);
    if shown.is_empty() || classes.confusion.is_empty() {
        return String::new();
    }
    let cells: BTreeMap<(u64, u64), u64> =
        classes.confusion.iter().map(|cell| ((cell.class, cell.predicted), cell.rows)).collect();
    let left_out = classes.count.saturating_sub(shown.len() as u64);
    let upright = shown.len() > WIDE_COLUMNS || shown.iter().any(|class| class.name.chars().count() > WIDE_NAME);
    let mut html =
        "<figure id=\"figure-confusion\"><figcaption>Confusion: rows by their class (left) and the class that \
                    was predicted (top)</figcaption><div class=\"scroll\" tabindex=\"0\">"
            .to_owned();
    write!(html, "<table class=\"confusion{}\"><thead><tr><td></td>", if upright { " upright" } else { "" }).ok();
    let others = if left_out > 0 { Some("others".to_owned()) } else { None };
    for name in shown.iter().map(|class| name(class)).chain(others) {
        write!(html, "<th scope=\"col\"><span>{name}</span></th>").ok();
    }
    html.push_str("</tr></thead><tbody>");
    shown.iter().for_each(|class| row(&mut html, class, &shown, &cells, left_out > 0));
    html.push_str("</tbody></table></div>");
    if left_out > 0 {
        write!(html, "<p class=\"note\">{} with fewer rows left out.</p>", count(left_out, "class")).ok();
    }
    html.push_str("</figure>\n");
    html
}

fn row(html: &mut String, class: &ClassScores, shown: &[&ClassScores], cells: &BTreeMap<(u64, u64), u64>, more: bool) {
    let own = name(class);
    write!(html, "<tr><th scope=\"row\">{own}</th>").ok();
    let mut told = 0u64;
    for other in shown {
        let rows = cells.get(&(class.class, other.class)).copied().unwrap_or(0);
        told = told.saturating_add(rows);
        let kind = if other.class == class.class { "right" } else { "wrong" };
        cell(html, kind, rows, class.rows, &format!("{own} taken for {}", name(other)));
    }
    if more {
        cell(html, "wrong", class.rows.saturating_sub(told), class.rows, &format!("{own} taken for another class"));
    }
    html.push_str("</tr>");
}

fn cell(html: &mut String, kind: &str, rows: u64, all: u64, title: &str) {
    if rows == 0 {
        html.push_str("<td class=\"zero\">0</td>");
        return;
    }
    let percent = (100.0 * rows as f64 / all.max(1) as f64).clamp(0.0, 100.0);
    let text = grouped(rows);
    write!(html, "<td class=\"{kind}\" style=\"--share:{percent:.0}%\" title=\"{title}: {text}, {percent:.0}%\">").ok();
    write!(html, "{text}</td>").ok();
}

#[cfg(test)]
mod tests {
    use pipe_spec::evaluation::ConfusionCell;

    use super::*;

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
        let html = figure(&classes(2));
        assert!(html.contains("<th scope=\"row\">c0</th><td class=\"right\" style=\"--share:70%\""), "{html}");
        assert!(html.contains("c0 taken for c1: 2, 20%\">2</td>"), "{html}");
        assert!(html.contains("<td class=\"zero\">0</td><td class=\"right\" style=\"--share:100%\""), "{html}");
        assert!(!html.contains("others") && !html.contains("upright"), "{html}");
    }

    #[test]
    fn a_large_matrix_is_cut() {
        let html = figure(&classes(25));
        assert_eq!(html.matches("<tr>").count(), MOST_CLASSES + 1, "{html}");
        assert!(html.contains("5 classes with fewer rows left out") && html.contains("upright"), "{html}");
        assert!(html.contains("c0 taken for another class: 1, 10%"), "{html}");
    }

    #[test]
    fn nothing_to_show() {
        assert_eq!(figure(&ClassDetails::default()), "");
    }
}

//! Whether the values of a column are several labels each: texts with a mark between labels, or lists. Pure.

use std::collections::{HashMap, HashSet};

use serde_json::Value;

/// The marks that people put between labels, the most usual first.
const SEPARATORS: [char; 3] = ['|', ';', ','];
/// Different labels at most, and labels in a row on average.
pub const MOST_LABELS: usize = 200;
const MEAN_LABELS: usize = 4;
/// Characters of a label.
const LABEL_CHARACTERS: usize = 40;
/// How often a label is repeated on average, at least.
const REPEATED: usize = 3;

/// The labels of rows, split at a mark.
pub fn split(text: &str, separator: char) -> Vec<&str> {
    text.split(separator).map(str::trim).filter(|part| !part.is_empty()).collect()
}

/// The mark between the labels of a column, where rows have several of them.
pub fn separator(texts: &[String]) -> Option<char> {
    SEPARATORS.into_iter().find(|separator| are_labels(texts, *separator))
}

/// Whether some rows have several labels, and these come in other combinations too: `Food, Drinks` may be one label.
fn are_labels(texts: &[String], separator: char) -> bool {
    let rows: Vec<Vec<&str>> = texts.iter().map(|text| split(text, separator)).collect();
    let with_several = rows.iter().filter(|row| row.len() > 1).count();
    let mut combinations: HashMap<&str, HashSet<&str>> = HashMap::new();
    for (row, text) in rows.iter().zip(texts) {
        for label in row {
            combinations.entry(label).or_default().insert(text);
        }
    }
    let mixed = combinations.values().filter(|texts| texts.len() > 1).count();
    with_several * 20 >= rows.len().max(40) && mixed * 2 > combinations.len() && repeat(&rows)
}

/// Whether few short labels are repeated, and most rows have few.
fn repeat(rows: &[Vec<&str>]) -> bool {
    let all = || rows.iter().flatten();
    let distinct = all().collect::<HashSet<_>>().len();
    let is_short = |label: &&&str| label.chars().count() <= LABEL_CHARACTERS;
    let short = all().filter(is_short).count();
    let count = all().count();
    distinct > 1
        && distinct <= MOST_LABELS
        && distinct * REPEATED <= count
        && count <= MEAN_LABELS * rows.len()
        && short == count
}

/// Whether lists are of labels, and not of words. Nothing where they are of something else.
pub fn are_lists_of_labels(lists: &[&Value]) -> Option<bool> {
    let rows: Option<Vec<Vec<&str>>> = lists.iter().map(|list| entries(list)).collect();
    rows.map(|rows| repeat(&rows))
}

/// The texts of a list.
pub fn entries(list: &Value) -> Option<Vec<&str>> {
    list.as_array()?.iter().map(Value::as_str).collect()
}

/// Whether lists are of numbers that can be labels: whole, from 0, and few of them different.
pub fn are_lists_of_numbers(lists: &[&Value]) -> bool {
    let rows: Option<Vec<Vec<String>>> = lists.iter().map(|list| numbers(list)).collect();
    rows.is_some_and(|rows| {
        let (count, distinct) = (rows.iter().flatten().count(), rows.iter().flatten().collect::<HashSet<_>>().len());
        (2..=MOST_LABELS).contains(&distinct) && distinct * REPEATED <= count
    })
}

/// The whole numbers of a list, as texts.
pub fn numbers(list: &Value) -> Option<Vec<String>> {
    list.as_array()?.iter().map(|number| number.as_u64().map(|number| number.to_string())).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn texts(of: impl Fn(usize) -> String) -> Vec<String> {
        (0..60).map(of).collect()
    }

    #[test]
    fn marks_between_labels() {
        let labels = ["billing", "urgent", "login"];
        let joined = |row: usize, mark: &str| match row % 3 {
            0 => labels[row % 2].to_owned(),
            _ => format!("{}{mark}{}", labels[row % 3], labels[(row / 3) % 3]),
        };
        for (mark, want) in [("|", '|'), (";", ';'), (", ", ',')] {
            assert_eq!(separator(&texts(|row| joined(row, mark))), Some(want));
        }
        // These never come apart.
        assert_eq!(separator(&texts(|row| ["Food, Drinks", "Toys, Games"][row % 2].to_owned())), None);
        assert_eq!(separator(&texts(|row| format!("Hello {row}, how are you, and {row}?"))), None);
        assert_eq!(separator(&texts(|row| labels[row % 3].to_owned())), None);
    }

    #[test]
    fn lists_of_labels_and_of_words() {
        let kind = |of: &dyn Fn(usize) -> Value| {
            let lists: Vec<Value> = (0..60).map(of).collect();
            are_lists_of_labels(&lists.iter().collect::<Vec<_>>())
        };
        assert_eq!(kind(&|row| json!(["billing", if row % 2 == 0 { "late" } else { "urgent" }])), Some(true));
        assert_eq!(kind(&|row| json!([format!("word{row}"), "is", "here"])), Some(false));
        assert_eq!(kind(&|row| json!([{"role": row}])), None);
    }
}

//! Texts as `pipe init` measures them: how long they are, which tokens they have use for, and the turns of a conversation.
//!
//! Whether the values of a column are several labels each: texts with a mark between labels, or lists. Pure.

use std::collections::{HashMap, HashSet};

use serde_json::Value;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lengths {
    pub mean: usize,
    /// 95 % are not longer.
    pub p95: usize,
    pub longest: usize,
}

impl Lengths {
    /// The lengths of two texts in a row, at most.
    pub fn and(self, other: Self) -> Self {
        Self { mean: self.mean + other.mean, p95: self.p95 + other.p95, longest: self.longest + other.longest }
    }

    pub fn of(mut lengths: Vec<usize>) -> Self {
        lengths.sort_unstable();
        let Some(longest) = lengths.last().copied() else { return Self::default() };
        let p95 = lengths[(lengths.len() * 95).div_ceil(100) - 1];
        Self { mean: lengths.iter().sum::<usize>().div_ceil(lengths.len()), p95, longest }
    }
}

/// More than most tokenizers give: a word is at least one, and three bytes are seldom more than one.
pub fn tokens(text: &str) -> usize {
    text.split_whitespace().count().max(text.len().div_ceil(3))
}

/// How often a word comes at least, for a token of its own.
const OFTEN: usize = 4;
/// Texts from which on they are only the first of many more, so that every word comes often.
const MANY: usize = 10_000;

/// Different letters and words of texts. Digits and signs are no parts of words.
pub fn vocabulary<'a>(texts: impl Iterator<Item = &'a str>) -> usize {
    let (mut letters, mut words, mut count) = (HashSet::new(), HashMap::<&str, usize>::new(), 0);
    for text in texts {
        count += 1;
        letters.extend(text.chars());
        let parts = text.split(|letter: char| !letter.is_alphabetic()).filter(|word| !word.is_empty());
        parts.for_each(|word| *words.entry(word).or_default() += 1);
    }
    let often = if count < MANY { OFTEN } else { 1 };
    letters.len() + words.values().filter(|count| **count >= often).count()
}

/// The keys of a turn: its speaker and its text.
const SPEAKER: [&str; 2] = ["role", "from"];
const SAID: [&str; 3] = ["content", "value", "text"];

/// A list of turns, each with a speaker and a text.
pub fn is_conversation(value: &Value) -> bool {
    let has = |turn: &Value, keys: &[&str]| keys.iter().any(|key| turn.get(key).is_some_and(Value::is_string));
    let is_turn = |turn: &Value| has(turn, &SPEAKER) && has(turn, &SAID);
    value.as_array().is_some_and(|turns| !turns.is_empty() && turns.iter().all(is_turn))
}

/// The texts of a conversation.
pub fn turns(value: &Value) -> Vec<&str> {
    let said = |turn| SAID.iter().find_map(|key| Value::get(turn, key).and_then(Value::as_str));
    value.as_array().into_iter().flatten().filter_map(said).collect()
}

/// How often each text comes, the most frequent first.
pub fn counts(texts: &[String]) -> Vec<(String, usize)> {
    let mut counts: HashMap<&str, usize> = HashMap::new();
    texts.iter().for_each(|text| *counts.entry(text).or_default() += 1);
    let mut counts: Vec<(String, usize)> = counts.into_iter().map(|(name, count)| (name.to_owned(), count)).collect();
    counts.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
    counts
}

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

    #[test]
    fn words_that_come_often_and_letters_are_the_vocabulary() {
        let dates: Vec<String> = (0..400).map(|day| format!("March {}, {}", day % 28 + 1, 1900 + day % 97)).collect();
        // M a r c h, space, comma, digits; March.
        assert_eq!(vocabulary(dates.iter().map(String::as_str)), 18);
        assert_eq!(vocabulary(["ab", "ba", "abab", "bb"].into_iter()), 2);
    }

    #[test]
    fn lengths() {
        assert_eq!(Lengths::of((1..=100).collect()), Lengths { mean: 51, p95: 95, longest: 100 });
        assert_eq!(Lengths::of(Vec::new()), Lengths::default());
    }

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

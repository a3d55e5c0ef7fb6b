//! Texts as `pipe init` measures them: how long they are, which tokens they have use for, and the turns of a conversation.

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

#[cfg(test)]
mod tests {
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
}

//! Entities of tagged texts, such as names and places: found and counted as seqeval does by default (github.com/chakki-works/seqeval),
//! for IOB2 and BIOES tags and those that are like them.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use pipe_spec::evaluation::ClassDetails;
use pipe_spec::event::Scores;

use super::classes::{Tally, share};

/// The kind of an entity and the words that it has.
pub type Entity = (String, Range<usize>);

/// The tag outside of entities.
const OUTSIDE: char = 'O';

/// A tag as seqeval reads it: its first letter says where in an entity the word is, the rest which kind it is of.
struct Tag {
    letter: char,
    kind: String,
}

impl Tag {
    fn of(tag: &str) -> Self {
        let letter = tag.chars().next().unwrap_or(OUTSIDE);
        let rest = &tag[letter.len_utf8().min(tag.len())..];
        let kind = match rest.split_once('-') {
            Some((_, "")) => "_",
            Some((_, kind)) => kind,
            None if rest.is_empty() => "_",
            // seqeval calls the kind of `PER` `ER`, which people would wonder at.
            None => tag,
        };
        Self { letter, kind: kind.to_owned() }
    }

    /// Whether a word is in an entity.
    fn is_inside(&self) -> bool {
        self.letter != OUTSIDE && self.letter != '.'
    }

    /// Whether an entity that this is in ends before `next`.
    fn ends_before(&self, next: &Self) -> bool {
        let changes = self.is_inside() && self.kind != next.kind;
        match self.letter {
            'E' | 'S' => true,
            'B' | 'I' => matches!(next.letter, 'B' | 'S' | OUTSIDE) || changes,
            _ => changes,
        }
    }

    /// Whether an entity begins with this behind `last`.
    fn begins_behind(&self, last: &Self) -> bool {
        let changes = self.is_inside() && self.kind != last.kind;
        match self.letter {
            'B' | 'S' => true,
            'E' | 'I' => matches!(last.letter, 'E' | 'S' | OUTSIDE) || changes,
            _ => changes,
        }
    }
}

/// The entities of a text, in order.
pub fn entities(tags: &[&str]) -> Vec<Entity> {
    let (mut found, mut start) = (Vec::new(), 0);
    let mut last = Tag { letter: OUTSIDE, kind: String::new() };
    for (at, tag) in tags.iter().copied().chain(["O"]).enumerate() {
        let tag = Tag::of(tag);
        if last.ends_before(&tag) {
            found.push((last.kind.clone(), start..at));
        }
        if tag.begins_behind(&last) {
            start = at;
        }
        last = tag;
    }
    found
}

/// Counts of entities by kind, and of words.
#[derive(Clone, Debug, Default)]
pub struct EntityCounts {
    kinds: BTreeMap<String, Tally>,
    words: u64,
    right_words: u64,
}

impl EntityCounts {
    /// Adds a text by its tags.
    pub fn add(&mut self, wanted: &[&str], predicted: &[&str]) {
        self.words += wanted.len() as u64;
        self.right_words +=
            wanted.iter().zip(predicted).filter(|(wanted, predicted)| wanted == predicted).count() as u64;
        let key = |(kind, words): Entity| (kind, words.start, words.end);
        let wanted: BTreeSet<_> = entities(wanted).into_iter().map(key).collect();
        let predicted: BTreeSet<_> = entities(predicted).into_iter().map(key).collect();
        for entity in &wanted {
            let tally = self.kinds.entry(entity.0.clone()).or_default();
            tally.wanted += 1;
            tally.right += u64::from(predicted.contains(entity));
        }
        for (kind, ..) in predicted {
            self.kinds.entry(kind).or_default().predicted += 1;
        }
    }

    /// Precision, recall and F1 over all entities, and the share of words whose tag is right.
    pub fn scores(&self) -> Scores {
        let all = self.kinds.values().fold(Tally::default(), |all, kind| all.and(*kind));
        let scores = [
            ("entity_f1", share(2.0 * all.right as f64, (all.wanted + all.predicted) as f64)),
            ("entity_precision", share(all.right as f64, all.predicted as f64)),
            ("entity_recall", share(all.right as f64, all.wanted as f64)),
            ("token_accuracy", share(self.right_words as f64, self.words as f64)),
        ];
        scores.into_iter().map(|(name, score)| (name.to_owned(), score)).collect()
    }

    /// The figures of each kind of entity, in place of classes.
    pub fn details(&self) -> ClassDetails {
        let kinds = (0..).zip(&self.kinds).map(|(number, (kind, tally))| tally.scores(number, kind.clone()));
        ClassDetails { count: self.kinds.len() as u64, scores: kinds.collect(), ..ClassDetails::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(tags: &str) -> String {
        let tags: Vec<&str> = tags.split(' ').filter(|tag| !tag.is_empty()).collect();
        let shown = |(kind, words): Entity| format!("{kind}{}:{}", words.start, words.end);
        entities(&tags).into_iter().map(shown).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn entities_are_those_of_seqeval() {
        // Answers of seqeval 1.2.2's get_entities, whose ends are one less.
        let cases = [
            ("", ""),
            ("O O", ""),
            ("B-PER I-PER O B-LOC", "PER0:2 LOC3:4"),
            ("B-PER B-PER", "PER0:1 PER1:2"),
            ("I-PER I-PER O I-LOC", "PER0:2 LOC3:4"),
            ("B-PER I-LOC", "PER0:1 LOC1:2"),
            ("S-PER B-LOC I-LOC E-LOC O", "PER0:1 LOC1:4"),
            ("E-PER E-PER", "PER0:1 PER1:2"),
            ("B-A-B I-A-B", "A-B0:2"),
            ("B I O B", "_0:2 _3:4"),
        ];
        for (tags, want) in cases {
            assert_eq!(found(tags), want, "{tags}");
        }
        assert_eq!(found("PER PER O LOC"), "PER0:2 LOC3:4");
    }

    #[test]
    fn drawn_tags_are_counted_as_seqeval_counts_them() {
        type Case = (Vec<Vec<String>>, Vec<Vec<String>>, Vec<Vec<Entity>>, Scores);
        let read = |line: &str| -> Case {
            let case: serde_json::Value = serde_json::from_str(line).unwrap();
            let of = |key: &str| serde_json::from_value(case[key].clone()).unwrap();
            let entities: Vec<Vec<(String, usize, usize)>> = serde_json::from_value(case["entities"].clone()).unwrap();
            let entity = |(kind, start, end): (String, usize, usize)| (kind, start..end);
            let entities = entities.into_iter().map(|text| text.into_iter().map(entity).collect()).collect();
            (of("wanted"), of("predicted"), entities, serde_json::from_value(case["scores"].clone()).unwrap())
        };
        for line in include_str!("../../../tests/fixtures/seqeval.jsonl").lines() {
            let (wanted, predicted, found, scores) = read(line);
            let mut counts = EntityCounts::default();
            for ((wanted, predicted), found) in wanted.iter().zip(&predicted).zip(found) {
                let (wanted, predicted): (Vec<&str>, Vec<&str>) =
                    (wanted.iter().map(String::as_str).collect(), predicted.iter().map(String::as_str).collect());
                assert_eq!(entities(&wanted), found, "{wanted:?}");
                counts.add(&wanted, &predicted);
            }
            for (name, score) in counts.scores() {
                assert!((score - scores[&name]).abs() < 1e-12, "{name}: {score} in {line}");
            }
        }
    }

    #[test]
    fn known_scores() {
        let mut counts = EntityCounts::default();
        // The example of seqeval's page: one of two entities is found, and one too many words.
        counts.add(
            &["O", "O", "O", "B-MISC", "I-MISC", "I-MISC", "O"],
            &["O", "O", "B-MISC", "I-MISC", "I-MISC", "I-MISC", "O"],
        );
        counts.add(&["B-PER", "I-PER", "O"], &["B-PER", "I-PER", "O"]);
        let scores = counts.scores();
        let want = [("entity_f1", 0.5), ("entity_precision", 0.5), ("entity_recall", 0.5), ("token_accuracy", 0.8)];
        for (name, want) in want {
            assert!((scores[name] - want).abs() < 1e-9, "{name}: {}", scores[name]);
        }
        let details = counts.details();
        let kinds: Vec<_> = details.scores.iter().map(|kind| (kind.name.as_str(), kind.rows, kind.f1)).collect();
        assert_eq!(kinds, [("MISC", 1, Some(0.0)), ("PER", 1, Some(1.0))]);
        assert_eq!(EntityCounts::default().scores()["entity_f1"], 0.0);
    }
}

//! The words of a text that have a label each: given as a list, or split off a plain text, and cut into pieces. Pure.

use std::ops::Range;

use serde_json::Value;

/// The words of a row. Their labels are absent in a row to predict that has none.
pub struct Words {
    pub words: Vec<String>,
    pub tags: Option<Vec<String>>,
    /// The text that the words are of, and where each stands in it, in characters.
    pub text: String,
    pub places: Vec<Range<usize>>,
    /// Whether the words were split off a plain text.
    pub is_text: bool,
}

impl Words {
    /// Words with a space between them.
    pub fn joined(words: Vec<String>) -> Self {
        let mut start = 0;
        let mut place = |word: &String| {
            let end = start + word.chars().count();
            let place = start..end;
            start = end + 1;
            place
        };
        let places = words.iter().map(&mut place).collect();
        Self { text: words.join(" "), words, tags: None, places, is_text: false }
    }

    /// The words of a plain text: what stands between spaces, marks before and behind a word and a possessive `'s` apart.
    pub fn of_text(text: &str) -> Self {
        let letters: Vec<char> = text.chars().collect();
        let mut places: Vec<Range<usize>> = Vec::new();
        let mut start = 0;
        while start < letters.len() {
            let end = letters[start..].iter().position(|letter| letter.is_whitespace());
            let end = end.map_or(letters.len(), |length| start + length);
            split_marks(&letters, start..end, &mut places);
            start = end + 1;
        }
        let words = places.iter().map(|place| letters[place.clone()].iter().collect()).collect();
        Self { words, tags: None, text: text.to_owned(), places, is_text: true }
    }
}

/// Adds a word without the marks around it, and each of these.
fn split_marks(letters: &[char], word: Range<usize>, places: &mut Vec<Range<usize>>) {
    let is_mark = |at: &usize| !letters[*at].is_alphanumeric();
    let first = word.clone().find(|at| !is_mark(at)).unwrap_or(word.end);
    let last = word.clone().rev().find(|at| !is_mark(at)).map_or(first, |at| at + 1);
    places.extend((word.start..first).map(|at| at..at + 1));
    let has_possessive = last - first > 2 && letters[last - 1] == 's' && matches!(letters[last - 2], '\'' | '’');
    let stem = if has_possessive { last - 2 } else { last };
    places.extend([first..stem, stem..last].into_iter().filter(|part| !part.is_empty()));
    places.extend((last..word.end).map(|at| at..at + 1));
}

/// The entries of a list, or what stands between spaces in a text.
pub fn list(value: Option<&Value>) -> Option<Vec<String>> {
    match value? {
        Value::String(text) => Some(text.split_whitespace().map(str::to_owned).collect()),
        Value::Array(list) => list.iter().map(entry).collect(),
        _ => None,
    }
}

fn entry(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    }
}

/// Ranges of words that have at most `room` tokens together. A word that alone has more is cut by the tokenizer.
pub fn pieces(counts: &[usize], room: usize) -> Vec<Range<usize>> {
    let mut pieces: Vec<Range<usize>> = Vec::new();
    let (mut start, mut filled) = (0, 0);
    for (at, count) in counts.iter().enumerate() {
        if filled + count > room && at > start {
            pieces.push(start..at);
            (start, filled) = (at, 0);
        }
        filled += count;
    }
    pieces.push(start..counts.len());
    pieces
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_plain_text_is_split_into_words() {
        let cases: [(&str, &[&str]); 6] = [
            ("Peter lives in Paris.", &["Peter", "lives", "in", "Paris", "."]),
            (
                "\"Ana's\" (state-of-the-art) o'clock",
                &["\"", "Ana", "'s", "\"", "(", "state-of-the-art", ")", "o'clock"],
            ),
            ("  Zürich,  né\n", &["Zürich", ",", "né"]),
            ("... 's", &[".", ".", ".", "'", "s"]),
            ("3.5 U.S.", &["3.5", "U.S", "."]),
            ("", &[]),
        ];
        for (text, want) in cases {
            let Words { words, places, .. } = Words::of_text(text);
            assert_eq!(words, want, "{text:?}");
            let letters: Vec<char> = text.chars().collect();
            let cut: Vec<String> = places.into_iter().map(|place| letters[place].iter().collect()).collect();
            assert_eq!(cut, words, "{text:?}");
        }
    }

    #[test]
    fn words_have_their_places_in_the_joined_text() {
        let words = Words::joined(["Zürich", "is", "x"].map(str::to_owned).to_vec());
        assert_eq!((words.text.as_str(), words.places), ("Zürich is x", vec![0..6, 7..9, 10..11]));
    }

    #[test]
    fn pieces_end_between_words() {
        assert_eq!(pieces(&[1, 2, 3, 1, 9, 1], 4), [0..2, 2..4, 4..5, 5..6]);
        assert!(pieces(&[1, 1], 4).into_iter().eq(std::iter::once(0..2)));
        assert!(pieces(&[], 4).into_iter().eq(std::iter::once(0..0)));
    }

    #[test]
    fn entries_of_lists() {
        let of = |value: Value| list(Some(&value));
        assert_eq!(of(json!(["a", 3])), Some(vec!["a".to_owned(), "3".to_owned()]));
        assert_eq!(of(json!("B-PER O")), Some(vec!["B-PER".to_owned(), "O".to_owned()]));
        assert_eq!((of(json!([["a"]])), of(json!(3)), list(None)), (None, None, None));
    }
}

//! From a rendered conversation to tokens, and which of them the loss counts.

use std::ops::Range;

use tokenizers::Tokenizer;

use super::messages::ChatError;
use super::template::Rendered;

#[derive(Clone, Debug, PartialEq)]
pub struct Encoded {
    pub ids: Vec<u32>,
    /// One for each token: whether the assistant wrote it.
    pub is_counted: Vec<bool>,
    /// Whether there were more than `max_length` tokens.
    pub was_cut: bool,
}

/// The tokens of a conversation, the first `max_length` of them. The template has written all special tokens already.
/// `tokenizer` must neither truncate nor pad.
pub fn encode(tokenizer: &Tokenizer, rendered: &Rendered, max_length: usize) -> Result<Encoded, ChatError> {
    // Offsets in characters are the ones that Python sees: all tokens of one character have the same.
    let encoding = tokenizer
        .encode_char_offsets(rendered.text.as_str(), false)
        .map_err(|error| ChatError::Tokenizer { message: error.to_string() })?;
    let was_cut = encoding.len() > max_length;
    let length = encoding.len().min(max_length);
    let offsets = &encoding.get_offsets()[..length];
    let mut is_counted = vec![false; length];
    for range in in_chars(&rendered.text, &rendered.spoken) {
        if let Some(tokens) = tokens_inside(offsets, range) {
            is_counted[tokens].fill(true);
        }
    }
    Ok(Encoded { ids: encoding.get_ids()[..length].to_vec(), is_counted, was_cut })
}

/// Byte ranges in order, as ranges of characters.
fn in_chars(text: &str, ranges: &[Range<usize>]) -> Vec<Range<usize>> {
    let (mut byte, mut count) = (0, 0);
    let mut position = |at: usize| {
        count += text[byte..at].chars().count();
        byte = at;
        count
    };
    ranges.iter().map(|range| position(range.start)..position(range.end)).collect()
}

/// The first token that holds the character `at`: transformers' `char_to_token`.
fn token_at(offsets: &[(usize, usize)], at: usize) -> Option<usize> {
    offsets.iter().position(|(start, end)| (*start..*end).contains(&at))
}

/// The tokens of a range of characters: those that transformers' `return_assistant_tokens_mask` counts. Where a tokenizer trims its offsets
/// (`trim_offsets`) and the range begins or ends with a blank that has no token, transformers would count tokens of other turns too, or
/// none any more; here that changes nothing.
fn tokens_inside(offsets: &[(usize, usize)], range: Range<usize>) -> Option<Range<usize>> {
    let is_inside = |(start, end): &(usize, usize)| start < end && *start < range.end && *end > range.start;
    let first = offsets.iter().position(is_inside)?;
    let last = token_at(offsets, range.end - 1).or_else(|| offsets.iter().rposition(is_inside))?;
    Some(first..last + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_become_tokens() {
        // A word, a blank without offsets, a character of two tokens, a word.
        let offsets = [(0, 3), (4, 4), (4, 5), (4, 5), (5, 9)];
        let cases = [
            (0..3, Some(0..1)),
            (3..5, Some(2..3)),
            (4..5, Some(2..3)),
            (4..9, Some(2..5)),
            (4..20, Some(2..5)),
            (1..4, Some(0..1)),
            (3..4, None),
            (5..5, None),
            (20..30, None),
        ];
        for (range, inside) in cases {
            assert_eq!(tokens_inside(&offsets, range.clone()), inside, "{range:?}");
        }
    }

    #[test]
    fn bytes_become_characters() {
        assert_eq!(in_chars("aé🙂b", &[0..1, 1..3, 3..8]), [0..1, 1..2, 2..4]);
    }
}

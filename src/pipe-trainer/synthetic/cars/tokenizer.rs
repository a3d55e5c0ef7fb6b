//! A tokenizer for captions: a piece for every word of them and for every letter, with CLIP's special tokens.

use super::scene;
use crate::synthetic::unigram::Unigram;

/// In front of each text, behind it, and for what is neither word nor letter.
const SPECIAL: [&str; 3] = ["<|startoftext|>", "<|endoftext|>", "<|unknown|>"];

pub fn json() -> String {
    let (start, end) = (Some(0), Some(1));
    Unigram { special: &SPECIAL, unknown: 2, start, end, normalizer: "Lowercase" }.json(scene::words())
}

#[cfg(test)]
mod tests {
    use tokenizers::Tokenizer;

    use super::*;

    #[test]
    fn captions_come_back_and_words_are_whole() {
        let tokenizer = Tokenizer::from_bytes(json()).unwrap();
        let encoding = tokenizer.encode("Two red convertibles by the sea", true).unwrap();
        assert_eq!(encoding.len(), 8, "{:?}", encoding.get_tokens());
        assert_eq!((encoding.get_ids()[0], encoding.get_ids()[7]), (0, 1));
        assert_eq!(tokenizer.decode(encoding.get_ids(), true).unwrap(), "two red convertibles by the sea");
    }
}

//! A tokenizer for stories: a piece for every word of the vocabulary and for every letter, and GPT-2's token behind a text.

use super::vocabulary;
use crate::synthetic::unigram::Unigram;

/// Nothing is put around a text: the end token goes between documents, when they are packed.
pub fn json() -> String {
    let special = ["<|endoftext|>", "<unk>"];
    Unigram { special: &special, unknown: 1, start: None, end: None, normalizer: "NFKC" }.json(vocabulary::words())
}

#[cfg(test)]
mod tests {
    use tokenizers::Tokenizer;

    use super::*;
    use crate::random::{Purpose, Random};
    use crate::synthetic::stories::story;

    #[test]
    fn a_story_comes_back_and_its_words_are_whole() {
        let tokenizer = Tokenizer::from_bytes(json()).unwrap();
        for number in 0..50 {
            let story = story(&mut Random::new(Purpose::Stories, 4, &[number]));
            let encoding = tokenizer.encode(story.as_str(), false).unwrap();
            let words = story.split_whitespace().count() + story.matches(['.', ',']).count();
            assert_eq!(encoding.len(), words, "{:?}", encoding.get_tokens());
            assert_eq!(tokenizer.decode(encoding.get_ids(), true).unwrap(), story);
        }
    }
}

//! A tokenizer for recipes: a piece for every word of the vocabulary and for every letter, with T5's special tokens.

use super::vocabulary;
use crate::synthetic::unigram::Unigram;

pub fn json() -> String {
    let special = ["<pad>", "</s>", "<unk>"];
    Unigram { special: &special, unknown: 2, start: None, end: Some(1), normalizer: "NFKC" }.json(vocabulary::words())
}

#[cfg(test)]
mod tests {
    use tokenizers::Tokenizer;

    use super::*;

    #[test]
    fn text_comes_back_and_words_are_whole() {
        let tokenizer = Tokenizer::from_bytes(json()).unwrap();
        let text = "whisk the soy sauce for 45 minutes. stir the egg for 2 minutes.";
        let encoding = tokenizer.encode(text, true).unwrap();
        assert_eq!(encoding.len(), 16, "{:?}", encoding.get_tokens());
        assert_eq!(encoding.get_ids().last(), Some(&1));
        assert_eq!(tokenizer.decode(encoding.get_ids(), true).unwrap(), text);
        let unseen = tokenizer.encode("quinoa", true).unwrap();
        assert_eq!(tokenizer.decode(unseen.get_ids(), true).unwrap(), "quinoa");
    }
}

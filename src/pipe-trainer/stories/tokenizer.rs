//! A tokenizer for stories: a piece for every word of the woods and for every letter, and GPT-2's token behind a text.

use serde_json::json;

use super::woods;

/// `tokenizer.json` in the format of Hugging Face's tokenizers. Words are preferred to letters by their scores.
pub fn json() -> String {
    let special = ["<|endoftext|>", "<unk>"];
    let added = special.iter().enumerate().map(|(id, content)| {
        json!({
            "id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false,
            "special": true,
        })
    });
    let pieces = special.iter().map(|token| json!([token, 0.0]));
    let words = woods::words().into_iter().map(|word| json!([format!("▁{word}"), -4.0]));
    let letters = "▁,.abcdefghijklmnopqrstuvwxyz0123456789".chars().map(|letter| json!([letter.to_string(), -8.0]));
    let metaspace = json!({ "type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": true });
    let tokenizer = json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": added.collect::<Vec<_>>(),
        "normalizer": { "type": "NFKC" },
        "pre_tokenizer": metaspace,
        "post_processor": null,
        "decoder": metaspace,
        "model": {
            "type": "Unigram",
            "unk_id": 1,
            "vocab": pieces.chain(words).chain(letters).collect::<Vec<_>>(),
            "byte_fallback": false,
        },
    });
    serde_json::to_string_pretty(&tokenizer).expect("a tokenizer is plain data") + "\n"
}

#[cfg(test)]
mod tests {
    use tokenizers::Tokenizer;

    use super::*;
    use crate::random::{Purpose, Random};
    use crate::stories::story;

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

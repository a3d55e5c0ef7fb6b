//! A tokenizer for captions: a piece for every word of them and for every letter, with CLIP's special tokens.

use serde_json::{Value, json};

use super::scene;

/// In front of each text, behind it, and for what is neither word nor letter; their numbers are 0, 1 and 2.
const SPECIAL: [&str; 3] = ["<|startoftext|>", "<|endoftext|>", "<|unknown|>"];

/// `tokenizer.json` in the format of Hugging Face's tokenizers. Words are preferred to letters by their scores.
pub fn json() -> String {
    let added: Vec<Value> = SPECIAL
        .iter()
        .enumerate()
        .map(|(id, content)| {
            json!({
                "id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
                "normalized": false, "special": true,
            })
        })
        .collect();
    let pieces = SPECIAL.iter().map(|token| json!([token, 0.0]));
    let words = scene::words().into_iter().map(|word| json!([format!("▁{word}"), -4.0]));
    let letters = "▁,.abcdefghijklmnopqrstuvwxyz0123456789".chars().map(|letter| json!([letter.to_string(), -8.0]));
    let metaspace = json!({ "type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": true });
    let sequence = |id: &str| json!({ "Sequence": { "id": id, "type_id": 0 } });
    let special = |token: &str| json!({ "SpecialToken": { "id": token, "type_id": 0 } });
    let (start, end) = (special(SPECIAL[0]), special(SPECIAL[1]));
    let number = |id: usize| json!({ "id": SPECIAL[id], "ids": [id], "tokens": [SPECIAL[id]] });
    let tokenizer = json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": added,
        "normalizer": { "type": "Lowercase" },
        "pre_tokenizer": metaspace,
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [start, sequence("A"), end],
            "pair": [start, sequence("A"), end, sequence("B"), end],
            "special_tokens": { SPECIAL[0]: number(0), SPECIAL[1]: number(1) },
        },
        "decoder": metaspace,
        "model": {
            "type": "Unigram",
            "unk_id": 2,
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

    #[test]
    fn captions_come_back_and_words_are_whole() {
        let tokenizer = Tokenizer::from_bytes(json()).unwrap();
        let encoding = tokenizer.encode("Two red convertibles by the sea", true).unwrap();
        assert_eq!(encoding.len(), 8, "{:?}", encoding.get_tokens());
        assert_eq!((encoding.get_ids()[0], encoding.get_ids()[7]), (0, 1));
        assert_eq!(tokenizer.decode(encoding.get_ids(), true).unwrap(), "two red convertibles by the sea");
    }
}

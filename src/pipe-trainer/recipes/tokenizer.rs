//! A tokenizer for recipes: a piece for every word of the kitchen and for every letter, with T5's special tokens.

use serde_json::{Value, json};

use super::kitchen;

/// `tokenizer.json` in the format of Hugging Face's tokenizers. Words are preferred to letters by their scores.
pub fn json() -> String {
    let special = ["<pad>", "</s>", "<unk>"];
    let added: Vec<Value> = special
        .iter()
        .enumerate()
        .map(|(id, content)| {
            json!({
                "id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
                "normalized": false, "special": true,
            })
        })
        .collect();
    let pieces = special.iter().map(|token| json!([token, 0.0]));
    let words = kitchen::words().into_iter().map(|word| json!([format!("▁{word}"), -4.0]));
    let letters = "▁,.abcdefghijklmnopqrstuvwxyz0123456789".chars().map(|letter| json!([letter.to_string(), -8.0]));
    let metaspace = json!({ "type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": true });
    let sequence = |id: &str| json!({ "Sequence": { "id": id, "type_id": 0 } });
    let end = json!({ "SpecialToken": { "id": "</s>", "type_id": 0 } });
    let tokenizer = json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": added,
        "normalizer": { "type": "NFKC" },
        "pre_tokenizer": metaspace,
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [sequence("A"), end],
            "pair": [sequence("A"), end, sequence("B"), end],
            "special_tokens": { "</s>": { "id": "</s>", "ids": [1], "tokens": ["</s>"] } },
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

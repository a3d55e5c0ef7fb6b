//! Tokenizers for synthetic data: a piece for every word and for every letter.

use std::fmt::Display;

use serde_json::{Value, json};

pub struct Unigram<'a> {
    /// Tokens of their own, by number.
    pub special: &'a [&'a str],
    /// The number of the one for what is neither word nor letter.
    pub unknown: usize,
    /// The numbers of those in front of each text, and of the one behind it.
    pub start: Option<usize>,
    pub end: Option<usize>,
    pub normalizer: &'a str,
}

impl Unigram<'_> {
    /// `tokenizer.json` in the format of Hugging Face's tokenizers. Words are preferred to letters by their scores.
    pub fn json(&self, words: impl IntoIterator<Item = impl Display>) -> String {
        let pieces = self.special.iter().map(|token| json!([token, 0.0]));
        let words = words.into_iter().map(|word| json!([format!("▁{word}"), -4.0]));
        let letters = "▁,.abcdefghijklmnopqrstuvwxyz0123456789".chars().map(|letter| json!([letter.to_string(), -8.0]));
        let metaspace = json!({ "type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": true });
        let tokenizer = json!({
            "version": "1.0",
            "truncation": null,
            "padding": null,
            "added_tokens": added_tokens(self.special),
            "normalizer": { "type": self.normalizer },
            "pre_tokenizer": metaspace,
            "post_processor": self.post_processor(),
            "decoder": metaspace,
            "model": {
                "type": "Unigram",
                "unk_id": self.unknown,
                "vocab": pieces.chain(words).chain(letters).collect::<Vec<_>>(),
                "byte_fallback": false,
            },
        });
        serde_json::to_string_pretty(&tokenizer).expect("a tokenizer is plain data") + "\n"
    }

    /// Nothing where nothing is put around a text.
    fn post_processor(&self) -> Value {
        let used: Vec<usize> = self.start.into_iter().chain(self.end).collect();
        if used.is_empty() {
            return Value::Null;
        }
        let token = |number: usize| json!({ "SpecialToken": { "id": self.special[number], "type_id": 0 } });
        let sequence = |id: &str| json!({ "Sequence": { "id": id, "type_id": 0 } });
        let end = self.end.map(token);
        let single: Vec<Value> = self.start.map(token).into_iter().chain([sequence("A")]).chain(end.clone()).collect();
        let pair: Vec<Value> = single.iter().cloned().chain([sequence("B")]).chain(end).collect();
        let known = |number: &usize| {
            let name = self.special[*number];
            (name.to_owned(), json!({ "id": name, "ids": [number], "tokens": [name] }))
        };
        let special_tokens: serde_json::Map<String, Value> = used.iter().map(known).collect();
        json!({ "type": "TemplateProcessing", "single": single, "pair": pair, "special_tokens": special_tokens })
    }
}

/// Tokens that are never taken apart, by number.
pub fn added_tokens(special: &[&str]) -> Vec<Value> {
    let added = |(id, content): (usize, &&str)| {
        json!({
            "id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false, "special": true,
        })
    };
    special.iter().enumerate().map(added).collect()
}

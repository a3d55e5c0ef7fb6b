//! A tokenizer for dishes: a token for every word of the vocabulary and for every letter, with BERT's special tokens.

use serde_json::{Map, json};

use super::vocabulary;
use crate::synthetic::unigram::added_tokens;

/// `tokenizer.json` in the format of Hugging Face's tokenizers. A word that is not in the vocabulary is spelled.
pub fn json() -> String {
    let special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"];
    let letters = "abcdefghijklmnopqrstuvwxyz0123456789";
    let mut pieces: Vec<String> = special.map(str::to_owned).to_vec();
    pieces.extend(vocabulary::words());
    pieces.extend(".,".chars().chain(letters.chars()).map(String::from));
    pieces.extend(letters.chars().map(|letter| format!("##{letter}")));
    let mut vocab = Map::new();
    for piece in pieces {
        let number = vocab.len();
        vocab.entry(piece).or_insert(json!(number));
    }
    let sequence = |id: &str, kind: u32| json!({ "Sequence": { "id": id, "type_id": kind } });
    let token = |id: &str, kind: u32| json!({ "SpecialToken": { "id": id, "type_id": kind } });
    let known = |id: &str, number: u32| json!({ "id": id, "ids": [number], "tokens": [id] });
    let single = vec![token("[CLS]", 0), sequence("A", 0), token("[SEP]", 0)];
    let pair = [single.clone(), vec![sequence("B", 1), token("[SEP]", 1)]].concat();
    let tokenizer = json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": added_tokens(&special),
        "normalizer": {
            "type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": true, "strip_accents": null,
            "lowercase": true,
        },
        "pre_tokenizer": { "type": "BertPreTokenizer" },
        "post_processor": {
            "type": "TemplateProcessing",
            "single": single,
            "pair": pair,
            "special_tokens": { "[CLS]": known("[CLS]", 2), "[SEP]": known("[SEP]", 3) },
        },
        "decoder": { "type": "WordPiece", "prefix": "##", "cleanup": true },
        "model": {
            "type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##", "max_input_chars_per_word": 100,
            "vocab": vocab,
        },
    });
    serde_json::to_string_pretty(&tokenizer).expect("a tokenizer is plain data") + "\n"
}

#[cfg(test)]
mod tests {
    use tokenizers::Tokenizer;

    use super::*;

    #[test]
    fn words_are_whole_and_others_are_spelled() {
        let tokenizer = Tokenizer::from_bytes(json()).unwrap();
        let encoding = tokenizer.encode("Simmer the stock for 45 minutes.", true).unwrap();
        assert_eq!(encoding.get_tokens(), ["[CLS]", "simmer", "the", "stock", "for", "45", "minutes", ".", "[SEP]"]);
        let spelled = tokenizer.encode("fig", false).unwrap();
        assert_eq!(spelled.get_tokens(), ["f", "##i", "##g"]);
        let pair = tokenizer.encode(("mix", "rest"), true).unwrap();
        assert_eq!((pair.get_type_ids(), pair.get_ids()[0]), ([0, 0, 0, 1, 1].as_slice(), 2));
        assert!(tokenizer.get_vocab_size(true) <= 192, "{}", tokenizer.get_vocab_size(true));
    }
}

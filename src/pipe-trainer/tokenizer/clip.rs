//! CLIP's tokenizer, made from `vocab.json` and `merges.txt`.

use std::path::Path;

use pipe_model::VocabularyFormat;
use serde_json::{Value, json};
use tokenizers::Tokenizer;

use super::parts::{Built, decode, normalize, pre_tokenize};
use super::roberta::{byte_level, files, surround};
use super::settings::Settings;

const START: &str = "<|startoftext|>";
const END: &str = "<|endoftext|>";

/// A word is letters, one digit, or what is neither; or the end of a short form.
const WORDS: &str = r"<\|startoftext\|>|<\|endoftext\|>|'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+";

pub fn build(path: &Path, settings: &Settings) -> Built {
    let unknown = settings.token("unk_token", END);
    let model = files(path)?.end_of_word_suffix("</w>".to_owned()).unk_token(unknown).build();
    let mut tokenizer = Tokenizer::new(model.map_err(|error| error.to_string())?);
    normalize(&mut tokenizer, &normalizer())?;
    pre_tokenize(&mut tokenizer, &pre_tokenizer())?;
    decode(&mut tokenizer, &byte_level(true))?;
    settings.add_tokens(&mut tokenizer, VocabularyFormat::Clip.roles(), settings.additional())?;
    let (bos, eos) = (settings.token("bos_token", START), settings.token("eos_token", END));
    surround(&mut tokenizer, &bos, &eos, false, false)?;
    Ok(tokenizer)
}

pub fn normalizer() -> Value {
    let normalizers = json!([
        { "type": "NFC" },
        { "type": "Replace", "pattern": { "Regex": r"\s+" }, "content": " " },
        { "type": "Lowercase" },
    ]);
    json!({ "type": "Sequence", "normalizers": normalizers })
}

pub fn pre_tokenizer() -> Value {
    let words = json!({ "type": "Split", "pattern": { "Regex": WORDS }, "behavior": "Removed", "invert": true });
    json!({ "type": "Sequence", "pretokenizers": [words, byte_level(false)] })
}

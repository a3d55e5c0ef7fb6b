//! The parts of a tokenizer, given as they stand in tokenizer.json.

use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};
use tokenizers::{DecoderWrapper, NormalizerWrapper, PostProcessorWrapper, PreTokenizerWrapper, Tokenizer};

/// A tokenizer, or what is wrong with its files, in words.
pub type Built = Result<Tokenizer, String>;

fn part<T: DeserializeOwned>(value: &Value) -> Result<T, String> {
    T::deserialize(value).map_err(|error| error.to_string())
}

pub fn normalize(tokenizer: &mut Tokenizer, value: &Value) -> Result<(), String> {
    let normalizer: NormalizerWrapper = part(value)?;
    tokenizer.with_normalizer(Some(normalizer)).map(drop).map_err(|error| error.to_string())
}

pub fn pre_tokenize(tokenizer: &mut Tokenizer, value: &Value) -> Result<(), String> {
    let pre_tokenizer: PreTokenizerWrapper = part(value)?;
    tokenizer.with_pre_tokenizer(Some(pre_tokenizer));
    Ok(())
}

pub fn decode(tokenizer: &mut Tokenizer, value: &Value) -> Result<(), String> {
    let decoder: DecoderWrapper = part(value)?;
    tokenizer.with_decoder(Some(decoder));
    Ok(())
}

pub fn post_process(tokenizer: &mut Tokenizer, value: &Value) -> Result<(), String> {
    let processor: PostProcessorWrapper = part(value)?;
    tokenizer.with_post_processor(Some(processor));
    Ok(())
}

/// What stands around one text, and what follows it where there is a second.
pub fn surround(
    tokenizer: &mut Tokenizer,
    single: &[Value],
    second: &[Value],
    known: &[(&str, u32)],
) -> Result<(), String> {
    let special: Map<String, Value> = known
        .iter()
        .map(|(token, number)| ((*token).to_owned(), json!({ "id": token, "ids": [number], "tokens": [token] })))
        .collect();
    let pair = [single, second].concat();
    let template = json!({ "type": "TemplateProcessing", "single": single, "pair": pair, "special_tokens": special });
    post_process(tokenizer, &template)
}

/// As BERT and DeBERTa have it: [CLS] A [SEP], and B [SEP] of another type.
pub fn classify(tokenizer: &mut Tokenizer, cls: &str, sep: &str) -> Result<(), String> {
    let token = |id: &str, kind: u32| json!({ "SpecialToken": { "id": id, "type_id": kind } });
    let text = |id: &str, kind: u32| json!({ "Sequence": { "id": id, "type_id": kind } });
    let known = [(cls, number(tokenizer, cls)?), (sep, number(tokenizer, sep)?)];
    surround(tokenizer, &[token(cls, 0), text("A", 0), token(sep, 0)], &[text("B", 1), token(sep, 1)], &known)
}

/// The number of a token that the tokenizer was given.
pub fn number(tokenizer: &Tokenizer, token: &str) -> Result<u32, String> {
    tokenizer.token_to_id(token).ok_or_else(|| format!("it has no token {token:?}"))
}

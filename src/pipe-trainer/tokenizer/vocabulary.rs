//! Tokenizers made from `vocab.txt` (BERT), or from `vocab.json` and `merges.txt` (RoBERTa, CLIP), and the parts
//! that all tokenizers are made of, given as they stand in tokenizer.json.

use std::path::Path;

use pipe_model::VocabularyFormat;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};
use tokenizers::models::bpe::{BPE, BpeBuilder};
use tokenizers::models::wordpiece::WordPiece;
use tokenizers::{DecoderWrapper, NormalizerWrapper, PostProcessorWrapper, PreTokenizerWrapper, Tokenizer};

use super::settings::Settings;

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

/// Sets the tokens around one text, and those that follow it where there is a second.
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

pub fn bert(path: &Path, settings: &Settings) -> Built {
    let vocabulary = path.to_str().ok_or("its path is not UTF-8")?;
    let unknown = settings.token("unk_token", "[UNK]");
    let model = WordPiece::from_file(vocabulary).unk_token(unknown).build().map_err(|error| error.to_string())?;
    let mut tokenizer = Tokenizer::new(model);
    let normalizer = json!({
        "type": "BertNormalizer",
        "clean_text": true,
        "handle_chinese_chars": settings.flag("tokenize_chinese_chars").unwrap_or(true),
        "strip_accents": settings.flag("strip_accents").map_or(Value::Null, Value::Bool),
        "lowercase": settings.flag("do_lower_case").unwrap_or(true),
    });
    normalize(&mut tokenizer, &normalizer)?;
    pre_tokenize(&mut tokenizer, &json!({ "type": "BertPreTokenizer" }))?;
    decode(&mut tokenizer, &json!({ "type": "WordPiece", "prefix": "##", "cleanup": true }))?;
    settings.add_tokens(&mut tokenizer, VocabularyFormat::Bert.roles(), settings.additional())?;
    classify(&mut tokenizer, &settings.token("cls_token", "[CLS]"), &settings.token("sep_token", "[SEP]"))?;
    Ok(tokenizer)
}

pub fn roberta(path: &Path, settings: &Settings) -> Built {
    let model = files(path)?.end_of_word_suffix(String::new()).build().map_err(|error| error.to_string())?;
    let mut tokenizer = Tokenizer::new(model);
    let space = settings.flag("add_prefix_space").unwrap_or(false);
    let trim = settings.flag("trim_offsets").unwrap_or(true);
    pre_tokenize(&mut tokenizer, &byte_level(space))?;
    decode(&mut tokenizer, &byte_level(true))?;
    settings.add_tokens(&mut tokenizer, VocabularyFormat::Roberta.roles(), settings.additional())?;
    let (sep, cls) = (settings.token("sep_token", "</s>"), settings.token("cls_token", "<s>"));
    surround_as_roberta(&mut tokenizer, &cls, &sep, trim, space)?;
    Ok(tokenizer)
}

/// The vocabulary with the merges that lie beside it.
pub fn files(path: &Path) -> Result<BpeBuilder, String> {
    let merges = path.with_file_name("merges.txt");
    if !merges.is_file() {
        return Err("merges.txt is not beside it".to_owned());
    }
    let (vocabulary, merges) = (path.to_str(), merges.to_str());
    let (vocabulary, merges) = vocabulary.zip(merges).ok_or("its path is not UTF-8")?;
    Ok(BPE::from_file(vocabulary, merges).continuing_subword_prefix(String::new()))
}

pub fn byte_level(add_prefix_space: bool) -> serde_json::Value {
    json!({ "type": "ByteLevel", "add_prefix_space": add_prefix_space, "trim_offsets": true, "use_regex": true })
}

/// `cls` A `sep`, and where there is a second text `sep` B `sep`.
pub fn surround_as_roberta(
    tokenizer: &mut Tokenizer,
    cls: &str,
    sep: &str,
    trim: bool,
    space: bool,
) -> Result<(), String> {
    let numbered = |token: &str| Ok::<_, String>(json!([token, number(tokenizer, token)?]));
    let processor = json!({
        "type": "RobertaProcessing",
        "sep": numbered(sep)?,
        "cls": numbered(cls)?,
        "trim_offsets": trim,
        "add_prefix_space": space,
    });
    post_process(tokenizer, &processor)
}

const START: &str = "<|startoftext|>";
const END: &str = "<|endoftext|>";

/// A word is letters, one digit, or what is neither; or the end of a short form.
const WORDS: &str = r"<\|startoftext\|>|<\|endoftext\|>|'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+";

pub fn clip(path: &Path, settings: &Settings) -> Built {
    let unknown = settings.token("unk_token", END);
    let model = files(path)?.end_of_word_suffix("</w>".to_owned()).unk_token(unknown).build();
    let mut tokenizer = Tokenizer::new(model.map_err(|error| error.to_string())?);
    normalize(&mut tokenizer, &clip_normalizer())?;
    pre_tokenize(&mut tokenizer, &clip_pre_tokenizer())?;
    decode(&mut tokenizer, &byte_level(true))?;
    settings.add_tokens(&mut tokenizer, VocabularyFormat::Clip.roles(), settings.additional())?;
    let (bos, eos) = (settings.token("bos_token", START), settings.token("eos_token", END));
    surround_as_roberta(&mut tokenizer, &bos, &eos, false, false)?;
    Ok(tokenizer)
}

pub fn clip_normalizer() -> Value {
    let normalizers = json!([
        { "type": "NFC" },
        { "type": "Replace", "pattern": { "Regex": r"\s+" }, "content": " " },
        { "type": "Lowercase" },
    ]);
    json!({ "type": "Sequence", "normalizers": normalizers })
}

pub fn clip_pre_tokenizer() -> Value {
    let words = json!({ "type": "Split", "pattern": { "Regex": WORDS }, "behavior": "Removed", "invert": true });
    json!({ "type": "Sequence", "pretokenizers": [words, byte_level(false)] })
}

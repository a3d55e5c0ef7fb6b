//! RoBERTa's tokenizer, made from `vocab.json` and `merges.txt`.

use std::path::Path;

use pipe_model::VocabularyFormat;
use serde_json::json;
use tokenizers::Tokenizer;
use tokenizers::models::bpe::{BPE, BpeBuilder};

use super::parts::{Built, decode, number, post_process, pre_tokenize};
use super::settings::Settings;

pub fn build(path: &Path, settings: &Settings) -> Built {
    let model = files(path)?.end_of_word_suffix(String::new()).build().map_err(|error| error.to_string())?;
    let mut tokenizer = Tokenizer::new(model);
    let space = settings.flag("add_prefix_space").unwrap_or(false);
    let trim = settings.flag("trim_offsets").unwrap_or(true);
    pre_tokenize(&mut tokenizer, &byte_level(space))?;
    decode(&mut tokenizer, &byte_level(true))?;
    settings.add_tokens(&mut tokenizer, VocabularyFormat::Roberta.roles(), settings.additional())?;
    let (sep, cls) = (settings.token("sep_token", "</s>"), settings.token("cls_token", "<s>"));
    surround(&mut tokenizer, &cls, &sep, trim, space)?;
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
pub fn surround(tokenizer: &mut Tokenizer, cls: &str, sep: &str, trim: bool, space: bool) -> Result<(), String> {
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

//! BERT's tokenizer, made from `vocab.txt`.

use std::path::Path;

use pipe_model::VocabularyFormat;
use serde_json::{Value, json};
use tokenizers::Tokenizer;
use tokenizers::models::wordpiece::WordPiece;

use super::parts::{Built, classify, decode, normalize, pre_tokenize};
use super::settings::Settings;

pub fn build(path: &Path, settings: &Settings) -> Built {
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

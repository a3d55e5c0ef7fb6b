//! Tokenizers made from a unigram model of sentencepiece: those of T5, XLM-RoBERTa and DeBERTa-v3.
//!
//! They follow transformers where it differs from sentencepiece itself: DeBERTa-v3 is normalized to NFC and not by the
//! model's own rules, and what no piece fits is unknown also where the model would fall back to bytes.

use std::path::Path;

use pipe_model::VocabularyFormat;
use serde_json::{Value, json};
use tokenizers::models::unigram::Unigram;
use tokenizers::normalizers::precompiled::Precompiled;
use tokenizers::{AddedToken, Tokenizer};

use super::parts::{Built, classify, decode, normalize, number, pre_tokenize, surround};
use super::pieces::{PieceKind, Pieces};
use super::settings::{Settings, Special};
use crate::storage::bounded_file::{self, LARGEST_TOKENIZER};

pub fn t5(path: &Path, settings: &Settings) -> Built {
    const EXTRA_IDS: u64 = 100;
    let pieces = read(path)?;
    let ids = settings.number("extra_ids").unwrap_or(EXTRA_IDS);
    if ids > 1 << 16 {
        return Err(format!("tokenizer_config.json: extra_ids: found {ids}; allowed: up to {}", 1 << 16));
    }
    let extra = |id: u64| format!("<extra_id_{id}>");
    let vocabulary = pieces.vocabulary().chain((0..ids).rev().map(|id| (extra(id), 0.0))).collect();
    let mut tokenizer = unigram(vocabulary, 2)?;
    normalize_by_charsmap(&mut tokenizer, &pieces)?;
    split_at_whitespace(&mut tokenizer, "always")?;
    let sentinels = (0..ids).map(|id| Special::Plain(extra(id)));
    let special = own_tokens(&pieces).chain(sentinels).collect();
    settings.add_tokens(&mut tokenizer, VocabularyFormat::T5.roles(), special)?;
    let eos = number(&tokenizer, &settings.token("eos_token", "</s>"))?;
    let end = json!({ "SpecialToken": { "id": "</s>", "type_id": 0 } });
    let text = |id: &str| json!({ "Sequence": { "id": id, "type_id": 0 } });
    surround(&mut tokenizer, &[text("A"), end.clone()], &[text("B"), end], &[("</s>", eos)])?;
    Ok(tokenizer)
}

pub fn xlm_roberta(path: &Path, settings: &Settings) -> Built {
    let pieces = read(path)?;
    // fairseq had four tokens in front where the model has three, and one behind.
    let named = |name, default| settings.token(name, default);
    let (bos, eos) = (named("bos_token", "<s>"), named("eos_token", "</s>"));
    let front = [bos.clone(), named("pad_token", "<pad>"), eos.clone(), named("unk_token", "<unk>")];
    let (front, mask) = (front.map(|token| (token, 0.0)), (named("mask_token", "<mask>"), 0.0));
    let vocabulary = front.into_iter().chain(pieces.vocabulary().skip(3)).chain([mask]).collect();
    let mut tokenizer = unigram(vocabulary, 3)?;
    normalize_by_charsmap(&mut tokenizer, &pieces)?;
    let scheme = if settings.flag("add_prefix_space").unwrap_or(true) { "always" } else { "never" };
    split_at_whitespace(&mut tokenizer, scheme)?;
    settings.add_tokens(&mut tokenizer, VocabularyFormat::XlmRoberta.roles(), own_tokens(&pieces).collect())?;
    let (bos, eos) = (bos.as_str(), eos.as_str());
    let token = |id: &str| json!({ "SpecialToken": { "id": id, "type_id": 0 } });
    let text = |id: &str| json!({ "Sequence": { "id": id, "type_id": 0 } });
    let known = [(bos, number(&tokenizer, bos)?), (eos, number(&tokenizer, eos)?)];
    surround(&mut tokenizer, &[token(bos), text("A"), token(eos)], &[token(eos), text("B"), token(eos)], &known)?;
    Ok(tokenizer)
}

pub fn deberta_v3(path: &Path, settings: &Settings) -> Built {
    let pieces = read(path)?;
    let unk = settings.token("unk_token", "[UNK]");
    let unknown = pieces.pieces.iter().position(|piece| piece.text == unk && piece.score == 0.0);
    let mut tokenizer = unigram(pieces.vocabulary().collect(), unknown.unwrap_or(pieces.unknown))?;
    let mut normalizers = vec![
        json!({ "type": "Replace", "pattern": { "Regex": r"\s{2,}|[\n\r\t]" }, "content": " " }),
        json!({ "type": "NFC" }),
        json!({ "type": "Strip", "strip_left": false, "strip_right": true }),
    ];
    if settings.flag("do_lower_case") == Some(true) {
        normalizers.insert(0, json!({ "type": "Lowercase" }));
    }
    normalize(&mut tokenizer, &json!({ "type": "Sequence", "normalizers": normalizers }))?;
    let scheme = if settings.flag("add_prefix_space").unwrap_or(true) { "always" } else { "first" };
    let mut splitters = vec![metaspace(scheme)];
    if settings.flag("split_by_punct") == Some(true) {
        splitters.insert(0, json!({ "type": "Punctuation", "behavior": "Isolated" }));
    }
    pre_tokenize(&mut tokenizer, &json!({ "type": "Sequence", "pretokenizers": splitters }))?;
    decode(&mut tokenizer, &metaspace(scheme))?;
    settings.add_tokens(&mut tokenizer, VocabularyFormat::DebertaV3.roles(), own_tokens(&pieces).collect())?;
    classify(&mut tokenizer, &settings.token("cls_token", "[CLS]"), &settings.token("sep_token", "[SEP]"))?;
    Ok(tokenizer)
}

fn read(path: &Path) -> Result<Pieces, String> {
    Pieces::read(&bounded_file::read(path, LARGEST_TOKENIZER).map_err(|error| error.to_string())?)
}

fn unigram(vocabulary: Vec<(String, f64)>, unknown: usize) -> Built {
    let model = Unigram::from(vocabulary, Some(unknown), false).map_err(|error| error.to_string())?;
    Ok(Tokenizer::new(model))
}

/// The pieces that are tokens of their own wherever they stand.
fn own_tokens(pieces: &Pieces) -> impl Iterator<Item = Special> {
    pieces.pieces.iter().filter(|piece| piece.kind != PieceKind::Other).map(|piece| {
        let special = piece.kind == PieceKind::Control;
        Special::Token(AddedToken::from(piece.text.clone(), special).normalized(false))
    })
}

fn normalize_by_charsmap(tokenizer: &mut Tokenizer, pieces: &Pieces) -> Result<(), String> {
    let Some(charsmap) = &pieces.charsmap else { return Ok(()) };
    let normalizer = Precompiled::from(charsmap).map_err(|error| format!("its precompiled_charsmap: {error}"))?;
    tokenizer.with_normalizer(Some(normalizer)).map(drop).map_err(|error| error.to_string())
}

pub fn metaspace(scheme: &str) -> Value {
    json!({ "type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": true })
}

fn split_at_whitespace(tokenizer: &mut Tokenizer, scheme: &str) -> Result<(), String> {
    let splitters = json!([{ "type": "WhitespaceSplit" }, metaspace(scheme)]);
    pre_tokenize(tokenizer, &json!({ "type": "Sequence", "pretokenizers": splitters }))?;
    decode(tokenizer, &metaspace(scheme))
}

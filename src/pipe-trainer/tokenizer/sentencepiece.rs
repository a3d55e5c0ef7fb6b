//! Tokenizers made from a unigram model of sentencepiece: those of T5, XLM-RoBERTa and DeBERTa-v3.
//!
//! They follow transformers where it differs from sentencepiece itself: DeBERTa-v3 is normalized to NFC and not by the
//! model's own rules, and what no piece fits is unknown also where the model would fall back to bytes.
//!
//! A model is a protobuf (`sentencepiece_model.proto`), of which only the fields that make a tokenizer are read.
//!
//! Tokenizers made from `vocab.txt` (BERT), or from `vocab.json` and `merges.txt` (RoBERTa, CLIP), and the parts
//! that all tokenizers are made of, given as they stand in tokenizer.json.

use std::path::Path;

use pipe_model::VocabularyFormat;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};
use tokenizers::models::bpe::{BPE, BpeBuilder};
use tokenizers::models::unigram::Unigram;
use tokenizers::models::wordpiece::WordPiece;
use tokenizers::normalizers::precompiled::Precompiled;
use tokenizers::{AddedToken, DecoderWrapper, NormalizerWrapper, PostProcessorWrapper, PreTokenizerWrapper, Tokenizer};

use super::settings::{Settings, Special};
use crate::storage::{self, LARGEST_TOKENIZER};

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
    Pieces::read(&storage::read(path, LARGEST_TOKENIZER).map_err(|error| error.to_string())?)
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

/// `TrainerSpec.ModelType.UNIGRAM`
const UNIGRAM: u64 = 1;

#[derive(Debug, Default, PartialEq)]
pub struct Pieces {
    pub pieces: Vec<Piece>,
    /// The number of the piece for what no other fits.
    pub unknown: usize,
    /// The normalization of texts; absent where they stay as they are.
    pub charsmap: Option<Vec<u8>>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Piece {
    pub text: String,
    pub score: f64,
    pub kind: PieceKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PieceKind {
    /// Begins or ends texts, and never stands in one.
    Control,
    /// Always a piece of its own.
    UserDefined,
    Other,
}

impl Pieces {
    pub fn read(bytes: &[u8]) -> Result<Self, String> {
        let mut read = Self::default();
        let mut model_type = UNIGRAM;
        for field in Fields(bytes) {
            match field? {
                (1, Wire::Bytes(bytes)) => read.pieces.push(Piece::read(bytes)?),
                (2, Wire::Bytes(trainer)) => {
                    for field in Fields(trainer) {
                        match field? {
                            (3, Wire::Number(number)) => model_type = number,
                            (40, Wire::Number(number)) => read.unknown = usize::try_from(number).unwrap_or(usize::MAX),
                            _ => {}
                        }
                    }
                }
                (3, Wire::Bytes(normalizer)) => {
                    for field in Fields(normalizer) {
                        if let (2, Wire::Bytes(charsmap)) = field? {
                            read.charsmap = Some(charsmap.to_owned()).filter(|charsmap| !charsmap.is_empty());
                        }
                    }
                }
                _ => {}
            }
        }
        match model_type {
            _ if read.pieces.is_empty() => Err("it is no model of sentencepiece: it has no pieces".to_owned()),
            UNIGRAM => Ok(read),
            _ => Err("its model_type is not unigram, which is the one that is read".to_owned()),
        }
    }

    /// Texts and scores, in order.
    pub fn vocabulary(&self) -> impl Iterator<Item = (String, f64)> {
        self.pieces.iter().map(|piece| (piece.text.clone(), piece.score))
    }
}

impl Piece {
    fn read(bytes: &[u8]) -> Result<Self, String> {
        let mut piece = Self { text: String::new(), score: 0.0, kind: PieceKind::Other };
        for field in Fields(bytes) {
            match field? {
                (1, Wire::Bytes(text)) => {
                    piece.text = String::from_utf8(text.to_owned()).map_err(|_| "it has a piece that is not UTF-8")?;
                }
                (2, Wire::Fixed(bits)) => piece.score = f32::from_bits(bits).into(),
                (3, Wire::Number(3)) => piece.kind = PieceKind::Control,
                (3, Wire::Number(4)) => piece.kind = PieceKind::UserDefined,
                _ => {}
            }
        }
        Ok(piece)
    }
}

/// A value of protobuf. What takes 8 bytes is skipped: nothing here is made of it.
#[derive(Debug, PartialEq)]
enum Wire<'a> {
    Number(u64),
    Bytes(&'a [u8]),
    Fixed(u32),
    Skipped,
}

/// The fields of a message, each with its number.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn field(&mut self) -> Option<(u64, Wire<'a>)> {
        let tag = self.number()?;
        let value = match tag & 7 {
            0 => Wire::Number(self.number()?),
            1 => self.take(8).map(|_| Wire::Skipped)?,
            2 => {
                let length = self.number()?;
                Wire::Bytes(self.take(length)?)
            }
            5 => Wire::Fixed(u32::from_le_bytes(self.take(4)?.try_into().ok()?)),
            _ => return None,
        };
        Some((tag >> 3, value))
    }

    /// 7 bits a byte, the lowest first; the highest bit of a byte says that more follow.
    fn number(&mut self) -> Option<u64> {
        let mut number = 0;
        for index in 0..10 {
            let byte = self.take(1)?[0];
            number |= u64::from(byte & 0x7f).checked_shl(7 * index)?;
            if byte < 0x80 {
                return Some(number);
            }
        }
        None
    }

    fn take(&mut self, count: u64) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(usize::try_from(count).ok()?)?;
        self.0 = rest;
        Some(taken)
    }
}

impl<'a> Iterator for Fields<'a> {
    type Item = Result<(u64, Wire<'a>), String>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let field = self.field();
        if field.is_none() {
            self.0 = &[];
        }
        Some(field.ok_or_else(|| "it is no model of sentencepiece, or not all of one".to_owned()))
    }
}

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

//! From texts to token numbers and back, truncated as Hugging Face does it: the special tokens count.
//!
//! Most tokenizers make tokens of one word at a time. The tokens of words that were seen are kept, and a text becomes those of
//! its words without the tokenizer: the same tokens in a tenth of the time.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::path::{Path, PathBuf};
use std::sync::{PoisonError, RwLock};

use pipe_spec::pipeline::Arch;
use serde_json::Value;
use tokenizers::{Encoding, PreTokenizerWrapper, Tokenizer, TruncationParams};

use crate::chat::{self, ChatError, Encoded, Rendered};
use crate::error::TrainerError;
use crate::host;

/// End tokens of GPT-2, T5 and the like, Llama 3, Gemma, BERT.
const END_TOKENS: [&str; 7] = ["<|endoftext|>", "</s>", "<|end_of_text|>", "<eos>", "[EOS]", "<|im_end|>", "[SEP]"];
/// Padding tokens of BERT and DeBERTa, of T5 and RoBERTa.
const PADDING_TOKENS: [&str; 2] = ["[PAD]", "<pad>"];

/// Words whose tokens are kept, in so many maps with a lock each, and their longest in bytes: a few MiB in all.
const MOST_WORDS: usize = 1 << 15;
const MAPS: usize = 16;
const LONGEST_WORD: usize = 32;

/// Bytes that a tokenizer may hold while it reads a text, and for each byte of the text.
const MOST_MEMORY: usize = 512 << 20;
const MEMORY_OF_A_BYTE: usize = 512;
const TOO_MUCH_MEMORY: &str = "the tokenizer of the model takes more than 512 MiB of memory for one text";

pub struct Tokens {
    path: PathBuf,
    tokenizer: Tokenizer,
    /// Absent where the tokens of a word may depend on the words around it.
    words: Option<Words>,
}

impl Tokens {
    /// `setting` is what the pipeline calls `max_length`.
    pub fn open(path: &Path, arch: Arch, setting: &str, max_length: u32) -> Result<Self, TrainerError> {
        let mut tokens = Self::whole(path, arch)?;
        let special = tokens.encode("")?.len();
        if (max_length as usize) < special {
            let message = format!("{setting} {max_length} has no room for its {special} special tokens");
            return Err(tokens.fail(message));
        }
        let truncation = TruncationParams { max_length: max_length as usize, ..TruncationParams::default() };
        if let Err(error) = tokens.tokenizer.with_truncation(Some(truncation)) {
            return Err(tokens.fail(error.to_string()));
        }
        Ok(tokens)
    }

    /// Without a limit on the length.
    pub fn whole(path: &Path, arch: Arch) -> Result<Self, TrainerError> {
        let fail = |message: String| TrainerError::Tokenizer { path: path.to_owned(), message };
        let mut tokenizer = super::open(path, arch)?;
        tokenizer.with_padding(None);
        tokenizer.with_truncation(None).map_err(|error| fail(error.to_string()))?;
        let mut tokens = Self { path: path.to_owned(), tokenizer, words: None };
        tokens.words = Words::new(&tokens)?;
        Ok(tokens)
    }

    /// A token beyond the vocabulary would be an index out of bounds.
    pub fn check_vocabulary(self, room: u64) -> Result<Self, TrainerError> {
        let largest = self.tokenizer.get_vocab(true).into_values().max().unwrap_or(0);
        let tokens = u64::from(largest) + 1;
        if tokens <= room {
            return Ok(self);
        }
        Err(self.fail(format!("it has {tokens} tokens, the model's vocab_size is {room}")))
    }

    /// A model that knows padding by another number would read padding as a word, or a word as padding.
    pub fn check_padding(self, expected: i64) -> Result<Self, TrainerError> {
        let found = self.special(&PADDING_TOKENS);
        match found.filter(|(id, _)| i64::from(*id) != expected) {
            None => Ok(self),
            Some((id, name)) => Err(self
                .fail(format!("its padding token {name} has the number {id}, the model's pad_token_id is {expected}"))),
        }
    }

    /// A text without the token that a model looks for would be read at its beginning.
    pub fn check_end(self, token: Option<i64>) -> Result<Self, TrainerError> {
        match token {
            Some(token) if !self.encode("")?.contains(&token) => {
                Err(self.fail(format!("its texts have no token {token}, which is the model's eos_token_id")))
            }
            _ => Ok(self),
        }
    }

    pub fn encode(&self, text: &str) -> Result<Vec<i64>, TrainerError> {
        if let Some(tokens) = self.encode_words(text, true)? {
            return Ok(tokens);
        }
        let encoding = self.encoded(text.len(), || self.tokenizer.encode_fast(text, true))?;
        Ok(numbers(encoding.get_ids()))
    }

    /// Without the special tokens that the tokenizer puts around a text.
    pub fn encode_plain(&self, text: &str) -> Result<Vec<u32>, TrainerError> {
        if let Some(tokens) = self.encode_words(text, false)? {
            return Ok(tokens);
        }
        let encoding = self.encoded(text.len(), || self.tokenizer.encode_fast(text, false))?;
        Ok(encoding.get_ids().to_vec())
    }

    /// The tokens of a text, put together from those of its words; nothing where the tokenizer has to see it whole.
    fn encode_words<T: From<u32>>(&self, text: &str, special: bool) -> Result<Option<Vec<T>>, TrainerError> {
        let Some(words) = self.words.as_ref().filter(|_| is_plain(text)) else { return Ok(None) };
        let [before, behind]: [&[u32]; 2] = if special { [&words.before, &words.behind] } else { [&[], &[]] };
        let most = self.tokenizer.get_truncation().map_or(usize::MAX, |truncation| truncation.max_length);
        let room = most.saturating_sub(behind.len());
        let mut tokens: Vec<T> = before.iter().copied().map(T::from).collect();
        let mut rest = text;
        while !rest.is_empty() && tokens.len() < room {
            // A word has the space before it.
            let end = rest.bytes().skip(1).position(|byte| byte == b' ').map_or(rest.len(), |at| at + 1);
            let word = &rest[..end];
            rest = &rest[end..];
            let known = words.with(word, |known| tokens.extend(known.iter().copied().map(T::from)));
            if known.is_none() {
                if words.holds_added_token(word) {
                    return Ok(None);
                }
                let encoding = self.encoded(word.len(), || self.tokenizer.encode_fast(word, false))?;
                words.keep(word, encoding.get_ids());
                tokens.extend(encoding.get_ids().iter().copied().map(T::from));
            }
        }
        tokens.truncate(room);
        tokens.extend(behind.iter().copied().map(T::from));
        Ok(Some(tokens))
    }

    /// The end token, by the names that tokenizers have for it.
    pub fn end_token(&self) -> Option<u32> {
        self.special(&END_TOKENS).map(|(id, _)| id)
    }

    /// The first of these names that a special token has, with its number.
    fn special(&self, names: &[&'static str]) -> Option<(u32, &'static str)> {
        let special = self.tokenizer.get_added_tokens_decoder();
        let named = |name: &'static str| {
            let found = special.iter().find(|(_, token)| token.special && token.content == name);
            found.map(|(id, _)| (*id, name))
        };
        names.iter().find_map(|name| named(name))
    }

    /// For words of a text that are given one by one: byte-level tokens begin with the space that stands before a word, as
    /// transformers wants it (`add_prefix_space`).
    pub fn for_words(mut self) -> Result<Self, TrainerError> {
        let Ok(mut splits) = serde_json::to_value(self.tokenizer.get_pre_tokenizer()) else { return Ok(self) };
        if !set_prefix_space(&mut splits) {
            return Ok(self);
        }
        let splitter: Result<PreTokenizerWrapper, _> = serde_json::from_value(splits);
        let splitter = splitter.map_err(|error| self.fail(error.to_string()))?;
        self.tokenizer.with_pre_tokenizer(Some(splitter));
        Ok(self)
    }

    /// The tokens of words, and which word each belongs to; special tokens belong to none.
    pub fn encode_split(&self, words: &[String]) -> Result<(Vec<i64>, Vec<Option<usize>>), TrainerError> {
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let bytes = words.iter().map(|word| word.len()).sum();
        let encoding: Encoding = self.encoded(bytes, || self.tokenizer.encode(words, true))?;
        let word = |word: &Option<u32>| word.map(|word| word as usize);
        Ok((numbers(encoding.get_ids()), encoding.get_word_ids().iter().map(word).collect()))
    }

    /// The tokens of two texts, and which of the two each belongs to.
    pub fn encode_pair(&self, first: &str, second: &str) -> Result<(Vec<i64>, Vec<i64>), TrainerError> {
        let bytes = first.len() + second.len();
        let encoding: Encoding = self.encoded(bytes, || self.tokenizer.encode_fast((first, second), true))?;
        Ok((numbers(encoding.get_ids()), numbers(encoding.get_type_ids())))
    }

    /// The tokens of a conversation that a chat template has written, special tokens included, and which of them count.
    pub fn encode_chat(&self, rendered: &Rendered, max_length: usize) -> Result<Encoded, ChatError> {
        let encode = || bounded(rendered.text.len(), || chat::encode(&self.tokenizer, rendered, max_length));
        let encoded = super::guarded(|| Ok(encode()));
        encoded.unwrap_or_else(|message| Err(ChatError::Tokenizer { message }))
    }

    /// Without the special tokens.
    pub fn decode(&self, tokens: &[i64]) -> Result<String, TrainerError> {
        let tokens: Vec<u32> = tokens.iter().filter_map(|token| u32::try_from(*token).ok()).collect();
        self.guarded(|| self.tokenizer.decode(&tokens, true))
    }

    /// With the special tokens.
    pub fn decode_whole(&self, tokens: &[i64]) -> Result<String, TrainerError> {
        let tokens: Vec<u32> = tokens.iter().filter_map(|token| u32::try_from(*token).ok()).collect();
        self.guarded(|| self.tokenizer.decode(&tokens, false))
    }

    /// The tokens of a text of so many bytes.
    fn encoded<T>(&self, bytes: usize, encode: impl FnOnce() -> tokenizers::Result<T>) -> Result<T, TrainerError> {
        self.guarded(|| bounded(bytes, encode))
    }

    /// A panic of the tokenizer is an error of its file.
    fn guarded<T>(&self, work: impl FnOnce() -> tokenizers::Result<T>) -> Result<T, TrainerError> {
        super::guarded(|| work().map_err(|error| error.to_string())).map_err(|message| self.fail(message))
    }

    fn fail(&self, message: String) -> TrainerError {
        TrainerError::Tokenizer { path: self.path.clone(), message }
    }
}

/// Ends the process where the tokens of a text of so many bytes take far more memory than a tokenizer needs: one may replace each letter
/// by a thousand, again and again.
fn bounded<T>(bytes: usize, encode: impl FnOnce() -> T) -> T {
    host::bounded(MOST_MEMORY.saturating_add(bytes.saturating_mul(MEMORY_OF_A_BYTE)), TOO_MUCH_MEMORY, encode)
}

/// Whether there was a byte-level pre-tokenizer that put no space before a text.
fn set_prefix_space(splits: &mut Value) -> bool {
    match splits {
        Value::Object(keys) if keys.get("type").is_some_and(|kind| kind == "ByteLevel") => {
            keys.insert("add_prefix_space".to_owned(), Value::Bool(true)) == Some(Value::Bool(false))
        }
        Value::Object(keys) => keys.values_mut().filter_map(|value| set_prefix_space(value).then_some(())).count() > 0,
        Value::Array(list) => list.iter_mut().filter_map(|value| set_prefix_space(value).then_some(())).count() > 0,
        _ => false,
    }
}

fn numbers(ids: &[u32]) -> Vec<i64> {
    ids.iter().map(|id| i64::from(*id)).collect()
}

/// The tokens of words.
type WordMap = HashMap<Box<str>, Box<[u32]>>;

/// The tokens of words that were seen.
struct Words {
    /// The special tokens before and behind a text.
    before: Vec<u32>,
    behind: Vec<u32>,
    /// Tokens that are found in texts before these are split into words; in lower case.
    added: Vec<String>,
    hasher: RandomState,
    maps: [RwLock<WordMap>; MAPS],
}

impl Words {
    fn new(tokens: &Tokens) -> Result<Option<Self>, TrainerError> {
        let Tokens { tokenizer, .. } = tokens;
        let json = |part: Result<Value, serde_json::Error>| part.unwrap_or_default();
        let splits = json(serde_json::to_value(tokenizer.get_pre_tokenizer()));
        let normalizes = json(serde_json::to_value(tokenizer.get_normalizer()));
        if !splits_at_spaces(&splits) || !normalizes_words_alone(&normalizes) {
            return Ok(None);
        }
        let ids = |special| -> Result<Vec<u32>, TrainerError> {
            Ok(tokens.guarded(|| tokenizer.encode_fast("a", special))?.get_ids().to_vec())
        };
        let (whole, word) = (ids(true)?, ids(false)?);
        let Some(at) = whole.windows(word.len().max(1)).position(|window| window == word) else { return Ok(None) };
        let added = tokenizer.get_added_tokens_decoder().into_values();
        Ok(Some(Self {
            before: whole[..at].to_vec(),
            behind: whole[at + word.len()..].to_vec(),
            added: added.map(|token| token.content.trim().to_lowercase()).filter(|text| !text.is_empty()).collect(),
            hasher: RandomState::new(),
            maps: Default::default(),
        }))
    }

    fn map(&self, word: &str) -> &RwLock<HashMap<Box<str>, Box<[u32]>>> {
        &self.maps[self.hasher.hash_one(word) as usize % MAPS]
    }

    fn with<T>(&self, word: &str, see: impl FnOnce(&[u32]) -> T) -> Option<T> {
        let map = self.map(word).read().unwrap_or_else(PoisonError::into_inner);
        map.get(word).map(|tokens| see(tokens))
    }

    fn keep(&self, word: &str, tokens: &[u32]) {
        let mut map = self.map(word).write().unwrap_or_else(PoisonError::into_inner);
        if word.len() <= LONGEST_WORD && map.len() < MOST_WORDS / MAPS {
            map.insert(word.into(), tokens.into());
        }
    }

    fn holds_added_token(&self, word: &str) -> bool {
        let word = word.to_lowercase();
        self.added.iter().any(|token| word.contains(token.as_str()))
    }
}

/// Whether a text has single spaces between words whose characters no normalizer turns into spaces or joins with others. Other
/// white space may stand inside of a word.
fn is_plain(text: &str) -> bool {
    let mut before = ' ';
    for c in text.chars() {
        match c {
            '!'..='~' | '\u{b0}' | '\u{bc}'..='\u{be}' | '\u{c0}'..='\u{24f}' => {}
            // Dashes, quotes and the ellipsis; a double low line becomes a space.
            '\u{2010}'..='\u{2026}' if c != '\u{2017}' => {}
            ' ' if !before.is_whitespace() => {}
            '\n' | '\t' | '\r' if before != ' ' => {}
            _ => return false,
        }
        before = c;
    }
    !before.is_whitespace()
}

/// Whether a tokenizer splits a text at every space, so that words become tokens one at a time.
fn splits_at_spaces(pre_tokenizer: &Value) -> bool {
    match pre_tokenizer["type"].as_str() {
        Some("Metaspace") => pre_tokenizer["split"] != false && pre_tokenizer["prepend_scheme"] == "always",
        Some("ByteLevel") => pre_tokenizer["use_regex"] != false,
        Some("BertPreTokenizer" | "Whitespace" | "WhitespaceSplit") => true,
        Some("Sequence") => {
            pre_tokenizer["pretokenizers"].as_array().is_some_and(|all| all.iter().all(splits_at_spaces))
        }
        _ => false,
    }
}

/// Whether a word is normalized as it would be in a text.
fn normalizes_words_alone(normalizer: &Value) -> bool {
    match normalizer["type"].as_str() {
        None => normalizer.is_null(),
        Some("Replace") => {
            let pattern = &normalizer["pattern"];
            let is_for_words = |text: &str| !text.contains(char::is_whitespace);
            pattern["Regex"] == " {2,}" || pattern["String"].as_str().is_some_and(is_for_words)
        }
        Some("Sequence") => {
            normalizer["normalizers"].as_array().is_some_and(|all| all.iter().all(normalizes_words_alone))
        }
        Some(name) => {
            ["BertNormalizer", "Lowercase", "NFC", "NFD", "NFKC", "NFKD", "Nmt", "Precompiled", "Strip", "StripAccents"]
                .contains(&name)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_of_words_are_those_of_the_text() {
        let texts = [
            "The quick, brown (fox's) 12-year-old; and it IS \"quoted\" -- twice... or so?",
            "cream, mushroom, honey\nbeans\n\tginger",
            "Crème brûlée – “über” naïve … ½ cup at 180°C",
            "a",
            "antidisestablishmentarianismantidisestablishmentarianism <pad> [SEP] </s> x <extra_id_0>y",
            "the the the\r\nthe _under_score_ #hash @at http://example.com/?q=1&r=2 ~tilde~ `tick` ^ | {}",
        ];
        let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures");
        let mut by_words = 0;
        for (name, arch) in [
            ("t5-gated", Arch::T5),
            ("bert", Arch::Bert),
            ("roberta", Arch::Roberta),
            ("deberta-v3", Arch::DebertaV3),
            ("clip", Arch::Clip),
        ] {
            let path = fixtures.join(name).join("tokenizer.json");
            for length in [4, 9, 512] {
                let tokens = Tokens::open(&path, arch, "max_length", length).unwrap();
                for text in texts.iter().flat_map(|text| [*text, *text]) {
                    for special in [true, false] {
                        let whole = tokens.tokenizer.encode_fast(text, special).unwrap();
                        let Some(got) = tokens.encode_words::<u32>(text, special).unwrap() else { continue };
                        assert_eq!(got, whole.get_ids(), "{name} {length} {special} {text:?}");
                        by_words += 1;
                    }
                }
            }
        }
        assert!(by_words > 100, "{by_words}");
    }

    #[test]
    fn texts_that_the_tokenizer_has_to_see_whole() {
        for text in ["", " a", "a ", "a  b", "a \nb", "a\u{a0}b", "a \u{301}b", "a\u{a8}", "日本", "a\u{2017}"] {
            assert!(!is_plain(text), "{text:?}");
        }
        assert!(is_plain("a b\nc – “é”"));
    }
}

//! From texts to token numbers and back, truncated as Hugging Face does it: the special tokens count.

use std::path::{Path, PathBuf};

use pipe_spec::pipeline::Arch;
use tokenizers::{Encoding, Tokenizer, TruncationParams};

use crate::error::TrainerError;
use crate::tokenizer;

/// Of GPT-2, T5 and the like, Llama 3, Gemma, BERT.
const END_TOKENS: [&str; 7] = ["<|endoftext|>", "</s>", "<|end_of_text|>", "<eos>", "[EOS]", "<|im_end|>", "[SEP]"];
/// Of BERT and DeBERTa, of T5 and RoBERTa.
const PADDING_TOKENS: [&str; 2] = ["[PAD]", "<pad>"];

pub struct Tokens {
    path: PathBuf,
    tokenizer: Tokenizer,
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
        match tokens.tokenizer.with_truncation(Some(truncation)) {
            Ok(_) => Ok(tokens),
            Err(error) => Err(tokens.fail(error.to_string())),
        }
    }

    /// Without a limit on the length.
    pub fn whole(path: &Path, arch: Arch) -> Result<Self, TrainerError> {
        let fail = |message: String| TrainerError::Tokenizer { path: path.to_owned(), message };
        let mut tokenizer = tokenizer::open(path, arch)?;
        tokenizer.with_padding(None);
        tokenizer.with_truncation(None).map_err(|error| fail(error.to_string()))?;
        Ok(Self { path: path.to_owned(), tokenizer })
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
        let encoding = self.guarded(|| self.tokenizer.encode_fast(text, true))?;
        Ok(numbers(encoding.get_ids()))
    }

    /// Without the special tokens that the tokenizer puts around a text.
    pub fn encode_plain(&self, text: &str) -> Result<Vec<u32>, TrainerError> {
        let encoding = self.guarded(|| self.tokenizer.encode_fast(text, false))?;
        Ok(encoding.get_ids().to_vec())
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

    /// The tokens of two texts, and which of the two each belongs to.
    pub fn encode_pair(&self, first: &str, second: &str) -> Result<(Vec<i64>, Vec<i64>), TrainerError> {
        let encoding: Encoding = self.guarded(|| self.tokenizer.encode_fast((first, second), true))?;
        Ok((numbers(encoding.get_ids()), numbers(encoding.get_type_ids())))
    }

    /// Without the special tokens.
    pub fn decode(&self, tokens: &[i64]) -> Result<String, TrainerError> {
        let tokens: Vec<u32> = tokens.iter().filter_map(|token| u32::try_from(*token).ok()).collect();
        self.guarded(|| self.tokenizer.decode(&tokens, true))
    }

    /// A panic of the tokenizer is an error of its file.
    fn guarded<T>(&self, work: impl FnOnce() -> tokenizers::Result<T>) -> Result<T, TrainerError> {
        tokenizer::guarded(|| work().map_err(|error| error.to_string())).map_err(|message| self.fail(message))
    }

    fn fail(&self, message: String) -> TrainerError {
        TrainerError::Tokenizer { path: self.path.clone(), message }
    }
}

fn numbers(ids: &[u32]) -> Vec<i64> {
    ids.iter().map(|id| i64::from(*id)).collect()
}

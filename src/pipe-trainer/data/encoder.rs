//! From texts to token numbers, truncated as Hugging Face does it: the closing token counts.

use std::path::Path;

use pipe_spec::pipeline::Data;
use tokenizers::{Tokenizer, TruncationParams};

use super::jsonl::Row;
use crate::error::TrainerError;

pub struct Encoder {
    source: Tokenizer,
    target: Tokenizer,
}

pub struct Sample {
    pub source: Vec<i64>,
    pub target: Vec<i64>,
}

impl Encoder {
    pub fn open(path: &Path, data: &Data) -> Result<Self, TrainerError> {
        let fail = |message: String| TrainerError::Tokenizer { path: path.to_owned(), message };
        let tokenizer = Tokenizer::from_file(path).map_err(|error| fail(error.to_string()))?;
        let special = tokenizer.encode("", true).map_err(|error| fail(error.to_string()))?.len();
        let truncated = |length: u32, name: &str| {
            if (length as usize) < special {
                return Err(fail(format!("{name} {length} has no room for its {special} special tokens")));
            }
            let mut tokenizer = tokenizer.clone();
            tokenizer.with_padding(None);
            let truncation = TruncationParams { max_length: length as usize, ..TruncationParams::default() };
            tokenizer.with_truncation(Some(truncation)).map_err(|error| fail(error.to_string()))?;
            Ok(tokenizer)
        };
        Ok(Self {
            source: truncated(data.max_source.get(), "max_source")?,
            target: truncated(data.max_target.get(), "max_target")?,
        })
    }

    /// The largest token number that can come out, plus one.
    pub fn vocabulary(&self) -> u64 {
        let largest = self.source.get_vocab(true).into_values().max().unwrap_or(0);
        u64::from(largest) + 1
    }

    pub fn encode(&self, row: Row) -> Result<Sample, tokenizers::Error> {
        Ok(Sample { source: numbers(&self.source, row.source)?, target: numbers(&self.target, row.target)? })
    }

    /// The text of tokens that a model has generated, without the special ones.
    pub fn decode(&self, tokens: &[i64]) -> Result<String, tokenizers::Error> {
        let tokens: Vec<u32> = tokens.iter().filter_map(|token| u32::try_from(*token).ok()).collect();
        self.target.decode(&tokens, true)
    }
}

fn numbers(tokenizer: &Tokenizer, text: String) -> Result<Vec<i64>, tokenizers::Error> {
    Ok(tokenizer.encode_fast(text, true)?.get_ids().iter().map(|id| i64::from(*id)).collect())
}

//! The tokenizer of a model, from whichever of its files is there: `tokenizer.json` as it is; the vocabularies of sentencepiece,
//! WordPiece and byte-level BPE turned into the same, with the tokens that `AutoTokenizer` of transformers 5 gives.

mod bert;
mod clip;
mod parts;
mod pieces;
mod roberta;
mod sentencepiece;
mod settings;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};

use pipe_spec::pipeline::Arch;
use tokenizers::Tokenizer;

use crate::error::TrainerError;
use settings::Settings;

/// What is wrong with a tokenizer's files, in words.
type Built = Result<Tokenizer, String>;

/// Whose tokenizer a vocabulary is for.
enum Family {
    T5,
    XlmRoberta,
    DebertaV3,
    Bert,
    Roberta,
    Clip,
}

/// Reads the tokenizer that `path` names, with the files that belong to it beside it. `arch` decides where the file name says too
/// little.
pub fn open(path: &Path, arch: Arch) -> Result<Tokenizer, TrainerError> {
    let fail = |message: String| TrainerError::Tokenizer { path: path.to_owned(), message };
    let Some(family) = family(path, arch).map_err(fail)? else {
        return Tokenizer::from_file(path).map_err(|error| fail(error.to_string()));
    };
    let build = || {
        let settings = Settings::read(path)?;
        match family {
            Family::T5 => sentencepiece::t5(path, &settings),
            Family::XlmRoberta => sentencepiece::xlm_roberta(path, &settings),
            Family::DebertaV3 => sentencepiece::deberta_v3(path, &settings),
            Family::Bert => bert::build(path, &settings),
            Family::Roberta => roberta::build(path, &settings),
            Family::Clip => clip::build(path, &settings),
        }
    };
    build().map_err(fail)
}

/// `tokenizer.json` of the tokenizer that `path` names: the file itself where it is one.
pub fn json(path: &Path, arch: Arch) -> Result<Vec<u8>, TrainerError> {
    let fail = |message: String| TrainerError::Tokenizer { path: path.to_owned(), message };
    if let Ok(None) = family(path, arch) {
        return std::fs::read(path).map_err(|error| fail(error.to_string()));
    }
    let text = open(path, arch)?.to_string(true).map_err(|error| fail(error.to_string()))?;
    Ok(text.into_bytes())
}

/// Nothing where the file is a tokenizer.json, whatever its name.
fn family(path: &Path, arch: Arch) -> Result<Option<Family>, String> {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let ending = path.extension().and_then(|ending| ending.to_str()).unwrap_or_default();
    Ok(Some(match (name, ending, arch) {
        ("spiece.model", _, _) | (_, "model", Arch::T5) => Family::T5,
        ("spm.model", _, _) | (_, "model", Arch::DebertaV3) => Family::DebertaV3,
        ("sentencepiece.bpe.model", _, _) | (_, "model", Arch::XlmRoberta) => Family::XlmRoberta,
        (_, "model", _) => {
            return Err("whose sentencepiece model it is, neither its name nor the architecture says".into());
        }
        (_, "txt", _) => Family::Bert,
        ("vocab.json", _, Arch::Clip) => Family::Clip,
        ("vocab.json", _, _) => Family::Roberta,
        _ => return Ok(None),
    }))
}

/// A file that belongs to the one at `path`.
fn beside(path: &Path, name: &str) -> PathBuf {
    path.with_file_name(name)
}

/// The number of a token that the tokenizer was given.
fn number(tokenizer: &Tokenizer, token: &str) -> Result<u32, String> {
    tokenizer.token_to_id(token).ok_or_else(|| format!("it has no token {token:?}"))
}

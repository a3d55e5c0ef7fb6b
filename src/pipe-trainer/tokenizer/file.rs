//! Reads a tokenizer from the file that holds it, whatever its format.

use std::path::Path;

use pipe_spec::pipeline::Arch;
use tokenizers::Tokenizer;

use super::settings::Settings;
use super::{bert, clip, roberta, sentencepiece};
use crate::boundary;
use crate::error::TrainerError;
use crate::host::activity;
use crate::storage::bounded_file::{self, LARGEST_TOKENIZER};

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
    let family = family(path, arch).map_err(fail)?;
    let build = || {
        let Some(family) = family else {
            let json = bounded_file::read(path, LARGEST_TOKENIZER).map_err(|error| error.to_string())?;
            return Tokenizer::from_bytes(json).map_err(|error| error.to_string());
        };
        bounded_file::check_size(path, LARGEST_TOKENIZER).map_err(|error| error.to_string())?;
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
    let tokenizer = activity::during(format_args!("the tokenizer {}", path.display()), || guarded(build));
    boundary::check_host_memory()?;
    tokenizer.map_err(fail)
}

/// Does `work` with a tokenizer. Damaged files can make its crates panic.
pub fn guarded<T>(work: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    boundary::guard(|| Ok(work())).unwrap_or_else(|panic| Err(format!("it is damaged: {panic}")))
}

/// `tokenizer.json` of the tokenizer that `path` names: the file itself where it is one.
pub fn json(path: &Path, arch: Arch) -> Result<Vec<u8>, TrainerError> {
    let fail = |message: String| TrainerError::Tokenizer { path: path.to_owned(), message };
    if let Ok(None) = family(path, arch) {
        return bounded_file::read(path, LARGEST_TOKENIZER).map_err(|error| fail(error.to_string()));
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
            return Err("neither its name nor the architecture says which sentencepiece model it is".into());
        }
        (_, "txt", _) => Family::Bert,
        ("vocab.json", _, Arch::Clip) => Family::Clip,
        ("vocab.json", _, _) => Family::Roberta,
        _ => return Ok(None),
    }))
}

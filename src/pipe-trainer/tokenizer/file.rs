//! Reads a tokenizer from the file that holds it, whatever its format.

use std::path::Path;

use pipe_model::{VocabularyFormat, architecture};
use pipe_spec::pipeline::Arch;
use tokenizers::Tokenizer;

use super::settings::Settings;
use super::{sentencepiece, vocabulary};
use crate::boundary;
use crate::error::TrainerError;
use crate::host::activity;
use crate::storage::bounded_file::{self, LARGEST_TOKENIZER};

/// Reads the tokenizer that `path` names, with the files that belong to it beside it. `arch` decides where the file name says too
/// little.
pub fn open(path: &Path, arch: Arch) -> Result<Tokenizer, TrainerError> {
    let fail = |message: String| TrainerError::Tokenizer { path: path.to_owned(), message };
    let format = format(path, arch).map_err(fail)?;
    let build = || {
        let Some(format) = format else {
            let json = bounded_file::read(path, LARGEST_TOKENIZER).map_err(|error| error.to_string())?;
            return Tokenizer::from_bytes(json).map_err(|error| error.to_string());
        };
        bounded_file::check_size(path, LARGEST_TOKENIZER).map_err(|error| error.to_string())?;
        let settings = Settings::read(path)?;
        match format {
            VocabularyFormat::T5 => sentencepiece::t5(path, &settings),
            VocabularyFormat::XlmRoberta => sentencepiece::xlm_roberta(path, &settings),
            VocabularyFormat::DebertaV3 => sentencepiece::deberta_v3(path, &settings),
            VocabularyFormat::Bert => vocabulary::bert(path, &settings),
            VocabularyFormat::Roberta => vocabulary::roberta(path, &settings),
            VocabularyFormat::Clip => vocabulary::clip(path, &settings),
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
    if let Ok(None) = format(path, arch) {
        return bounded_file::read(path, LARGEST_TOKENIZER).map_err(|error| fail(error.to_string()));
    }
    let text = open(path, arch)?.to_string(true).map_err(|error| fail(error.to_string()))?;
    Ok(text.into_bytes())
}

/// The format of a vocabulary. The architecture decides where the file name says too little. Absent where the file is a
/// tokenizer.json, whatever its name.
fn format(path: &Path, arch: Arch) -> Result<Option<VocabularyFormat>, String> {
    use VocabularyFormat::{Bert, Clip, DebertaV3, Roberta, T5, XlmRoberta};
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let ending = path.extension().and_then(|ending| ending.to_str()).unwrap_or_default();
    let own = architecture(arch).tokenization.and_then(|tokenization| tokenization.vocabulary);
    Ok(Some(match (name, ending, own) {
        ("spiece.model", _, _) | (_, "model", Some(T5)) => T5,
        ("spm.model", _, _) | (_, "model", Some(DebertaV3)) => DebertaV3,
        ("sentencepiece.bpe.model", _, _) | (_, "model", Some(XlmRoberta)) => XlmRoberta,
        (_, "model", _) => {
            return Err("neither its name nor the architecture says which sentencepiece model it is".into());
        }
        (_, "txt", _) => Bert,
        ("vocab.json", _, Some(Clip)) => Clip,
        ("vocab.json", _, _) => Roberta,
        _ => return Ok(None),
    }))
}

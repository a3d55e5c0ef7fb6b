//! The tokenizer of a model, from whichever of its files is there: `tokenizer.json` as it is; the vocabularies of
//! sentencepiece, WordPiece and byte-level BPE turned into the same, with the tokens that `AutoTokenizer` of
//! transformers 5 gives.

mod sentencepiece;
mod settings;
mod tokens;
mod training;

use std::path::Path;

use pipe_model::{VocabularyFormat, architecture};
use pipe_spec::pipeline::Arch;
use settings::Settings;
use tokenizers::Tokenizer;

use crate::error::TrainerError;
use crate::storage::{self, LARGEST_TOKENIZER};
use crate::{boundary, host};

pub use settings::SpecialTokens;
pub use tokens::Tokens;
pub use training::train;

/// Reads the tokenizer that `path` names, with the files that belong to it beside it. `arch` decides where the file name says too
/// little.
pub fn open(path: &Path, arch: Arch) -> Result<Tokenizer, TrainerError> {
    let fail = |message: String| TrainerError::Tokenizer { path: path.to_owned(), message };
    let format = format(path, arch).map_err(fail)?;
    let build = || {
        let Some(format) = format else {
            let json = storage::read(path, LARGEST_TOKENIZER).map_err(|error| error.to_string())?;
            return Tokenizer::from_bytes(json).map_err(|error| error.to_string());
        };
        storage::check_size(path, LARGEST_TOKENIZER).map_err(|error| error.to_string())?;
        let settings = Settings::read(path)?;
        match format {
            VocabularyFormat::T5 => sentencepiece::t5(path, &settings),
            VocabularyFormat::XlmRoberta => sentencepiece::xlm_roberta(path, &settings),
            VocabularyFormat::DebertaV3 => sentencepiece::deberta_v3(path, &settings),
            VocabularyFormat::Bert => sentencepiece::bert(path, &settings),
            VocabularyFormat::Roberta => sentencepiece::roberta(path, &settings),
            VocabularyFormat::Clip => sentencepiece::clip(path, &settings),
        }
    };
    let tokenizer = host::during(format_args!("the tokenizer {}", path.display()), || guarded(build));
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
        return storage::read(path, LARGEST_TOKENIZER).map_err(|error| fail(error.to_string()));
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

#[cfg(test)]
mod tests {
    //! The tokens of transformers (`tests/fixtures/make_tokenizers.py`), and files that are broken.

    use std::collections::BTreeMap;
    use std::fs::{self, File};
    use std::io::Read;
    use std::path::{Path, PathBuf};

    use flate2::read::GzDecoder;
    use pipe_spec::TrainerExit;
    use pipe_spec::model_folder::{self, TOKENIZER_JSON};
    use pipe_spec::pipeline::Arch;
    use rayon::prelude::*;
    use serde::Deserialize;
    use tokenizers::Tokenizer;

    use super::Tokens;
    use super::sentencepiece::Pieces;

    fn fixtures() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/tokenizers")
    }

    fn unpacked(path: &Path) -> Vec<u8> {
        let mut bytes = Vec::new();
        GzDecoder::new(File::open(path).unwrap()).read_to_end(&mut bytes).unwrap();
        bytes
    }

    /// A folder of its own, gone with the test.
    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Self {
            let folder = std::env::temp_dir().join(format!("pipe-tokenizer-{name}-{}", std::process::id()));
            fs::create_dir_all(&folder).unwrap();
            Self(folder)
        }

        /// The files of a fixture; what `NAME-MORE` does not have is that of `NAME`.
        fn of(name: &str) -> Self {
            let folder = Self::new(name);
            let base = name.rsplit_once('-').map(|(base, _)| fixtures().join(base)).filter(|base| base.is_dir());
            for from in base.into_iter().chain([fixtures().join(name)]) {
                for entry in fs::read_dir(from).unwrap() {
                    let path = entry.unwrap().path();
                    fs::write(folder.0.join(path.file_stem().unwrap()), unpacked(&path)).unwrap();
                }
            }
            folder
        }

        fn arch(&self) -> Arch {
            let config: serde_json::Value =
                serde_json::from_slice(&fs::read(self.0.join("config.json")).unwrap()).unwrap();
            match config["model_type"].as_str().unwrap() {
                "deberta-v2" => Arch::DebertaV3,
                other => serde_json::from_value(other.into()).unwrap(),
            }
        }

        fn file(&self) -> PathBuf {
            self.0.join(model_folder::find_tokenizer(&self.0, self.arch()).unwrap()[0])
        }

        fn message(&self, file: &str, arch: Arch) -> String {
            super::open(&self.0.join(file), arch).err().unwrap().to_string()
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[derive(Deserialize)]
    struct Expected {
        tokenizers: BTreeMap<String, u32>,
        lines: Vec<u32>,
    }

    /// FNV-1a of the numbers.
    fn hashed(numbers: impl IntoIterator<Item = u32>) -> u32 {
        let bytes = numbers.into_iter().flat_map(u32::to_le_bytes);
        bytes.fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
    }

    /// A hash of the tokens of each line, and of each pair of the first and the last of the first 200, with their types.
    fn rows(tokenizer: &Tokenizer, lines: &[String]) -> Vec<u32> {
        let single =
            lines.iter().map(|line| hashed(tokenizer.encode(line.as_str(), true).unwrap().get_ids().iter().copied()));
        let first = &lines[..200];
        let pair = first.iter().zip(first.iter().rev()).map(|(one, other)| {
            let encoding = tokenizer.encode((one.as_str(), other.as_str()), true).unwrap();
            hashed(encoding.get_ids().iter().chain(encoding.get_type_ids()).copied())
        });
        single.chain(pair).collect()
    }

    #[test]
    fn tokens_are_those_of_transformers() {
        let lines: Vec<String> = serde_json::from_slice(&unpacked(&fixtures().join("lines.json.gz"))).unwrap();
        let expected: Expected = serde_json::from_slice(&unpacked(&fixtures().join("expect.json.gz"))).unwrap();
        assert!(lines.len() >= 5000 && expected.tokenizers.len() == 15);
        let found: Vec<(&String, Vec<u32>)> = expected
            .tokenizers
            .par_iter()
            .map(|(name, _)| {
                let folder = Folder::of(name);
                let (file, arch) = (folder.file(), folder.arch());
                assert_ne!(file.file_name().unwrap(), TOKENIZER_JSON);
                let tokenizer = super::open(&file, arch).unwrap();
                // The same again from the tokenizer.json that an export writes.
                let written = Tokenizer::from_bytes(super::json(&file, arch).unwrap()).unwrap();
                let some = &lines[..500];
                assert_eq!(rows(&tokenizer, some), rows(&written, some), "{name}");
                (name, rows(&tokenizer, &lines))
            })
            .collect();
        let wrong: Vec<&String> = found
            .iter()
            .filter(|(name, rows)| hashed(rows.iter().copied()) != expected.tokenizers[*name])
            .map(|(name, _)| *name)
            .collect();
        let differs = |index: &usize| hashed(found.iter().map(|(_, rows)| rows[*index])) != expected.lines[*index];
        let differing: Vec<usize> = (0..expected.lines.len()).filter(differs).collect();
        let shown: Vec<&String> = differing.iter().take(10).map(|line| lines.get(*line).unwrap_or(&lines[0])).collect();
        assert!(wrong.is_empty() && differing.is_empty(), "{wrong:?}: {} lines, such as {shown:?}", differing.len());
    }

    #[test]
    fn what_is_missing_or_wrong_is_named() {
        let folder = Folder::new("wrong");
        let write = |name: &str, content: &[u8]| fs::write(folder.0.join(name), content).unwrap();
        assert!(folder.message("spiece.model", Arch::T5).contains("spiece.model: No such file"));
        write("spiece.model", b"not a model");
        assert!(folder.message("spiece.model", Arch::T5).contains("it is no model of sentencepiece"));
        write("other.model", b"");
        assert!(folder.message("other.model", Arch::Bert).contains("neither its name nor the architecture says"));
        write("vocab.json", b"{\"a\": 0}");
        assert!(folder.message("vocab.json", Arch::Roberta).contains("merges.txt is not beside it"));
        write("vocab.txt", b"[UNK]\n[CLS]\n[SEP]\n[PAD]\na\n");
        assert!(super::open(&folder.0.join("vocab.txt"), Arch::Bert).is_ok());
        write("tokenizer_config.json", b"[]");
        assert!(folder.message("vocab.txt", Arch::Bert).contains("tokenizer_config.json: "));
    }

    #[test]
    fn a_broken_model_of_sentencepiece_is_an_error() {
        let folder = Folder::of("deberta-v3");
        let whole = fs::read(folder.0.join("spm.model")).unwrap();
        let read = Pieces::read(&whole).unwrap();
        assert_eq!((read.pieces.len(), read.unknown, read.charsmap), (900, 3, None));
        // A message may end between two fields; what is read is then less, and never something else.
        for length in 0..whole.len() {
            if let Ok(part) = Pieces::read(&whole[..length]) {
                assert!(read.pieces.starts_with(&part.pieces), "{length}");
            }
        }
        // A BPE model, which has the same pieces with another meaning.
        let bpe = [&whole[..], &[0x12, 2, 3 << 3, 2]].concat();
        assert!(Pieces::read(&bpe).unwrap_err().contains("model_type is not unigram"));
    }

    #[test]
    fn a_damaged_charsmap_is_an_error_of_its_file() {
        let folder = Folder::of("t5");
        let path = folder.0.join("spiece.model");
        // A trie of one node that points far behind its end, and no replacements: a second normalizer_spec replaces the first.
        let charsmap = [4, 0, 0, 0, 0xff, 0xff, 0xff, 0x7f];
        let field = [&[0x1a, 2 + charsmap.len() as u8, 0x12, charsmap.len() as u8][..], &charsmap].concat();
        fs::write(&path, [fs::read(&path).unwrap(), field].concat()).unwrap();
        let encoded = Tokens::whole(&path, Arch::T5).and_then(|tokens| tokens.encode("chop the salt"));
        let error = encoded.unwrap_err();
        assert_eq!(error.exit_code(), TrainerExit::BadInput);
        let text = error.to_string();
        assert!(text.contains("spiece.model: it is damaged: "), "{text}");
    }
}

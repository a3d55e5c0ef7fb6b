//! The files of a model in Hugging Face layout that a training reads. The runner fetches and mounts them, the trainer
//! reads them.

use crate::pipeline::Arch;

/// The model's settings.
pub const CONFIG: &str = "config.json";

/// One format of weights: a single file, or an index that names several.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WeightFiles {
    pub single: &'static str,
    pub index: &'static str,
}

pub const SAFETENSORS: WeightFiles = WeightFiles { single: "model.safetensors", index: "model.safetensors.index.json" };
pub const PICKLE: WeightFiles = WeightFiles { single: "pytorch_model.bin", index: "pytorch_model.bin.index.json" };

/// Formats of weights in order of preference.
pub const WEIGHTS: [WeightFiles; 2] = [SAFETENSORS, PICKLE];

pub const TOKENIZER_JSON: &str = "tokenizer.json";

/// Sets of files that each define the tokenizer of an architecture, in order of preference. The first file of a set names it.
pub fn tokenizers(arch: Arch) -> &'static [&'static [&'static str]] {
    match arch {
        Arch::T5 => &[&[TOKENIZER_JSON], &["spiece.model"]],
        Arch::Bert => &[&[TOKENIZER_JSON], &["vocab.txt"]],
        Arch::Roberta | Arch::Clip => &[&[TOKENIZER_JSON], &["vocab.json", "merges.txt"]],
        Arch::XlmRoberta => &[&[TOKENIZER_JSON], &["sentencepiece.bpe.model"]],
        Arch::DebertaV3 => &[&[TOKENIZER_JSON], &["spm.model"]],
        Arch::HybridCnnLstm | Arch::MuSota => &[&[TOKENIZER_JSON]],
    }
}

/// Files that are read where a model has them.
pub const OPTIONAL: [&str; 4] =
    ["tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "preprocessor_config.json"];

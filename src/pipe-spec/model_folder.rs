//! The files of a model in Hugging Face layout that a training reads. The runner fetches and mounts them, the trainer
//! reads them.

use std::path::Path;

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
pub fn tokenizers(arch: Arch) -> Vec<&'static [&'static str]> {
    const JSON: &[&str] = &[TOKENIZER_JSON];
    [JSON, arch.vocabulary_files()].into_iter().filter(|set| !set.is_empty()).collect()
}

/// The first of those sets all of whose files are there.
pub fn tokenizer_set(arch: Arch, has: impl Fn(&str) -> bool) -> Option<&'static [&'static str]> {
    tokenizers(arch).into_iter().find(|set| set.iter().all(|name| has(name)))
}

/// The same for a folder.
pub fn find_tokenizer(folder: &Path, arch: Arch) -> Option<&'static [&'static str]> {
    tokenizer_set(arch, |name| folder.join(name).is_file())
}

/// Files that belong to a tokenizer wherever they lie beside it.
pub const TOKENIZER_SETTINGS: [&str; 3] = ["tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"];

/// How conversations become texts.
pub const CHAT_TEMPLATE: &str = "chat_template.jinja";

/// An adapter as PEFT writes it: its settings, and its weights.
pub const ADAPTER_CONFIG: &str = "adapter_config.json";
pub const ADAPTER_WEIGHTS: &str = "adapter_model.safetensors";

/// How a model that writes texts does so.
pub const GENERATION_CONFIG: &str = "generation_config.json";

/// The model card, for people.
pub const MODEL_CARD: &str = "README.md";

/// How CLIP's pictures are prepared.
pub const PREPROCESSOR: &str = "preprocessor_config.json";

/// Files that are read where a model has them.
pub const OPTIONAL: [&str; 5] =
    ["tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", CHAT_TEMPLATE, PREPROCESSOR];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tokenizer_is_a_whole_set() {
        let found = |names: &[&str]| tokenizer_set(Arch::Roberta, |name| names.contains(&name)).map(<[_]>::to_vec);
        assert_eq!(found(&["vocab.json"]), None);
        assert_eq!(found(&["vocab.json", "merges.txt"]), Some(vec!["vocab.json", "merges.txt"]));
        assert_eq!(found(&["vocab.json", "merges.txt", "tokenizer.json"]), Some(vec!["tokenizer.json"]));
    }
}

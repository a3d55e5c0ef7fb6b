//! Which files of a model's folder a training reads, by the contract of `pipe_spec::model_folder`.

use std::collections::BTreeSet;
use std::path::Path;

use pipe_spec::model_folder::{CONFIG, PREPROCESSOR, WEIGHTS, WeightFiles};
use serde_json::Value;

/// The weights that a folder or repository has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Weights {
    Single(&'static str),
    /// In several files, named by this index.
    Index(&'static str),
}

impl Weights {
    /// The first format of which there is anything.
    pub fn find(has: impl Fn(&str) -> bool) -> Option<Self> {
        WEIGHTS.iter().find_map(|WeightFiles { single, index }| {
            let alone = has(single).then_some(Self::Single(single));
            alone.or_else(|| has(index).then_some(Self::Index(index)))
        })
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::Single(name) | Self::Index(name) => name,
        }
    }

    /// What there could have been, for messages.
    pub fn expected() -> String {
        let names = WEIGHTS.iter().flat_map(|format| [format.single, format.index]);
        names.collect::<Vec<_>>().join(", ")
    }

    /// The files that hold them, the index included. None where the index cannot be read.
    pub fn files(self, folder: &Path) -> Option<Vec<String>> {
        match self {
            Self::Single(name) => Some(vec![name.to_owned()]),
            Self::Index(name) => {
                let parts = shards(&std::fs::read(folder.join(name)).ok()?)?;
                Some([name.to_owned()].into_iter().chain(parts).collect())
            }
        }
    }
}

/// The files of a model's folder that a training reads, its tokenizer left out: those that are there.
pub fn list(folder: &Path) -> Vec<String> {
    let has = |name: &str| folder.join(name).is_file();
    let weights = Weights::find(has).and_then(|weights| weights.files(folder)).unwrap_or_default();
    let named = [CONFIG, PREPROCESSOR].into_iter().map(str::to_owned);
    named.chain(weights).filter(|name| has(name)).collect()
}

/// The files that an index of weights names, in the order of their names.
fn shards(index: &[u8]) -> Option<BTreeSet<String>> {
    let index: Value = serde_json::from_slice(index).ok()?;
    let map = index.get("weight_map")?.as_object()?;
    map.values().map(|name| name.as_str().map(str::to_owned)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn safetensors_come_before_pickles_and_one_file_before_several() {
        let cases: [(&[&str], Option<Weights>); 5] = [
            (&["pytorch_model.bin", "model.safetensors"], Some(Weights::Single("model.safetensors"))),
            (&["model.safetensors.index.json", "model.safetensors"], Some(Weights::Single("model.safetensors"))),
            (
                &["pytorch_model.bin", "model.safetensors.index.json"],
                Some(Weights::Index("model.safetensors.index.json")),
            ),
            (&["pytorch_model.bin.index.json"], Some(Weights::Index("pytorch_model.bin.index.json"))),
            (&["tf_model.h5", "config.json"], None),
        ];
        for (names, want) in cases {
            assert_eq!(Weights::find(|name| names.contains(&name)), want, "{names:?}");
        }
    }

    #[test]
    fn an_index_names_each_file_once() {
        let index = br#"{"metadata": {}, "weight_map": {"b": "two", "a": "one", "c": "two"}}"#;
        assert_eq!(shards(index).unwrap().into_iter().collect::<Vec<_>>(), ["one", "two"]);
        for broken in [&b"{"[..], b"{}", br#"{"weight_map": {"a": 1}}"#] {
            assert_eq!(shards(broken), None);
        }
    }
}

//! A bag of words: the mean of token embeddings and a linear head. It has no estimate of memory.

use serde_json::{Map, Value, json};

use crate::adaptable::Adaptable;
use crate::architecture::{
    Algorithm, Architecture, ModelConfig, Starter, StarterSizes, StarterTraining, Template, Tokenization,
    TrainedTokenizer, joined, number_of_labels,
};
use crate::config_keys::{ConfigError, ConfigKeys, extended, fail};
use crate::parameter::{Init, Parameter};
use crate::task_data::{Labels, TaskData};

#[derive(Clone, Debug, PartialEq)]
pub struct BagOfWordsConfig {
    pub vocab_size: i64,
    pub hidden_size: i64,
    pub pad_token_id: i64,
    /// The dropout of the mean, before the head.
    pub dropout: f64,
    pub labels: Labels,
    /// Everything that was given, kept for the export.
    given: Map<String, Value>,
}

impl BagOfWordsConfig {
    pub fn read(given: &Map<String, Value>) -> Result<Self, ConfigError> {
        let keys = ConfigKeys(given);
        let config = Self {
            vocab_size: keys.required_size("vocab_size")?,
            hidden_size: keys.size("hidden_size")?.unwrap_or(128),
            pad_token_id: keys.whole("pad_token_id")?.unwrap_or(0),
            dropout: keys.dropout("dropout")?.unwrap_or(0.1),
            labels: Labels::read(given)?.unwrap_or_default(),
            given: given.clone(),
        };
        if config.pad_token_id >= config.vocab_size {
            let message = format!("found {}; allowed: below vocab_size, {}", config.pad_token_id, config.vocab_size);
            return Err(fail("pad_token_id", message));
        }
        Ok(config)
    }

    /// config.json: what was given, with every default filled in.
    pub fn export(&self) -> Map<String, Value> {
        let filled = json!({
            "model_type": "bag_of_words",
            "vocab_size": self.vocab_size,
            "hidden_size": self.hidden_size,
            "pad_token_id": self.pad_token_id,
            "dropout": self.dropout,
        });
        let mut config = extended(&self.given, filled);
        self.labels.export(&mut config);
        config
    }
}

pub const ARCHITECTURE: Architecture = Architecture {
    read: |config| Ok(Box::new(BagOfWordsConfig::read(config)?)),
    starter: Starter {
        fine_tuning: StarterTraining { lr: 1.0e-3, epochs: 3, steps: 60 },
        scratch: StarterTraining { lr: 1.0e-2, epochs: 5, steps: 300 },
        base_lr: 1.0e-2,
        effective_batch: 32,
        schedule: "linear",
        hub: None,
        vocabulary: 30_522,
        config: |StarterSizes { vocabulary, classes, .. }| {
            let sizes = json!({ "vocab_size": vocabulary, "hidden_size": 128 });
            joined([sizes, number_of_labels(*classes)])
        },
    },
    tokenization: Some(Tokenization::json(TrainedTokenizer {
        algorithm: Algorithm::WordPiece,
        special: &["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"],
        template: Template::Typed { start: "[CLS]", end: "[SEP]" },
    })),
    in_transformers: false,
    generation_keys: &[],
    adapts: Adaptable::NONE,
};

impl ModelConfig for BagOfWordsConfig {
    fn parameters(&self) -> Vec<Parameter> {
        parameters(self)
    }

    /// A text may have any length: there are no positions.
    fn task_data(&self, labels: Option<Labels>) -> TaskData {
        TaskData::Classification {
            vocab_size: self.vocab_size as u64,
            pad_token_id: self.pad_token_id,
            max_length: u32::MAX,
            token_types: false,
            labels,
        }
    }

    fn head(&self) -> Option<&'static str> {
        Some("classifier.weight")
    }

    fn drops(&self) -> bool {
        self.dropout > 0.0
    }
}

pub fn parameters(config: &BagOfWordsConfig) -> Vec<Parameter> {
    let (hidden, labels) = (config.hidden_size, config.labels.count());
    let std = (hidden as f64).powf(-0.5);
    vec![
        Parameter::new("embedding.weight", &[config.vocab_size, hidden], Init::Normal { std }),
        Parameter {
            may_be_missing: true,
            ..Parameter::new("classifier.weight", &[labels, hidden], Init::Normal { std })
        },
        Parameter { may_be_missing: true, ..Parameter::new("classifier.bias", &[labels], Init::Constant(0.0)) },
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(config: Value) -> Result<BagOfWordsConfig, ConfigError> {
        BagOfWordsConfig::read(config.as_object().unwrap())
    }

    #[test]
    fn a_wrong_key_is_named() {
        let cases = [
            (json!({}), "vocab_size: missing"),
            (json!({"vocab_size": 9, "hidden_size": 0}), "hidden_size: found 0"),
            (json!({"vocab_size": 9, "pad_token_id": 9}), "pad_token_id: found 9; allowed: below vocab_size, 9"),
            (json!({"vocab_size": 9, "dropout": 1.0}), "dropout: found 1; allowed: at least 0 and below 1"),
        ];
        for (given, want) in cases {
            let error = read(given).unwrap_err().to_string();
            assert!(error.contains(want), "{error}");
        }
    }

    #[test]
    fn the_export_reads_back_and_keeps_unknown_keys() {
        let config = read(json!({"vocab_size": 9, "num_labels": 3, "author": "somebody"})).unwrap();
        let exported = config.export();
        assert_eq!((&exported["author"], &exported["hidden_size"]), (&json!("somebody"), &json!(128)));
        assert_eq!(
            BagOfWordsConfig { given: Map::new(), ..read(Value::Object(exported)).unwrap() },
            BagOfWordsConfig { given: Map::new(), ..config }
        );
    }

    #[test]
    fn an_embedding_and_a_head() {
        let config = json!({"vocab_size": 100, "hidden_size": 16, "num_labels": 3});
        let config = BagOfWordsConfig::read(config.as_object().unwrap()).unwrap();
        assert_eq!(parameters(&config).iter().map(Parameter::count).sum::<u64>(), 100 * 16 + 3 * 16 + 3);
    }
}

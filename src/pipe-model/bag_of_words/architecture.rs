//! A bag of words in the registry.

use serde_json::{Map, Value};

use super::{BagOfWordsConfig, parameters};
use crate::architecture::Architecture;
use crate::starter::number_of_labels;
use crate::tokenization::{Algorithm, Template, Tokenization, TrainedTokenizer};
use crate::{Labels, ModelConfig, Parameter, Recipe, Starter, StarterSizes, TaskData};

pub const ARCHITECTURE: Architecture = Architecture {
    read: |config| Ok(Box::new(BagOfWordsConfig::read(config)?)),
    starter: Starter {
        fine_tuning: Recipe { lr: 1.0e-3, epochs: 3, steps: 60 },
        scratch: Recipe { lr: 1.0e-2, epochs: 5, steps: 300 },
        base_lr: 1.0e-2,
        effective_batch: 32,
        schedule: "linear",
        hub: None,
        vocabulary: 30_522,
        config: |StarterSizes { vocabulary, classes, .. }| {
            let sizes = [format!("vocab_size: {vocabulary}, hidden_size: 128")];
            sizes.into_iter().chain(number_of_labels(*classes)).collect()
        },
    },
    tokenization: Some(Tokenization::json(TrainedTokenizer {
        algorithm: Algorithm::WordPiece,
        special: &["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"],
        template: Template::Typed { start: "[CLS]", end: "[SEP]" },
    })),
    in_transformers: false,
    generation_keys: &[],
};

impl ModelConfig for BagOfWordsConfig {
    fn parameters(&self) -> Vec<Parameter> {
        parameters(self)
    }

    fn task_data(&self, labels: Option<Labels>) -> TaskData {
        self.task_data(labels)
    }

    fn head(&self) -> Option<&'static str> {
        Some(self.head())
    }

    fn drops(&self) -> bool {
        self.dropout > 0.0
    }

    fn export(&self) -> Map<String, Value> {
        self.export()
    }
}

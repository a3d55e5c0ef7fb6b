//! A bag of words in the registry.

use serde_json::{Map, Value};

use super::{BagOfWordsConfig, parameters};
use crate::architecture::Architecture;
use crate::{Labels, ModelConfig, Parameter, Starter, StarterSizes, TaskData};

pub const ARCHITECTURE: Architecture = Architecture {
    read: |_, config| Ok(Box::new(BagOfWordsConfig::read(config)?)),
    starter: |_| Starter {
        epochs: 10,
        effective_batch: 32,
        lr: "1.0e-2",
        schedule: "linear",
        warmup: 50,
        hub: None,
        vocabulary: 30_522,
        config: |StarterSizes { vocabulary, .. }| vec![format!("vocab_size: {vocabulary}, hidden_size: 128")],
    },
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

//! HybridCNNLSTM in the registry.

use serde_json::{Map, Value};

use super::{HybridConfig, memory, parameters};
use crate::architecture::Architecture;
use crate::memory::{Stage, StepMemory, Work};
use crate::{Labels, ModelConfig, Parameter, Starter, StarterSizes, TaskData};

pub const ARCHITECTURE: Architecture = Architecture {
    read: |_, config| Ok(Box::new(HybridConfig::read(config)?)),
    starter: |_| Starter {
        epochs: 20,
        effective_batch: 256,
        lr: "1.0e-4",
        schedule: "cosine",
        warmup: 200,
        hub: None,
        vocabulary: 0,
        config: |StarterSizes { features, classes, .. }| {
            vec![
                format!("input_features: {features}, num_classes: {classes}, sequence_length: 60"),
                "conv_channels: [64, 128], kernel_size: 3, lstm_hidden: 256, lstm_layers: 2, bidirectional: true"
                    .to_owned(),
                "attention_heads: 4, dropout: 0.1, norm: layer".to_owned(),
            ]
        },
    },
};

impl ModelConfig for HybridConfig {
    fn parameters(&self) -> Vec<Parameter> {
        parameters(self)
    }

    fn task_data(&self, _: Option<Labels>) -> TaskData {
        self.task_data()
    }

    fn drops(&self) -> bool {
        self.dropout > 0.0
    }

    fn export(&self) -> Map<String, Value> {
        self.export()
    }

    fn step_memory(&self) -> Option<&dyn StepMemory> {
        Some(self)
    }
}

impl StepMemory for HybridConfig {
    fn stages(&self, work: &Work) -> Vec<Stage> {
        memory::stages(self, work)
    }
}

//! HybridCNNLSTM in the registry.

use serde_json::{Map, Value};

use super::{HybridConfig, memory, parameters};
use crate::architecture::Architecture;
use crate::memory::{Stage, StepMemory, Work};
use crate::{Labels, ModelConfig, ModelSize, Parameter, Recipe, Starter, StarterSizes, TaskData};

pub const ARCHITECTURE: Architecture = Architecture {
    read: |config| Ok(Box::new(HybridConfig::read(config)?)),
    starter: Starter {
        fine_tuning: Recipe { lr: 1.0e-4, epochs: 5, steps: 100 },
        scratch: Recipe { lr: 1.0e-3, epochs: 5, steps: 400 },
        base_lr: 1.0e-4,
        effective_batch: 256,
        schedule: "cosine",
        hub: None,
        vocabulary: 0,
        config,
    },
    tokenization: None,
    in_transformers: false,
    generation_keys: &[],
};

fn config(StarterSizes { model, features, window, classes, .. }: &StarterSizes) -> Vec<String> {
    let (channels, hidden, layers) = match model {
        ModelSize::Small => ("[32, 32]", 32, 1),
        ModelSize::Medium => ("[64, 64]", 96, 2),
        ModelSize::Base => ("[64, 128]", 256, 2),
    };
    vec![
        format!("input_features: {features}, num_classes: {classes}, sequence_length: {window}"),
        format!(
            "conv_channels: {channels}, kernel_size: 3, lstm_hidden: {hidden}, lstm_layers: {layers}, bidirectional: true"
        ),
        "attention_heads: 4, dropout: 0.1, norm: layer".to_owned(),
    ]
}

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

//! MU-SOTA in the registry.

use serde_json::{Map, Value};

use super::{MuSotaConfig, memory, parameters};
use crate::architecture::Architecture;
use crate::memory::{Stage, StepMemory, Work};
use crate::{Labels, ModelConfig, Parameter, Starter, StarterSizes, TaskData};

pub const ARCHITECTURE: Architecture = Architecture {
    read: |_, config| Ok(Box::new(MuSotaConfig::read(config)?)),
    starter: |_| Starter {
        epochs: 5,
        effective_batch: 32,
        lr: "3.0e-4",
        schedule: "cosine",
        warmup: 100,
        hub: None,
        vocabulary: 50_257,
        config: |StarterSizes { vocabulary, .. }| {
            vec![
                format!(
                    "vocab_size: {vocabulary}, n_layers: 24, n_blocks: 16, block_dim: 4, block_heads: 2, cross_heads: 8"
                ),
                "ffn_dim: 7488, max_seq_len: 512, dropout: 0.0".to_owned(),
            ]
        },
    },
};

impl ModelConfig for MuSotaConfig {
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

impl StepMemory for MuSotaConfig {
    fn stages(&self, work: &Work) -> Vec<Stage> {
        memory::stages(self, work)
    }
}

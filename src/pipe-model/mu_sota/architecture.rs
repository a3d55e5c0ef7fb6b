//! MU-SOTA in the registry.

use serde_json::{Map, Value};

use super::{MuSotaConfig, memory, parameters};
use crate::architecture::Architecture;
use crate::memory::{Stage, StepMemory, Work};
use crate::tokenization::{Algorithm, Template, Tokenization, TrainedTokenizer};
use crate::{Labels, ModelConfig, ModelSize, Parameter, Recipe, Starter, StarterSizes, TaskData};

pub const ARCHITECTURE: Architecture = Architecture {
    read: |config| Ok(Box::new(MuSotaConfig::read(config)?)),
    starter: Starter {
        fine_tuning: Recipe { lr: 1.0e-4, epochs: 3, steps: 60 },
        scratch: Recipe { lr: 2.0e-3, epochs: 3, steps: 200 },
        base_lr: 3.0e-4,
        effective_batch: 32,
        schedule: "cosine",
        hub: None,
        vocabulary: 50_257,
        config,
    },
    tokenization: Some(Tokenization::json(TrainedTokenizer {
        algorithm: Algorithm::ByteLevelBpe,
        special: &["<|endoftext|>"],
        template: Template::Bare,
    })),
    in_transformers: false,
    generation_keys: &[],
};

fn config(StarterSizes { model, vocabulary, length, .. }: &StarterSizes) -> Vec<String> {
    let (layers, blocks, width, heads, cross, inner) = match model {
        ModelSize::Small => (2, 4, 32, 2, 4, 512),
        ModelSize::Medium => (8, 8, 32, 2, 8, 1024),
        ModelSize::Base => (24, 16, 4, 2, 8, 7488),
    };
    vec![
        format!(
            "vocab_size: {vocabulary}, n_layers: {layers}, n_blocks: {blocks}, block_dim: {width}, block_heads: {heads}, \
             cross_heads: {cross}"
        ),
        format!("ffn_dim: {inner}, max_seq_len: {length}, dropout: 0.0"),
    ]
}

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

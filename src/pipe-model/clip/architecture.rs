//! CLIP in the registry.

use serde_json::{Map, Value};

use super::{ClipConfig, memory, parameters};
use crate::architecture::Architecture;
use crate::memory::{Stage, StepMemory, Work};
use crate::{Labels, ModelConfig, Parameter, Starter, StarterSizes, TaskData};

pub const ARCHITECTURE: Architecture = Architecture {
    read: |_, config| Ok(Box::new(ClipConfig::read(config)?)),
    starter: |_| Starter {
        epochs: 10,
        effective_batch: 128,
        lr: "2.0e-5",
        schedule: "cosine",
        warmup: 100,
        hub: Some("openai/clip-vit-base-patch32"),
        vocabulary: 49_408,
        config: |StarterSizes { vocabulary, .. }| {
            vec![
                "projection_dim: 512".to_owned(),
                format!("text_config: {{vocab_size: {vocabulary}, hidden_size: 512, intermediate_size: 2048, num_hidden_layers: 12, num_attention_heads: 8, max_position_embeddings: 77, bos_token_id: 0, eos_token_id: 1, pad_token_id: 1}}"),
                "vision_config: {hidden_size: 768, intermediate_size: 3072, num_hidden_layers: 12, num_attention_heads: 12, image_size: 224, patch_size: 32}".to_owned(),
            ]
        },
    },
};

impl ModelConfig for ClipConfig {
    fn parameters(&self) -> Vec<Parameter> {
        parameters(self)
    }

    fn task_data(&self, _: Option<Labels>) -> TaskData {
        self.task_data()
    }

    fn drops(&self) -> bool {
        false
    }

    fn export(&self) -> Map<String, Value> {
        self.export()
    }

    fn step_memory(&self) -> Option<&dyn StepMemory> {
        Some(self)
    }
}

impl StepMemory for ClipConfig {
    fn stages(&self, work: &Work) -> Vec<Stage> {
        memory::stages(self, work)
    }
}

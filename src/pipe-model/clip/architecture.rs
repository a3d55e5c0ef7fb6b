//! CLIP in the registry.

use serde_json::{Map, Value};

use super::{ClipConfig, memory, parameters};
use crate::architecture::Architecture;
use crate::memory::{Stage, StepMemory, Work};
use crate::tokenization::{Algorithm, Template, Tokenization, TrainedTokenizer, VocabularyFormat};
use crate::{Labels, ModelConfig, ModelSize, Parameter, Recipe, Starter, StarterSizes, TaskData};

pub const ARCHITECTURE: Architecture = Architecture {
    read: |config| Ok(Box::new(ClipConfig::read(config)?)),
    starter: Starter {
        fine_tuning: Recipe { lr: 1.0e-5, epochs: 5, steps: 100 },
        scratch: Recipe { lr: 1.0e-3, epochs: 10, steps: 300 },
        base_lr: 5.0e-4,
        effective_batch: 128,
        schedule: "cosine",
        hub: Some("openai/clip-vit-base-patch32"),
        vocabulary: 49_408,
        config,
    },
    tokenization: Some(Tokenization {
        vocabulary: Some(VocabularyFormat::Clip),
        trained: TrainedTokenizer {
            algorithm: Algorithm::WordEndBpe,
            special: &["<|startoftext|>", "<|endoftext|>"],
            template: Template::Enclosed { start: "<|startoftext|>", end: "<|endoftext|>" },
        },
        token_types: false,
        reserved_positions: 0,
    }),
    in_transformers: true,
    generation_keys: &[],
};

fn config(sizes: &StarterSizes) -> Vec<String> {
    let (projection, image, patch) = match sizes.model {
        ModelSize::Small => (64, 64, 8),
        ModelSize::Medium => (256, 128, 16),
        ModelSize::Base => (512, 224, 32),
    };
    let (text, vision) = match sizes.model {
        ModelSize::Small => (tower(128, 2), tower(128, 2)),
        ModelSize::Medium => (tower(256, 4), tower(256, 6)),
        ModelSize::Base => (tower(512, 12), tower(768, 12)),
    };
    let (vocabulary, length) = (sizes.vocabulary, 77);
    vec![
        format!("projection_dim: {projection}"),
        format!(
            "text_config: {{vocab_size: {vocabulary}, {text}, max_position_embeddings: {length}, bos_token_id: 0, eos_token_id: 1, \
             pad_token_id: 1}}"
        ),
        format!("vision_config: {{{vision}, image_size: {image}, patch_size: {patch}}}"),
    ]
}

/// Heads are 64 wide.
fn tower(hidden: u32, layers: u32) -> String {
    let (inner, heads) = (4 * hidden, hidden / 64);
    format!(
        "hidden_size: {hidden}, intermediate_size: {inner}, num_hidden_layers: {layers}, num_attention_heads: {heads}"
    )
}

impl ModelConfig for ClipConfig {
    fn parameters(&self) -> Vec<Parameter> {
        parameters(self)
    }

    fn task_data(&self, _: Option<Labels>) -> TaskData {
        self.task_data()
    }

    fn drops(&self) -> bool {
        self.text_config.tower.attention_dropout.max(self.vision_config.tower.attention_dropout) > 0.0
    }

    fn head_width(&self) -> Option<i64> {
        Some(self.text_config.tower.head_width())
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

//! T5 in the registry.

use serde_json::{Map, Value};

use super::{T5Config, memory, parameters};
use crate::architecture::Architecture;
use crate::memory::{Stage, StepMemory, Work};
use crate::tokenization::{Algorithm, Template, Tokenization, TrainedTokenizer, VocabularyFormat};
use crate::{Labels, ModelConfig, ModelSize, Parameter, Recipe, Starter, StarterSizes, TaskData};

pub const ARCHITECTURE: Architecture = Architecture {
    read: |config| Ok(Box::new(T5Config::read(config)?)),
    starter: Starter {
        fine_tuning: Recipe { lr: 3.0e-4, epochs: 3, steps: 100 },
        scratch: Recipe { lr: 1.0e-3, epochs: 5, steps: 500 },
        base_lr: 5.0e-4,
        effective_batch: 64,
        schedule: "cosine",
        hub: Some("google/flan-t5-small"),
        vocabulary: 32_128,
        config,
    },
    tokenization: Some(Tokenization {
        vocabulary: Some(VocabularyFormat::T5),
        trained: TrainedTokenizer {
            algorithm: Algorithm::Unigram { unknown: "<unk>" },
            special: &["<pad>", "</s>", "<unk>"],
            template: Template::Ended { end: "</s>" },
        },
        token_types: false,
        reserved_positions: 0,
    }),
    in_transformers: true,
    generation_keys: &["decoder_start_token_id", "eos_token_id", "pad_token_id"],
};

fn config(StarterSizes { model, vocabulary, .. }: &StarterSizes) -> Vec<String> {
    let (width, inner, layers, heads) = match model {
        ModelSize::Small => (128, 256, 2, 2),
        ModelSize::Medium => (256, 512, 4, 4),
        ModelSize::Base => (512, 1024, 8, 6),
    };
    vec![
        format!(
            "vocab_size: {vocabulary}, d_model: {width}, d_kv: 64, d_ff: {inner}, num_layers: {layers}, num_heads: {heads}"
        ),
        "feed_forward_proj: gated-gelu, tie_word_embeddings: false, dropout_rate: 0.1".to_owned(),
        "pad_token_id: 0, eos_token_id: 1, decoder_start_token_id: 0".to_owned(),
    ]
}

impl ModelConfig for T5Config {
    fn parameters(&self) -> Vec<Parameter> {
        parameters(self, self.tie_word_embeddings)
    }

    fn task_data(&self, _: Option<Labels>) -> TaskData {
        self.task_data()
    }

    fn drops(&self) -> bool {
        self.dropout_rate > 0.0
    }

    fn head_width(&self) -> Option<i64> {
        Some(self.d_kv)
    }

    fn export(&self) -> Map<String, Value> {
        self.export()
    }

    fn step_memory(&self) -> Option<&dyn StepMemory> {
        Some(self)
    }
}

impl StepMemory for T5Config {
    fn stages(&self, work: &Work) -> Vec<Stage> {
        memory::stages(self, work)
    }

    fn uncounted_when_deterministic(&self) -> Option<&'static str> {
        Some("deterministic: T5 then keeps all of its attention weights, which are not counted here")
    }
}

//! DeBERTa-v2 and -v3 in the registry.

use serde_json::{Map, Value};

use super::{DebertaConfig, memory, parameters};
use crate::architecture::Architecture;
use crate::memory::{Stage, StepMemory, Work};
use crate::starter::{encoder, number_of_labels};
use crate::tokenization::{Algorithm, Template, Tokenization, TrainedTokenizer, VocabularyFormat};
use crate::{Labels, ModelConfig, Parameter, Starter, TaskData};

pub const ARCHITECTURE: Architecture = Architecture {
    read: |config| Ok(Box::new(DebertaConfig::read(config)?)),
    starter: Starter::classifier("microsoft/deberta-v3-base", 128_100, |sizes| {
        let lines = [
            format!("vocab_size: {}, max_position_embeddings: 512, type_vocab_size: 0", sizes.vocabulary),
            encoder(sizes.model),
            "relative_attention: true, position_buckets: 256, norm_rel_ebd: layer_norm, share_att_key: true".to_owned(),
            "pos_att_type: [p2c, c2p], position_biased_input: false".to_owned(),
        ];
        lines.into_iter().chain(number_of_labels(sizes.classes)).collect()
    }),
    tokenization: Some(Tokenization {
        vocabulary: Some(VocabularyFormat::DebertaV3),
        trained: TrainedTokenizer {
            algorithm: Algorithm::Unigram { unknown: "[UNK]" },
            special: &["[PAD]", "[CLS]", "[SEP]", "[UNK]", "[MASK]"],
            template: Template::Typed { start: "[CLS]", end: "[SEP]" },
        },
        token_types: true,
        reserved_positions: 0,
    }),
    in_transformers: true,
    generation_keys: &[],
};

impl ModelConfig for DebertaConfig {
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
        self.hidden_dropout_prob.max(self.attention_probs_dropout_prob) > 0.0
    }

    fn export(&self) -> Map<String, Value> {
        self.export()
    }

    fn step_memory(&self) -> Option<&dyn StepMemory> {
        Some(self)
    }
}

impl StepMemory for DebertaConfig {
    fn stages(&self, work: &Work) -> Vec<Stage> {
        memory::stages(self, work)
    }
}

//! BERT, RoBERTa and XLM-RoBERTa in the registry.

use pipe_spec::pipeline::Arch;
use serde_json::{Map, Value};

use super::{BertConfig, memory, parameters};
use crate::architecture::Architecture;
use crate::memory::{Stage, StepMemory, Work};
use crate::starter::{encoder, number_of_labels};
use crate::tokenization::{Algorithm, Template, Tokenization, TrainedTokenizer, VocabularyFormat};
use crate::{ConfigError, Labels, ModelConfig, Parameter, Starter, StarterSizes, TaskData};

pub const BERT: Architecture = Architecture {
    read: |config| read(Arch::Bert, config),
    starter: Starter::classifier("google-bert/bert-base-uncased", 30_522, |sizes| {
        config(sizes, format!("vocab_size: {}, max_position_embeddings: 512", sizes.vocabulary))
    }),
    tokenization: Some(Tokenization {
        vocabulary: Some(VocabularyFormat::Bert),
        trained: TrainedTokenizer {
            algorithm: Algorithm::WordPiece,
            special: &["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"],
            template: Template::Typed { start: "[CLS]", end: "[SEP]" },
        },
        token_types: true,
        reserved_positions: 0,
    }),
    in_transformers: true,
    generation_keys: &[],
};

pub const ROBERTA: Architecture = Architecture {
    read: |config| read(Arch::Roberta, config),
    starter: Starter::classifier("FacebookAI/roberta-base", 50_265, roberta),
    tokenization: Some(roberta_tokens(VocabularyFormat::Roberta, Algorithm::ByteLevelBpe)),
    ..BERT
};

pub const XLM_ROBERTA: Architecture = Architecture {
    read: |config| read(Arch::XlmRoberta, config),
    starter: Starter::classifier("FacebookAI/xlm-roberta-base", 250_002, roberta),
    tokenization: Some(roberta_tokens(VocabularyFormat::XlmRoberta, Algorithm::Unigram { unknown: "<unk>" })),
    ..BERT
};

fn read(arch: Arch, config: &Map<String, Value>) -> Result<Box<dyn ModelConfig>, ConfigError> {
    Ok(Box::new(BertConfig::read(arch, config)?))
}

/// The first position of a token follows that of padding, which is 1.
const fn roberta_tokens(vocabulary: VocabularyFormat, algorithm: Algorithm) -> Tokenization {
    Tokenization {
        vocabulary: Some(vocabulary),
        trained: TrainedTokenizer {
            algorithm,
            special: &["<s>", "<pad>", "</s>", "<unk>", "<mask>"],
            template: Template::Enclosed { start: "<s>", end: "</s>" },
        },
        token_types: false,
        reserved_positions: 2,
    }
}

fn roberta(sizes: &StarterSizes) -> Vec<String> {
    config(sizes, format!("vocab_size: {}, max_position_embeddings: 514, type_vocab_size: 1", sizes.vocabulary))
}

fn config(sizes: &StarterSizes, embeddings: String) -> Vec<String> {
    [embeddings, encoder(sizes.model)].into_iter().chain(number_of_labels(sizes.classes)).collect()
}

impl ModelConfig for BertConfig {
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

    fn head_width(&self) -> Option<i64> {
        Some(BertConfig::head_width(self))
    }

    fn export(&self) -> Map<String, Value> {
        self.export()
    }

    fn step_memory(&self) -> Option<&dyn StepMemory> {
        Some(self)
    }
}

impl StepMemory for BertConfig {
    fn stages(&self, work: &Work) -> Vec<Stage> {
        memory::stages(self, work)
    }
}

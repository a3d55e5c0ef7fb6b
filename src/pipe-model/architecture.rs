//! Everything that the runner and the trainer know about an architecture: its config, the first settings of a new pipeline for it, before
//! anybody has tuned it, and how it turns text into tokens. Each model's folder defines its own.

use serde_json::{Map, Value, json};

use crate::adaptable::Adaptable;
use crate::config_keys::ConfigError;
use crate::estimate::StepMemory;
use crate::parameter::Parameter;
use crate::task_data::{Labels, TaskData};

/// Reads and checks the config.json of a model.
pub type ReadConfig = fn(&Map<String, Value>) -> Result<Box<dyn ModelConfig>, ConfigError>;

pub struct Architecture {
    pub read: ReadConfig,
    /// The settings that `pipe init` writes.
    pub starter: Starter,
    /// Absent for a model that reads no text.
    pub tokenization: Option<Tokenization>,
    /// Whether transformers loads the exported model.
    pub in_transformers: bool,
    /// Keys of config.json that `generation_config.json` repeats. Empty: the export has no such file.
    pub generation_keys: &'static [&'static str],
    /// The layers that can have an adapter.
    pub adapts: Adaptable,
}

/// The config of a model, read and checked.
pub trait ModelConfig {
    fn parameters(&self) -> Vec<Parameter>;

    /// The data that it needs. `labels` are what a classifier predicts; absent where the data decides.
    fn task_data(&self, labels: Option<Labels>) -> TaskData;

    /// The parameter whose rows are the labels, for a classifier: where a checkpoint lacks it, the data decides the labels.
    fn head(&self) -> Option<&'static str> {
        None
    }

    /// Whether dropout is on in training, unless the pipeline says otherwise.
    fn drops(&self) -> bool;

    /// The width of its heads, where all of its attention has a kernel if such heads have one: then rows need not be rounded up on a card.
    fn head_width(&self) -> Option<i64> {
        None
    }

    /// The estimate of what a step holds, where the model has one.
    fn step_memory(&self) -> Option<&dyn StepMemory> {
        None
    }
}

#[derive(Clone, Copy, Debug)]
pub struct Starter {
    /// How a model learns that starts from trained weights.
    pub fine_tuning: StarterTraining,
    /// How a small model learns that starts from random weights.
    pub scratch: StarterTraining,
    /// The learning rate of the largest model from random weights; between the two sizes it is between them.
    pub base_lr: f64,
    /// Samples of a step, where there are rows enough.
    pub effective_batch: u32,
    pub schedule: &'static str,
    /// A pretrained model to start from.
    pub hub: Option<&'static str>,
    /// Tokens of the vocabulary that goes with it.
    pub vocabulary: u64,
    /// The config of a new model: keys of config.json.
    pub config: fn(&StarterSizes) -> Map<String, Value>,
}

/// How long and how fast a model learns.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StarterTraining {
    pub lr: f64,
    /// Passes over the data, at least.
    pub epochs: u32,
    /// Steps, at least: few rows are passed more often.
    pub steps: u32,
}

/// The sizes that the config of a new model takes from the data.
#[derive(Clone, Copy, Debug)]
pub struct StarterSizes {
    pub model: ModelSize,
    /// Tokens of the tokenizer.
    pub vocabulary: u64,
    /// Tokens of a row at most.
    pub length: u32,
    /// Columns of a time series.
    pub features: usize,
    /// Rows of a window of a time series.
    pub window: u32,
    pub classes: usize,
}

/// How large a new model is: one that is too large for its data learns it by heart, and takes long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ModelSize {
    /// At most a few million parameters: minutes on a CPU.
    Small,
    Medium,
    /// As published models are.
    Base,
}

impl ModelSize {
    const SMALL_BELOW: u64 = 10_000;
    const MEDIUM_BELOW: u64 = 200_000;

    /// For so many rows to train with.
    pub fn for_rows(rows: u64) -> Self {
        match rows {
            _ if rows < Self::SMALL_BELOW => Self::Small,
            _ if rows < Self::MEDIUM_BELOW => Self::Medium,
            _ => Self::Base,
        }
    }

    /// The vocabulary of a tokenizer that is trained on the data, at most.
    pub fn vocabulary(self, base: u64) -> u64 {
        match self {
            Self::Small => base.min(4000),
            Self::Medium => base.min(16_000),
            Self::Base => base,
        }
    }
}

/// The sizes of an encoder such as BERT.
pub(crate) fn encoder(size: ModelSize) -> Value {
    let (hidden, layers, heads) = match size {
        ModelSize::Small => (128, 2, 2),
        ModelSize::Medium => (256, 4, 4),
        ModelSize::Base => (768, 12, 12),
    };
    json!({
        "hidden_size": hidden, "num_hidden_layers": layers, "num_attention_heads": heads, "intermediate_size": 4 * hidden,
    })
}

/// One class is a number, which a config must say; more are counted in the data.
pub(crate) fn number_of_labels(classes: usize) -> Value {
    if classes == 1 { json!({ "num_labels": 1 }) } else { json!({}) }
}

/// The keys of several objects, in order.
pub(crate) fn joined<const N: usize>(objects: [Value; N]) -> Map<String, Value> {
    objects.into_iter().flat_map(|object| object.as_object().cloned().unwrap_or_default()).collect()
}

impl Starter {
    pub(crate) const fn classifier(
        hub: &'static str,
        vocabulary: u64,
        config: fn(&StarterSizes) -> Map<String, Value>,
    ) -> Self {
        Self {
            fine_tuning: StarterTraining { lr: 2.0e-5, epochs: 3, steps: 60 },
            scratch: StarterTraining { lr: 5.0e-4, epochs: 5, steps: 500 },
            base_lr: 1.0e-4,
            effective_batch: 32,
            schedule: "linear",
            hub: Some(hub),
            vocabulary,
            config,
        }
    }

    /// The learning rate of a new model of this size.
    pub fn scratch_lr(&self, size: ModelSize) -> f64 {
        match size {
            ModelSize::Small => self.scratch.lr,
            ModelSize::Medium => (self.scratch.lr * self.base_lr).sqrt(),
            ModelSize::Base => self.base_lr,
        }
    }
}

/// The tokenizer of an architecture.
#[derive(Clone, Copy, Debug)]
pub struct Tokenization {
    /// The format of the vocabulary files that published models have. Absent: they have tokenizer.json alone.
    pub vocabulary: Option<VocabularyFormat>,
    /// The tokenizer that is trained for a model from scratch.
    pub trained: TrainedTokenizer,
    /// Whether the model takes the type of each token: which of two texts it belongs to.
    pub token_types: bool,
    /// Rows of the position embeddings that no token of a text has.
    pub reserved_positions: u64,
}

impl Tokenization {
    /// A tokenizer that is all in tokenizer.json, for a model without token types.
    pub const fn json(trained: TrainedTokenizer) -> Self {
        Self { vocabulary: None, trained, token_types: false, reserved_positions: 0 }
    }

    /// Special tokens by role, as the tokenizer class of transformers has them by default. Empty where there is no such class.
    pub fn roles(&self) -> Roles {
        self.vocabulary.map_or(&[], VocabularyFormat::roles)
    }
}

/// Special tokens: role, such as `pad_token`, and token.
pub type Roles = &'static [(&'static str, &'static str)];

/// A format of vocabulary files, named after the model that introduced it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VocabularyFormat {
    /// `spiece.model`: sentencepiece with sentinel tokens behind it.
    T5,
    /// `sentencepiece.bpe.model`: sentencepiece with the special tokens of fairseq.
    XlmRoberta,
    /// `spm.model`: sentencepiece, normalized to NFC.
    DebertaV3,
    /// `vocab.txt`: WordPiece.
    Bert,
    /// `vocab.json` and `merges.txt`: byte-level BPE.
    Roberta,
    /// `vocab.json` and `merges.txt`: BPE of lower-case words that end with `</w>`.
    Clip,
}

impl VocabularyFormat {
    /// The special tokens of the format by role.
    pub fn roles(self) -> Roles {
        match self {
            Self::T5 => &[("eos_token", "</s>"), ("unk_token", "<unk>"), ("pad_token", "<pad>")],
            Self::Bert => &[
                ("unk_token", "[UNK]"),
                ("sep_token", "[SEP]"),
                ("pad_token", "[PAD]"),
                ("cls_token", "[CLS]"),
                ("mask_token", "[MASK]"),
            ],
            Self::Roberta | Self::XlmRoberta => &[
                ("bos_token", "<s>"),
                ("pad_token", "<pad>"),
                ("eos_token", "</s>"),
                ("unk_token", "<unk>"),
                ("mask_token", "<mask>"),
                ("sep_token", "</s>"),
                ("cls_token", "<s>"),
            ],
            Self::DebertaV3 => &[
                ("bos_token", "[CLS]"),
                ("eos_token", "[SEP]"),
                ("unk_token", "[UNK]"),
                ("sep_token", "[SEP]"),
                ("pad_token", "[PAD]"),
                ("cls_token", "[CLS]"),
                ("mask_token", "[MASK]"),
            ],
            Self::Clip => &[
                ("bos_token", "<|startoftext|>"),
                ("eos_token", "<|endoftext|>"),
                ("unk_token", "<|endoftext|>"),
                ("pad_token", "<|endoftext|>"),
            ],
        }
    }
}

/// A tokenizer that is trained on texts.
#[derive(Clone, Copy, Debug)]
pub struct TrainedTokenizer {
    pub algorithm: Algorithm,
    /// Its special tokens, numbered from 0.
    pub special: &'static [&'static str],
    pub template: Template,
}

/// How texts are normalized, split into words and divided into tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Algorithm {
    /// Lower-case words, divided by WordPiece.
    WordPiece,
    /// Byte-level BPE.
    ByteLevelBpe,
    /// Byte-level BPE of lower-case words; their last tokens end with `</w>`.
    WordEndBpe,
    /// A unigram model. `unknown` is the token for what no piece fits.
    Unigram { unknown: &'static str },
}

/// The special tokens around a text A, and around a text B that follows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Template {
    /// `A B`
    Bare,
    /// `A end B end`
    Ended { end: &'static str },
    /// `start A end end B end`
    Enclosed { start: &'static str, end: &'static str },
    /// `start A end B end`, where the tokens of B and its end have type 1.
    Typed { start: &'static str, end: &'static str },
}

//! The first settings of a new pipeline for a model, before anybody has tuned it.

use serde_json::{Map, Value, json};

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

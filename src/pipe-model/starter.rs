//! What a new pipeline for a model starts with, before anybody has tuned it.

#[derive(Clone, Copy, Debug)]
pub struct Starter {
    pub epochs: u32,
    pub effective_batch: u32,
    pub lr: &'static str,
    pub schedule: &'static str,
    pub warmup: u32,
    /// A pretrained model to start from.
    pub hub: Option<&'static str>,
    /// Tokens of the vocabulary that goes with it.
    pub vocabulary: u64,
    /// The config of a model of a usual size, as lines of YAML.
    pub config: fn(&StarterSizes) -> Vec<String>,
}

/// What the config of a new model takes from the data.
#[derive(Clone, Copy, Debug)]
pub struct StarterSizes {
    /// Tokens of the tokenizer.
    pub vocabulary: u64,
    /// Columns of a time series.
    pub features: usize,
    pub classes: usize,
}

/// The sizes of BERT base.
pub(crate) const BASE_ENCODER: &str =
    "hidden_size: 768, num_hidden_layers: 12, num_attention_heads: 12, intermediate_size: 3072";

impl Starter {
    /// For a classifier that is fine-tuned.
    pub(crate) fn classifier(hub: &'static str, vocabulary: u64, config: fn(&StarterSizes) -> Vec<String>) -> Self {
        Self {
            epochs: 3,
            effective_batch: 32,
            lr: "2.0e-5",
            schedule: "linear",
            warmup: 50,
            hub: Some(hub),
            vocabulary,
            config,
        }
    }
}

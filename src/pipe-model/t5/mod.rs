//! T5: config.json with keys and defaults as in Hugging Face's `T5Config`, and its parameters with names, shapes
//! and initialisation as there.

mod memory;

use serde_json::{Map, Value, json};

use crate::adaptable::Adaptable;
use crate::architecture::{
    Algorithm, Architecture, ModelConfig, ModelSize, Starter, StarterSizes, StarterTraining, Template, Tokenization,
    TrainedTokenizer, VocabularyFormat, joined,
};
use crate::config_keys::{Activation, ConfigError, ConfigKeys, bounded_width, extended, fail};
use crate::estimate::{StepMemory, rows_at_a_time};
use crate::parameter::{Init, Parameter};
use crate::task_data::{Labels, TaskData};

#[derive(Clone, Debug, PartialEq)]
pub struct T5Config {
    pub vocab_size: i64,
    pub d_model: i64,
    pub d_kv: i64,
    pub d_ff: i64,
    pub num_layers: i64,
    pub num_decoder_layers: i64,
    pub num_heads: i64,
    pub relative_attention_num_buckets: i64,
    pub relative_attention_max_distance: i64,
    pub dropout_rate: f64,
    pub layer_norm_epsilon: f64,
    pub initializer_factor: f64,
    pub feed_forward: FeedForwardKind,
    pub tie_word_embeddings: bool,
    /// Whether the decoder's output is scaled by d_model^-0.5 before the head.
    pub scale_decoder_outputs: bool,
    pub pad_token_id: i64,
    pub decoder_start_token_id: i64,
    pub eos_token_id: i64,
    /// Everything that was given, kept for the export.
    given: Map<String, Value>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FeedForwardKind {
    pub gated: bool,
    pub activation: Activation,
}

impl T5Config {
    pub fn read(given: &Map<String, Value>) -> Result<Self, ConfigError> {
        let keys = ConfigKeys(given);
        let num_layers = keys.size("num_layers")?.unwrap_or(6);
        let pad_token_id = keys.whole("pad_token_id")?.unwrap_or(0);
        let tie_word_embeddings = keys.truth("tie_word_embeddings")?.unwrap_or(true);
        let config = Self {
            vocab_size: keys.size("vocab_size")?.unwrap_or(32128),
            d_model: keys.required_size("d_model")?,
            d_kv: keys.size("d_kv")?.unwrap_or(64),
            d_ff: keys.size("d_ff")?.unwrap_or(2048),
            num_layers,
            num_decoder_layers: keys.size("num_decoder_layers")?.unwrap_or(num_layers),
            num_heads: keys.size("num_heads")?.unwrap_or(8),
            relative_attention_num_buckets: keys.size("relative_attention_num_buckets")?.unwrap_or(32),
            relative_attention_max_distance: keys.size("relative_attention_max_distance")?.unwrap_or(128),
            dropout_rate: keys.dropout("dropout_rate")?.unwrap_or(0.1),
            layer_norm_epsilon: keys.number("layer_norm_epsilon")?.unwrap_or(1e-6),
            initializer_factor: keys.number("initializer_factor")?.unwrap_or(1.0),
            feed_forward: FeedForwardKind::parse(keys.text("feed_forward_proj")?.unwrap_or("relu"))?,
            tie_word_embeddings,
            scale_decoder_outputs: keys.truth("scale_decoder_outputs")?.unwrap_or(tie_word_embeddings),
            pad_token_id,
            decoder_start_token_id: keys.whole("decoder_start_token_id")?.unwrap_or(pad_token_id),
            eos_token_id: keys.whole("eos_token_id")?.unwrap_or(1),
            given: given.clone(),
        };
        config.check()?;
        Ok(config)
    }

    fn check(&self) -> Result<(), ConfigError> {
        for (key, token) in [
            ("pad_token_id", self.pad_token_id),
            ("decoder_start_token_id", self.decoder_start_token_id),
            ("eos_token_id", self.eos_token_id),
        ] {
            if token >= self.vocab_size {
                return Err(fail(
                    key,
                    format!("found {token}; allowed: below vocab_size, which is {}", self.vocab_size),
                ));
            }
        }
        bounded_width("num_heads x d_kv", self.num_heads.checked_mul(self.d_kv))?;
        // Half of the buckets (a quarter in each direction of the encoder) are logarithmic up to the distance.
        if self.relative_attention_num_buckets < 4
            || self.relative_attention_max_distance <= self.relative_attention_num_buckets / 2
        {
            let message = format!(
                "found {} buckets up to distance {}; allowed: at least 4, and a distance above half of them",
                self.relative_attention_num_buckets, self.relative_attention_max_distance
            );
            return Err(fail("relative_attention_num_buckets", message));
        }
        Ok(())
    }

    /// Rows whose logits exist at a time: 128 MiB in fp32.
    pub fn loss_rows(&self) -> i64 {
        rows_at_a_time(1 << 25, self.vocab_size)
    }

    /// The width of all heads together.
    pub fn inner(&self) -> i64 {
        self.num_heads * self.d_kv
    }

    /// config.json for transformers: what was given, with every default filled in.
    pub fn export(&self) -> Map<String, Value> {
        let filled = json!({
            "architectures": ["T5ForConditionalGeneration"],
            "model_type": "t5",
            "is_encoder_decoder": true,
            "vocab_size": self.vocab_size,
            "d_model": self.d_model,
            "d_kv": self.d_kv,
            "d_ff": self.d_ff,
            "num_layers": self.num_layers,
            "num_decoder_layers": self.num_decoder_layers,
            "num_heads": self.num_heads,
            "relative_attention_num_buckets": self.relative_attention_num_buckets,
            "relative_attention_max_distance": self.relative_attention_max_distance,
            "dropout_rate": self.dropout_rate,
            "layer_norm_epsilon": self.layer_norm_epsilon,
            "initializer_factor": self.initializer_factor,
            "feed_forward_proj": self.given.get("feed_forward_proj").cloned().unwrap_or_else(|| json!("relu")),
            "tie_word_embeddings": self.tie_word_embeddings,
            "scale_decoder_outputs": self.scale_decoder_outputs,
            "pad_token_id": self.pad_token_id,
            "decoder_start_token_id": self.decoder_start_token_id,
            "eos_token_id": self.eos_token_id,
        });
        extended(&self.given, filled)
    }
}

impl FeedForwardKind {
    /// `relu`, `gated-gelu` and the like. A gated `gelu` is the tanh approximation, as in transformers.
    fn parse(text: &str) -> Result<Self, ConfigError> {
        let (gated, name) = match text.strip_prefix("gated-") {
            Some(name) => (true, name),
            None => (false, text),
        };
        let activation = match name {
            "gelu" if gated => Activation::GeluTanh,
            name => Activation::parse("feed_forward_proj", name)?,
        };
        Ok(Self { gated, activation })
    }
}

pub const ARCHITECTURE: Architecture = Architecture {
    read: |config| Ok(Box::new(T5Config::read(config)?)),
    starter: Starter {
        fine_tuning: StarterTraining { lr: 3.0e-4, epochs: 3, steps: 100 },
        scratch: StarterTraining { lr: 1.0e-3, epochs: 5, steps: 1200 },
        base_lr: 5.0e-4,
        effective_batch: 32,
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
    adapts: Adaptable::named(&["q", "k", "v", "o", "wi", "wi_0", "wi_1", "wo"]),
};

fn config(StarterSizes { model, vocabulary, .. }: &StarterSizes) -> Map<String, Value> {
    // A small model that is to copy letter by letter learns it much later with dropout; the best evaluation is kept anyway.
    let (width, inner, layers, heads, dropout) = match model {
        ModelSize::Small => (128, 256, 2, 2, 0.0),
        ModelSize::Medium => (256, 512, 4, 4, 0.1),
        ModelSize::Base => (512, 1024, 8, 6, 0.1),
    };
    joined([json!({
        "vocab_size": vocabulary, "d_model": width, "d_kv": 64, "d_ff": inner, "num_layers": layers, "num_heads": heads,
        "feed_forward_proj": "gated-gelu", "tie_word_embeddings": false, "dropout_rate": dropout, "pad_token_id": 0,
        "eos_token_id": 1, "decoder_start_token_id": 0,
    })])
}

impl ModelConfig for T5Config {
    fn parameters(&self) -> Vec<Parameter> {
        parameters(self, self.tie_word_embeddings)
    }

    fn task_data(&self, _: Option<Labels>) -> TaskData {
        TaskData::Seq2Seq {
            vocab_size: self.vocab_size as u64,
            pad_token_id: self.pad_token_id,
            eos_token_id: self.eos_token_id,
        }
    }

    fn drops(&self) -> bool {
        self.dropout_rate > 0.0
    }

    fn head_width(&self) -> Option<i64> {
        Some(self.d_kv)
    }

    fn step_memory(&self) -> Option<&dyn StepMemory> {
        Some(self)
    }
}

/// Every parameter in transformers' order. A tied head has no parameter of its own.
pub fn parameters(config: &T5Config, tied: bool) -> Vec<Parameter> {
    let mut list = List { config, parameters: Vec::new() };
    list.normal("shared.weight", [config.vocab_size, config.d_model], 1.0);
    for block in 0..config.num_layers {
        let path = format!("encoder.block.{block}.layer");
        list.attention(&format!("{path}.0"), "SelfAttention", block == 0);
        list.feed_forward(&format!("{path}.1"));
    }
    list.norm("encoder.final_layer_norm.weight");
    for block in 0..config.num_decoder_layers {
        let path = format!("decoder.block.{block}.layer");
        list.attention(&format!("{path}.0"), "SelfAttention", block == 0);
        list.attention(&format!("{path}.1"), "EncDecAttention", false);
        list.feed_forward(&format!("{path}.2"));
    }
    list.norm("decoder.final_layer_norm.weight");
    if !tied {
        list.normal("lm_head.weight", [config.vocab_size, config.d_model], 1.0);
    }
    // A checkpoint without a head of its own has `shared` as its head, whatever its config says.
    list.parameters.iter_mut().for_each(|one| one.may_be_missing = one.name == "lm_head.weight");
    list.parameters
}

struct List<'a> {
    config: &'a T5Config,
    parameters: Vec<Parameter>,
}

impl List<'_> {
    fn attention(&mut self, layer: &str, name: &str, has_bias: bool) {
        let T5Config { d_model, d_kv, num_heads, relative_attention_num_buckets, .. } = *self.config;
        let inner = self.config.inner();
        let path = format!("{layer}.{name}");
        self.normal(&format!("{path}.q.weight"), [inner, d_model], root(d_model * d_kv));
        self.normal(&format!("{path}.k.weight"), [inner, d_model], root(d_model));
        self.normal(&format!("{path}.v.weight"), [inner, d_model], root(d_model));
        self.normal(&format!("{path}.o.weight"), [d_model, inner], root(inner));
        if has_bias {
            let shape = [relative_attention_num_buckets, num_heads];
            self.normal(&format!("{path}.relative_attention_bias.weight"), shape, root(d_model));
        }
        self.norm(&format!("{layer}.layer_norm.weight"));
    }

    fn feed_forward(&mut self, layer: &str) {
        let T5Config { d_model, d_ff, feed_forward, .. } = *self.config;
        let inputs: &[&str] = if feed_forward.gated { &["wi_0", "wi_1"] } else { &["wi"] };
        for input in inputs {
            self.normal(&format!("{layer}.DenseReluDense.{input}.weight"), [d_ff, d_model], root(d_model));
        }
        self.normal(&format!("{layer}.DenseReluDense.wo.weight"), [d_model, d_ff], root(d_ff));
        self.norm(&format!("{layer}.layer_norm.weight"));
    }

    fn norm(&mut self, name: &str) {
        self.push(name, vec![self.config.d_model], Init::Constant(self.config.initializer_factor));
    }

    fn normal(&mut self, name: &str, shape: [i64; 2], std: f64) {
        self.push(name, shape.to_vec(), Init::Normal { std: self.config.initializer_factor * std });
    }

    fn push(&mut self, name: &str, shape: Vec<i64>, init: Init) {
        self.parameters.push(Parameter::new(name, &shape, init));
    }
}

/// size^-0.5
fn root(size: i64) -> f64 {
    (size as f64).powf(-0.5)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(config: Value) -> Result<T5Config, ConfigError> {
        T5Config::read(config.as_object().unwrap())
    }

    #[test]
    fn defaults_are_those_of_transformers() {
        let config = read(json!({"d_model": 512})).unwrap();
        assert_eq!((config.vocab_size, config.d_kv, config.d_ff), (32128, 64, 2048));
        assert_eq!((config.num_layers, config.num_decoder_layers, config.num_heads), (6, 6, 8));
        assert_eq!(config.feed_forward, FeedForwardKind { gated: false, activation: Activation::Relu });
        assert!(config.tie_word_embeddings && config.scale_decoder_outputs);
        assert_eq!(read(json!({"d_model": 8, "num_layers": 3})).unwrap().num_decoder_layers, 3);
    }

    #[test]
    fn the_scale_follows_the_tie_unless_it_is_given() {
        let cases = [
            (json!({"d_model": 8}), true),
            (json!({"d_model": 8, "tie_word_embeddings": false}), false),
            (json!({"d_model": 8, "tie_word_embeddings": false, "scale_decoder_outputs": true}), true),
            (json!({"d_model": 8, "tie_word_embeddings": true, "scale_decoder_outputs": false}), false),
        ];
        for (given, want) in cases {
            assert_eq!(read(given.clone()).unwrap().scale_decoder_outputs, want, "{given}");
        }
    }

    #[test]
    fn a_wrong_key_is_named() {
        let cases = [
            (json!({}), "d_model: missing"),
            (json!({"d_model": "big"}), "d_model: found \"big\""),
            (json!({"d_model": 0}), "d_model: found 0"),
            (json!({"d_model": 8, "feed_forward_proj": "gated-sine"}), "feed_forward_proj: found \"sine\""),
            (json!({"d_model": 8, "vocab_size": 4, "pad_token_id": 9}), "pad_token_id: found 9"),
        ];
        for (given, want) in cases {
            let error = read(given).unwrap_err().to_string();
            assert!(error.contains(want), "{error}");
        }
    }

    #[test]
    fn flan_t5_xl_has_its_size() {
        let config = json!({
            "d_model": 2048, "d_kv": 64, "d_ff": 5120, "num_layers": 24, "num_heads": 32, "vocab_size": 32128,
            "feed_forward_proj": "gated-gelu", "tie_word_embeddings": false,
        });
        let config = T5Config::read(config.as_object().unwrap()).unwrap();
        let count = |tied| parameters(&config, tied).iter().map(|p| p.shape.iter().product::<i64>()).sum::<i64>();
        assert_eq!(count(false), 2_849_757_184);
        assert_eq!(count(false) - count(true), 32128 * 2048);
    }
}

//! T5's config.json: keys and defaults as in Hugging Face's `T5Config`.

use serde_json::{Map, Value, json};

use crate::Activation;
use crate::ConfigError;
use crate::config_keys::bounded_width;
use crate::memory::rows_at_a_time;
use crate::{ConfigKeys, TaskData};

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
            dropout_rate: keys.number("dropout_rate")?.unwrap_or(0.1),
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
        let fail = |key: &str, message: String| Err(ConfigError { key: key.to_owned(), message });
        for (key, token) in [
            ("pad_token_id", self.pad_token_id),
            ("decoder_start_token_id", self.decoder_start_token_id),
            ("eos_token_id", self.eos_token_id),
        ] {
            if token >= self.vocab_size {
                return fail(key, format!("found {token}; allowed: below vocab_size, which is {}", self.vocab_size));
            }
        }
        bounded_width("num_heads x d_kv", self.num_heads.checked_mul(self.d_kv))?;
        if !(0.0..1.0).contains(&self.dropout_rate) {
            return fail("dropout_rate", format!("found {}; allowed: at least 0 and below 1", self.dropout_rate));
        }
        // Half of the buckets (a quarter in each direction of the encoder) are logarithmic up to the distance.
        if self.relative_attention_num_buckets < 4
            || self.relative_attention_max_distance <= self.relative_attention_num_buckets / 2
        {
            let message = format!(
                "found {} buckets up to distance {}; allowed: at least 4, and a distance above half of them",
                self.relative_attention_num_buckets, self.relative_attention_max_distance
            );
            return fail("relative_attention_num_buckets", message);
        }
        Ok(())
    }

    /// Rows whose logits exist at a time: 128 MiB in fp32.
    pub fn loss_rows(&self) -> i64 {
        rows_at_a_time(1 << 25, self.vocab_size)
    }

    pub fn task_data(&self) -> TaskData {
        TaskData::Seq2Seq {
            vocab_size: self.vocab_size as u64,
            pad_token_id: self.pad_token_id,
            eos_token_id: self.eos_token_id,
        }
    }

    /// The width of all heads together.
    pub fn inner(&self) -> i64 {
        self.num_heads * self.d_kv
    }

    /// config.json for transformers: what was given, with every default filled in.
    pub fn export(&self) -> Map<String, Value> {
        let mut config = self.given.clone();
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
        if let Value::Object(filled) = filled {
            config.extend(filled);
        }
        config
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
}

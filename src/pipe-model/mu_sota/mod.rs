//! MU-SOTA: its config.json and its parameters. The defaults are the model of its authors, which has 26.87 million
//! parameters.

mod memory;

use serde_json::{Map, Value, json};

use crate::adaptable::Adaptable;
use crate::architecture::{Architecture, ModelConfig};
use crate::config_keys::{ConfigError, ConfigKeys, bounded_width, extended, fail};
use crate::estimate::{StepMemory, rows_at_a_time};
use crate::parameter::{Init, Listed, Parameter};
use crate::starter::{ModelSize, Starter, StarterSizes, StarterTraining, joined};
use crate::task_data::{Labels, TaskData};
use crate::tokenization::{Algorithm, Template, Tokenization, TrainedTokenizer};

#[derive(Clone, Debug, PartialEq)]
pub struct MuSotaConfig {
    pub vocab_size: i64,
    pub n_layers: i64,
    /// Each layer has so many narrow attentions side by side.
    pub n_blocks: i64,
    /// The width of one of them.
    pub block_dim: i64,
    pub block_heads: i64,
    pub cross_heads: i64,
    pub ffn_dim: i64,
    pub max_seq_len: i64,
    /// The dropout of embeddings, and of the output of each attention and each feed-forward layer.
    pub dropout: f64,
    /// Everything that was given, kept for the export.
    given: Map<String, Value>,
}

impl MuSotaConfig {
    pub fn read(given: &Map<String, Value>) -> Result<Self, ConfigError> {
        let keys = ConfigKeys(given);
        let config = Self {
            vocab_size: keys.size("vocab_size")?.unwrap_or(50257),
            n_layers: keys.size("n_layers")?.unwrap_or(24),
            n_blocks: keys.size("n_blocks")?.unwrap_or(16),
            block_dim: keys.size("block_dim")?.unwrap_or(4),
            block_heads: keys.size("block_heads")?.unwrap_or(2),
            cross_heads: keys.size("cross_heads")?.unwrap_or(8),
            ffn_dim: keys.size("ffn_dim")?.unwrap_or(7488),
            max_seq_len: keys.size("max_seq_len")?.unwrap_or(512),
            dropout: keys.dropout("dropout")?.unwrap_or(0.0),
            given: given.clone(),
        };
        config.check()?;
        Ok(config)
    }

    fn check(&self) -> Result<(), ConfigError> {
        bounded_width("n_blocks x block_dim", self.n_blocks.checked_mul(self.block_dim))?;
        for (key, heads, of, width) in [
            ("block_heads", self.block_heads, "block_dim", self.block_dim),
            ("cross_heads", self.cross_heads, "n_blocks x block_dim", self.width()),
        ] {
            if width % heads != 0 {
                return Err(fail(key, format!("found {heads}; allowed: what divides {of}, which is {width}")));
            }
        }
        if self.max_seq_len < 2 {
            return Err(fail("max_seq_len", format!("found {}; allowed: at least 2", self.max_seq_len)));
        }
        Ok(())
    }

    /// The width of all blocks together.
    pub fn width(&self) -> i64 {
        self.n_blocks * self.block_dim
    }

    /// Rows whose logits exist at a time: 32 MiB in fp32.
    pub fn loss_rows(&self) -> i64 {
        rows_at_a_time(1 << 23, self.vocab_size)
    }

    /// Rows of which the inside of a feed-forward layer exists at a time.
    pub fn feed_forward_rows(&self) -> i64 {
        rows_at_a_time(1 << 25, self.ffn_dim)
    }

    /// config.json: what was given, with every default filled in.
    pub fn export(&self) -> Map<String, Value> {
        let filled = json!({
            "model_type": "mu_sota",
            "vocab_size": self.vocab_size,
            "n_layers": self.n_layers,
            "n_blocks": self.n_blocks,
            "block_dim": self.block_dim,
            "block_heads": self.block_heads,
            "cross_heads": self.cross_heads,
            "ffn_dim": self.ffn_dim,
            "max_seq_len": self.max_seq_len,
            "dropout": self.dropout,
        });
        extended(&self.given, filled)
    }
}

pub const ARCHITECTURE: Architecture = Architecture {
    read: |config| Ok(Box::new(MuSotaConfig::read(config)?)),
    starter: Starter {
        fine_tuning: StarterTraining { lr: 1.0e-4, epochs: 3, steps: 60 },
        scratch: StarterTraining { lr: 2.0e-3, epochs: 3, steps: 200 },
        base_lr: 3.0e-4,
        effective_batch: 32,
        schedule: "cosine",
        hub: None,
        vocabulary: 50_257,
        config,
    },
    tokenization: Some(Tokenization::json(TrainedTokenizer {
        algorithm: Algorithm::ByteLevelBpe,
        special: &["<|endoftext|>"],
        template: Template::Bare,
    })),
    in_transformers: false,
    generation_keys: &[],
    adapts: Adaptable::NONE,
};

fn config(StarterSizes { model, vocabulary, length, .. }: &StarterSizes) -> Map<String, Value> {
    let (layers, blocks, width, heads, cross, inner) = match model {
        ModelSize::Small => (2, 4, 32, 2, 4, 512),
        ModelSize::Medium => (8, 8, 32, 2, 8, 1024),
        ModelSize::Base => (24, 16, 4, 2, 8, 7488),
    };
    joined([json!({
        "vocab_size": vocabulary, "n_layers": layers, "n_blocks": blocks, "block_dim": width, "block_heads": heads,
        "cross_heads": cross, "ffn_dim": inner, "max_seq_len": length, "dropout": 0.0,
    })])
}

impl ModelConfig for MuSotaConfig {
    fn parameters(&self) -> Vec<Parameter> {
        parameters(self)
    }

    fn task_data(&self, _: Option<Labels>) -> TaskData {
        TaskData::Language {
            vocab_size: self.vocab_size as u64,
            max_length: self.max_seq_len as u32,
            joins_texts: true,
        }
    }

    fn drops(&self) -> bool {
        self.dropout > 0.0
    }

    fn step_memory(&self) -> Option<&dyn StepMemory> {
        Some(self)
    }
}

const INIT: Init = Init::Normal { std: 0.02 };

pub fn parameters(config: &MuSotaConfig) -> Vec<Parameter> {
    let MuSotaConfig { vocab_size, n_layers, n_blocks, block_dim, ffn_dim, max_seq_len, .. } = *config;
    let width = config.width();
    let mut list = Listed::default();
    list.push("tok_emb.weight", &[vocab_size, width], INIT);
    list.push("pos_emb.weight", &[max_seq_len, width], INIT);
    for layer in 0..n_layers {
        let path = |name: &str| format!("layers.{layer}.{name}");
        list.norm(&path("ln1"), width);
        list.linear(&path("blocks.qkv"), &[n_blocks, 3 * block_dim, block_dim], INIT);
        list.linear(&path("blocks.out"), &[n_blocks, block_dim, block_dim], INIT);
        list.norm(&path("ln2"), width);
        list.linear(&path("cross.qkv"), &[3 * width, width], INIT);
        list.linear(&path("cross.out"), &[width, width], INIT);
        list.norm(&path("ln3"), width);
        list.linear(&path("ffn.fc1"), &[ffn_dim, width], INIT);
        list.linear(&path("ffn.fc2"), &[width, ffn_dim], INIT);
    }
    list.norm("ln_f", width);
    list.0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(config: Value) -> Result<MuSotaConfig, ConfigError> {
        MuSotaConfig::read(config.as_object().unwrap())
    }

    #[test]
    fn a_wrong_key_is_named() {
        let cases = [
            (json!({"n_layers": 0}), "n_layers: found 0"),
            (json!({"ffn_dim": "wide"}), "ffn_dim: found \"wide\""),
            (json!({"block_heads": 3}), "block_heads: found 3; allowed: what divides block_dim, which is 4"),
            (
                json!({"cross_heads": 5}),
                "cross_heads: found 5; allowed: what divides n_blocks x block_dim, which is 64",
            ),
            (json!({"dropout": 1.0}), "dropout: found 1; allowed: at least 0 and below 1"),
            (json!({"max_seq_len": 1}), "max_seq_len: found 1; allowed: at least 2"),
        ];
        for (given, want) in cases {
            let error = read(given).unwrap_err().to_string();
            assert!(error.contains(want), "{error}");
        }
    }

    #[test]
    fn the_export_reads_back_and_keeps_what_it_does_not_know() {
        let config = read(json!({"n_layers": 2, "author": "somebody"})).unwrap();
        let exported = config.export();
        assert_eq!((&exported["author"], &exported["ffn_dim"]), (&json!("somebody"), &json!(7488)));
        assert_eq!(
            MuSotaConfig { given: Map::new(), ..read(Value::Object(exported)).unwrap() },
            MuSotaConfig { given: Map::new(), ..config }
        );
    }

    #[test]
    fn the_model_of_its_authors_has_its_size() {
        let parameters = parameters(&MuSotaConfig::read(&Map::new()).unwrap());
        let count: i64 = parameters.iter().map(|parameter| parameter.shape.iter().product::<i64>()).sum();
        assert_eq!(count, 26_873_024);
    }
}

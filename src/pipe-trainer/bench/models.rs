//! Models that are measured.

use serde_json::{Value, json};

use crate::cli::BenchArgs;
use crate::error::TrainerError;

pub struct Bench {
    pub arch: String,
    pub config: Value,
    /// Instead of what the config says.
    pub dropout: Option<f64>,
}

const MODELS: &str = "t5-small, t5-base, t5-large, t5-xl, bert-base, bert-large, clip-vit-b-32, mu-sota";

impl Bench {
    /// What is asked for: any architecture with its config, or a model of a published size.
    pub fn asked(args: &BenchArgs) -> Result<Self, TrainerError> {
        let fail = |key: &str, message: String| TrainerError::config(key, message);
        match (&args.model, &args.arch) {
            (Some(name), _) => Self::named(name),
            (None, Some(arch)) => {
                let config = args.config.as_deref().unwrap_or("{}");
                let config = serde_json::from_str(config).map_err(|error| fail("--config", error.to_string()))?;
                Ok(Self { arch: arch.clone(), config, dropout: None })
            }
            (None, None) => Err(fail("--model", format!("missing; give one of {MODELS}, or --arch and --config"))),
        }
    }

    fn named(name: &str) -> Result<Self, TrainerError> {
        let t5 = |d_model: i64, d_ff: i64, layers: i64, heads: i64| Self {
            arch: "t5".to_owned(),
            // Version 1.1.
            config: json!({
                "d_model": d_model, "d_ff": d_ff, "d_kv": 64, "num_layers": layers, "num_heads": heads,
                "vocab_size": 32128, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": false,
            }),
            dropout: Some(0.1),
        };
        let bert = |width: i64, layers: i64, heads: i64| Self {
            arch: "bert".to_owned(),
            config: json!({
                "hidden_size": width, "intermediate_size": 4 * width, "num_hidden_layers": layers,
                "num_attention_heads": heads, "vocab_size": 30522,
            }),
            dropout: Some(0.1),
        };
        Ok(match name {
            "t5-small" => t5(512, 1024, 8, 6),
            "t5-base" => t5(768, 2048, 12, 12),
            "t5-large" => t5(1024, 2816, 24, 16),
            "t5-xl" => t5(2048, 5120, 24, 32),
            "bert-base" => bert(768, 12, 12),
            "bert-large" => bert(1024, 24, 16),
            // The defaults of its config are this size; it drops nothing.
            "clip-vit-b-32" => Self { arch: "clip".to_owned(), config: json!({}), dropout: Some(0.0) },
            "mu-sota" => Self { arch: "mu-sota".to_owned(), config: json!({}), dropout: Some(0.1) },
            _ => {
                let message = format!("found {name:?}; allowed: {MODELS}");
                return Err(TrainerError::config("--model", message));
            }
        })
    }
}

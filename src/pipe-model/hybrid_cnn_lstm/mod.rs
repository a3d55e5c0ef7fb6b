//! HybridCNNLSTM: its config.json, and its parameters with names, shapes and initialisation as torch's modules have
//! them.

mod memory;

use serde_json::{Map, Value, json};

use crate::adaptable::Adaptable;
use crate::architecture::{Architecture, ModelConfig, ModelSize, Starter, StarterSizes, StarterTraining, joined};
use crate::config_keys::{ConfigError, ConfigKeys, extended, fail};
use crate::estimate::StepMemory;
use crate::parameter::{Listed, Parameter};
use crate::task_data::{Labels, Scale, TaskData};

#[derive(Clone, Debug, PartialEq)]
pub struct HybridConfig {
    pub input_features: i64,
    pub sequence_length: i64,
    pub conv_channels: Vec<i64>,
    pub kernel_size: i64,
    pub lstm_hidden: i64,
    pub lstm_layers: i64,
    pub bidirectional: bool,
    pub attention_heads: i64,
    pub num_classes: i64,
    pub dropout: f64,
    pub norm: NormKind,
    /// `feature_names`, `feature_mean` and `feature_std` of a model that was trained on series.
    pub scale: Option<Scale>,
    /// Everything that was given, kept for the export.
    given: Map<String, Value>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NormKind {
    /// `layer`: over channels and time of each sample.
    Layer,
    /// `batch`: over samples and time of each channel.
    Batch,
}

impl HybridConfig {
    pub fn read(given: &Map<String, Value>) -> Result<Self, ConfigError> {
        let keys = ConfigKeys(given);
        let config = Self {
            input_features: keys.required_size("input_features")?,
            sequence_length: keys.size("sequence_length")?.unwrap_or(60),
            conv_channels: keys.sizes("conv_channels")?.unwrap_or_else(|| vec![64, 128]),
            kernel_size: keys.size("kernel_size")?.unwrap_or(3),
            lstm_hidden: keys.size("lstm_hidden")?.unwrap_or(128),
            lstm_layers: keys.size("lstm_layers")?.unwrap_or(2),
            bidirectional: keys.truth("bidirectional")?.unwrap_or(true),
            attention_heads: keys.size("attention_heads")?.unwrap_or(4),
            num_classes: keys.required_size("num_classes")?,
            dropout: keys.dropout("dropout")?.unwrap_or(0.1),
            norm: NormKind::parse(keys.text("norm")?.unwrap_or("layer"))?,
            scale: scale(&keys)?,
            given: given.clone(),
        };
        config.check()?;
        Ok(config)
    }

    fn check(&self) -> Result<(), ConfigError> {
        let (width, heads) = (self.width(), self.attention_heads);
        if width % heads != 0 {
            let message =
                format!("found {heads}; allowed: a divisor of the width of the LSTM's output, which is {width}");
            return Err(fail("attention_heads", message));
        }
        if width < 2 {
            return Err(fail(
                "lstm_hidden",
                format!("found {}; allowed: at least 2 in one direction", self.lstm_hidden),
            ));
        }
        let Some(Scale { names, mean, std }) = &self.scale else { return Ok(()) };
        let features = self.input_features as usize;
        for (key, count) in [("feature_names", names.len()), ("feature_mean", mean.len()), ("feature_std", std.len())] {
            if count != features {
                return Err(fail(
                    key,
                    format!("found {count} entries; allowed: one for each of {features} input_features"),
                ));
            }
        }
        if let Some(found) = std.iter().find(|std| **std <= 0.0) {
            return Err(fail("feature_std", format!("found {found}; allowed: numbers above 0")));
        }
        Ok(())
    }

    /// The names of the classes in `id2label`, if it names them all.
    fn names(&self) -> Option<Vec<String>> {
        let names = self.given.get("id2label")?.as_object()?;
        (0..names.len()).map(|number| names.get(&number.to_string())?.as_str().map(str::to_owned)).collect()
    }

    /// Directions that the LSTM reads in.
    pub fn directions(&self) -> i64 {
        if self.bidirectional { 2 } else { 1 }
    }

    /// The width of the LSTM's output.
    pub fn width(&self) -> i64 {
        self.lstm_hidden * self.directions()
    }

    /// config.json: what was given, with every default filled in.
    pub fn export(&self) -> Map<String, Value> {
        let filled = json!({
            "architectures": ["HybridCNNLSTM"],
            "model_type": "hybrid_cnn_lstm",
            "input_features": self.input_features,
            "sequence_length": self.sequence_length,
            "conv_channels": self.conv_channels,
            "kernel_size": self.kernel_size,
            "lstm_hidden": self.lstm_hidden,
            "lstm_layers": self.lstm_layers,
            "bidirectional": self.bidirectional,
            "attention_heads": self.attention_heads,
            "num_classes": self.num_classes,
            "dropout": self.dropout,
            "norm": match self.norm {
                NormKind::Layer => "layer",
                NormKind::Batch => "batch",
            },
        });
        extended(&self.given, filled)
    }
}

/// All three keys, or none.
fn scale(keys: &ConfigKeys<'_>) -> Result<Option<Scale>, ConfigError> {
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let names = keys.list("feature_names", "a list of texts", text)?;
    let number = |key: &str| keys.list(key, "a list of numbers", Value::as_f64);
    Ok(match (names, number("feature_mean")?, number("feature_std")?) {
        (Some(names), Some(mean), Some(std)) => Some(Scale { names, mean, std }),
        _ => None,
    })
}

impl NormKind {
    fn parse(name: &str) -> Result<Self, ConfigError> {
        match name {
            "layer" => Ok(Self::Layer),
            "batch" => Ok(Self::Batch),
            _ => {
                let message = format!("found {name:?}; allowed: layer, batch");
                Err(ConfigError { key: "norm".to_owned(), message })
            }
        }
    }
}

pub const ARCHITECTURE: Architecture = Architecture {
    read: |config| Ok(Box::new(HybridConfig::read(config)?)),
    starter: Starter {
        fine_tuning: StarterTraining { lr: 1.0e-4, epochs: 5, steps: 100 },
        scratch: StarterTraining { lr: 1.0e-3, epochs: 5, steps: 400 },
        base_lr: 1.0e-4,
        effective_batch: 256,
        schedule: "cosine",
        hub: None,
        vocabulary: 0,
        config,
    },
    tokenization: None,
    in_transformers: false,
    generation_keys: &[],
    adapts: Adaptable::NONE,
};

fn config(StarterSizes { model, features, window, classes, .. }: &StarterSizes) -> Map<String, Value> {
    let (channels, hidden, layers) = match model {
        ModelSize::Small => ([32, 32], 32, 1),
        ModelSize::Medium => ([64, 64], 96, 2),
        ModelSize::Base => ([64, 128], 256, 2),
    };
    joined([json!({
        "input_features": features, "num_classes": classes, "sequence_length": window, "conv_channels": channels,
        "kernel_size": 3, "lstm_hidden": hidden, "lstm_layers": layers, "bidirectional": true, "attention_heads": 4,
        "dropout": 0.1, "norm": "layer",
    })])
}

impl ModelConfig for HybridConfig {
    fn parameters(&self) -> Vec<Parameter> {
        parameters(self)
    }

    fn task_data(&self, _: Option<Labels>) -> TaskData {
        TaskData::TimeSeries {
            features: self.input_features,
            sequence_length: self.sequence_length,
            classes: self.num_classes,
            names: self.names(),
            scale: self.scale.clone(),
        }
    }

    fn drops(&self) -> bool {
        self.dropout > 0.0
    }

    fn step_memory(&self) -> Option<&dyn StepMemory> {
        Some(self)
    }
}

pub fn parameters(config: &HybridConfig) -> Vec<Parameter> {
    let mut list = Listed::default();
    let mut input = config.input_features;
    for (index, channels) in config.conv_channels.iter().copied().enumerate() {
        let inputs = input * config.kernel_size;
        list.uniform(&format!("conv.{index}.weight"), &[channels, input, config.kernel_size], inputs);
        list.uniform(&format!("conv.{index}.bias"), &[channels], inputs);
        input = channels;
    }
    for (index, channels) in config.conv_channels.iter().copied().enumerate() {
        let path = format!("norm.{index}");
        match config.norm {
            NormKind::Layer => list.norm(&path, channels),
            NormKind::Batch => list.batch_norm(&path, channels),
        }
    }
    lstm(&mut list, config, input);
    let width = config.width();
    list.torch_linear("attn.qkv", 3 * width, width);
    list.torch_linear("attn.out", width, width);
    list.norm("attn_norm", width);
    list.torch_linear("head.0", width / 2, width);
    list.torch_linear("head.1", config.num_classes, width / 2);
    list.counts_first()
}

/// The suffixes that torch gives an LSTM's parameters, layer by layer and direction by direction.
pub fn lstm_suffixes(config: &HybridConfig) -> Vec<String> {
    let directions: &[&str] = if config.bidirectional { &["", "_reverse"] } else { &[""] };
    (0..config.lstm_layers)
        .flat_map(|layer| directions.iter().map(move |direction| format!("l{layer}{direction}")))
        .collect()
}

fn lstm(list: &mut Listed, config: &HybridConfig, input: i64) {
    let hidden = config.lstm_hidden;
    for suffix in lstm_suffixes(config) {
        let input = if suffix.starts_with("l0") { input } else { config.width() };
        list.uniform(&format!("lstm.weight_ih_{suffix}"), &[4 * hidden, input], hidden);
        list.uniform(&format!("lstm.weight_hh_{suffix}"), &[4 * hidden, hidden], hidden);
        list.uniform(&format!("lstm.bias_ih_{suffix}"), &[4 * hidden], hidden);
        list.uniform(&format!("lstm.bias_hh_{suffix}"), &[4 * hidden], hidden);
    }
}

#[cfg(test)]
mod tests {
    use pipe_spec::Variables;
    use pipe_spec::pipeline::{Engines, Pipeline};

    use super::*;

    fn read(config: Value) -> Result<HybridConfig, ConfigError> {
        HybridConfig::read(config.as_object().unwrap())
    }

    #[test]
    fn a_wrong_key_is_named() {
        let with = |key: &str, value: Value| {
            let mut config = json!({"input_features": 6, "num_classes": 3, "lstm_hidden": 12});
            config[key] = value;
            config
        };
        let cases = [
            (json!({"num_classes": 3}), "input_features: missing"),
            (json!({"input_features": 3}), "num_classes: missing"),
            (
                with("conv_channels", json!([8, 0])),
                "conv_channels: found [8,0]; allowed: a list of whole numbers above 0",
            ),
            (with("conv_channels", json!(8)), "conv_channels: found 8"),
            (with("attention_heads", json!(5)), "attention_heads: found 5; allowed: a divisor"),
            (with("kernel_size", json!(0)), "kernel_size: found 0"),
            (with("norm", json!("group")), "norm: found \"group\"; allowed: layer, batch"),
            (with("dropout", json!(1.0)), "dropout: found 1"),
            (
                json!({
                    "input_features": 1, "num_classes": 3, "feature_names": ["a"], "feature_mean": [0], "feature_std": [1, 2],
                }),
                "feature_std: found 2 entries; allowed: one for each of 1 input_features",
            ),
            (with("feature_mean", json!(["x"])), "feature_mean: found [\"x\"]; allowed: a list of numbers"),
        ];
        for (given, want) in cases {
            let error = read(given).unwrap_err().to_string();
            assert!(error.contains(want), "{error}");
        }
    }

    #[test]
    fn the_export_reads_back_and_keeps_what_it_does_not_know() {
        let config =
            read(json!({"input_features": 6, "num_classes": 2, "feature_mean": [0.5], "norm": "batch"})).unwrap();
        let export = config.export();
        assert_eq!((&export["feature_mean"], &export["sequence_length"]), (&json!([0.5]), &json!(60)));
        let again = HybridConfig::read(&export).unwrap();
        assert_eq!(HybridConfig { given: config.given.clone(), ..again }, config);
    }

    #[test]
    fn names_of_classes_are_those_that_were_trained() {
        let names = |id2label: Value| {
            let config = read(json!({"input_features": 1, "num_classes": 2, "id2label": id2label})).unwrap();
            config.names()
        };
        assert_eq!(names(json!({"1": "up", "0": "down"})), Some(vec!["down".to_owned(), "up".to_owned()]));
        assert_eq!((names(json!({"1": "up"})), names(json!(null))), (None, None));
    }

    #[test]
    fn the_model_of_the_pipeline_has_500_megabytes() {
        let file = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../pipelines/hybrid-cnn-lstm.yaml");
        let text = std::fs::read_to_string(file).unwrap();
        let pipeline = Pipeline::parse(&text, &[], &Variables::new(None, std::iter::empty()), Engines::NONE).unwrap();
        let config = HybridConfig::read(&pipeline.training().unwrap().model.config.clone().unwrap()).unwrap();
        let count: i64 = parameters(&config).iter().map(|parameter| parameter.shape.iter().product::<i64>()).sum();
        // 497 MB in fp32.
        assert_eq!(count, 124_259_139);
    }
}

//! CLIP: config.json with keys and defaults as in Hugging Face's `CLIPConfig`, `CLIPTextConfig` and `CLIPVisionConfig`.
//!
//! CLIP's parameters: names and shapes as in Hugging Face's files, beginnings as in its `_init_weights`.

pub(crate) mod memory;

use serde_json::{Map, Value, json};

use crate::adaptable::Adaptable;
use crate::architecture::{
    Algorithm, Architecture, ModelConfig, ModelSize, Starter, StarterSizes, StarterTraining, Template, Tokenization,
    TrainedTokenizer, VocabularyFormat, joined,
};
use crate::config_keys::{Activation, ConfigError, ConfigKeys, extended, fail};
use crate::estimate::StepMemory;
use crate::parameter::{Init, Listed, Parameter};
use crate::task_data::{Labels, TaskData};

#[derive(Clone, Debug, PartialEq)]
pub struct ClipConfig {
    pub text_config: TextConfig,
    pub vision_config: VisionConfig,
    pub projection_dim: i64,
    pub logit_scale_init_value: f64,
    pub initializer_factor: f64,
    /// Everything that was given, kept for the export.
    given: Map<String, Value>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct TextConfig {
    pub tower: TowerConfig,
    pub vocab_size: i64,
    pub max_position_embeddings: i64,
    pub pad_token_id: i64,
    pub eos_token_id: i64,
}

#[derive(Clone, Debug, PartialEq)]
pub struct VisionConfig {
    pub tower: TowerConfig,
    pub num_channels: i64,
    pub image_size: i64,
    pub patch_size: i64,
}

/// The keys that both towers have.
#[derive(Clone, Debug, PartialEq)]
pub struct TowerConfig {
    pub hidden_size: i64,
    pub intermediate_size: i64,
    pub num_hidden_layers: i64,
    pub num_attention_heads: i64,
    pub activation: Activation,
    pub layer_norm_eps: f64,
    pub attention_dropout: f64,
    pub initializer_range: f64,
    pub initializer_factor: f64,
    /// All keys that were given for it, kept for the export.
    pub(crate) given: Map<String, Value>,
}

/// The sizes of a tower that its config leaves out: those of ViT-B/32.
struct Sizes {
    hidden_size: i64,
    intermediate_size: i64,
    num_attention_heads: i64,
}

impl ClipConfig {
    pub fn read(given: &Map<String, Value>) -> Result<Self, ConfigError> {
        let keys = ConfigKeys(given);
        Ok(Self {
            text_config: tower(given, "text_config", TextConfig::read)?,
            vision_config: tower(given, "vision_config", VisionConfig::read)?,
            projection_dim: keys.size("projection_dim")?.unwrap_or(512),
            logit_scale_init_value: keys.number("logit_scale_init_value")?.unwrap_or(2.6592),
            initializer_factor: keys.number("initializer_factor")?.unwrap_or(1.0),
            given: given.clone(),
        })
    }

    /// config.json for transformers: what was given, with every default filled in.
    pub fn export(&self) -> Map<String, Value> {
        let filled = json!({
            "architectures": ["CLIPModel"],
            "model_type": "clip",
            "projection_dim": self.projection_dim,
            "logit_scale_init_value": self.logit_scale_init_value,
            "initializer_factor": self.initializer_factor,
            "text_config": self.text_config.export(),
            "vision_config": self.vision_config.export(),
        });
        let mut config = extended(&self.given, filled);
        // Their keys are in `text_config` and `vision_config` now.
        config.retain(|key, _| !["text_config_dict", "vision_config_dict"].contains(&key.as_str()));
        config
    }
}

impl TextConfig {
    /// Old checkpoints say that a text ends with token 2, which was wrong: theirs end with the greatest token.
    const WRONG_EOS: i64 = 2;

    fn read(given: &Map<String, Value>) -> Result<Self, ConfigError> {
        let keys = ConfigKeys(given);
        let sizes = Sizes { hidden_size: 512, intermediate_size: 2048, num_attention_heads: 8 };
        let config = Self {
            tower: TowerConfig::read(given, &sizes)?,
            vocab_size: keys.size("vocab_size")?.unwrap_or(49408),
            max_position_embeddings: keys.size("max_position_embeddings")?.unwrap_or(77),
            pad_token_id: keys.whole("pad_token_id")?.unwrap_or(1),
            eos_token_id: keys.whole("eos_token_id")?.unwrap_or(49407),
        };
        if config.pad_token_id >= config.vocab_size {
            let message =
                format!("found {}; allowed: below vocab_size, which is {}", config.pad_token_id, config.vocab_size);
            return Err(fail("pad_token_id", message));
        }
        Ok(config)
    }

    /// The token whose first position stands for the whole text; absent where it is the greatest of each text.
    pub fn end(&self) -> Option<i64> {
        Some(self.eos_token_id).filter(|token| *token != Self::WRONG_EOS)
    }

    fn export(&self) -> Map<String, Value> {
        let filled = json!({
            "model_type": "clip_text_model",
            "vocab_size": self.vocab_size,
            "max_position_embeddings": self.max_position_embeddings,
            "pad_token_id": self.pad_token_id,
            "eos_token_id": self.eos_token_id,
        });
        extended(&self.tower.export(), filled)
    }
}

impl VisionConfig {
    fn read(given: &Map<String, Value>) -> Result<Self, ConfigError> {
        let keys = ConfigKeys(given);
        let sizes = Sizes { hidden_size: 768, intermediate_size: 3072, num_attention_heads: 12 };
        let config = Self {
            tower: TowerConfig::read(given, &sizes)?,
            num_channels: keys.size("num_channels")?.unwrap_or(3),
            image_size: keys.size("image_size")?.unwrap_or(224),
            patch_size: keys.size("patch_size")?.unwrap_or(32),
        };
        config.check()?;
        Ok(config)
    }

    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        if self.patch_size > self.image_size {
            let message =
                format!("found {}; allowed: at most image_size, which is {}", self.patch_size, self.image_size);
            return Err(fail("patch_size", message));
        }
        self.tower.check()
    }

    /// The class and every whole patch of a picture.
    pub fn positions(&self) -> i64 {
        (self.image_size / self.patch_size).pow(2) + 1
    }

    fn export(&self) -> Map<String, Value> {
        let filled = json!({
            "model_type": "clip_vision_model",
            "num_channels": self.num_channels,
            "image_size": self.image_size,
            "patch_size": self.patch_size,
        });
        extended(&self.tower.export(), filled)
    }
}

impl TowerConfig {
    pub fn head_width(&self) -> i64 {
        self.hidden_size / self.num_attention_heads
    }

    fn read(given: &Map<String, Value>, sizes: &Sizes) -> Result<Self, ConfigError> {
        let keys = ConfigKeys(given);
        let config = Self {
            hidden_size: keys.size("hidden_size")?.unwrap_or(sizes.hidden_size),
            intermediate_size: keys.size("intermediate_size")?.unwrap_or(sizes.intermediate_size),
            num_hidden_layers: keys.size("num_hidden_layers")?.unwrap_or(12),
            num_attention_heads: keys.size("num_attention_heads")?.unwrap_or(sizes.num_attention_heads),
            activation: Activation::parse("hidden_act", keys.text("hidden_act")?.unwrap_or("quick_gelu"))?,
            layer_norm_eps: keys.number("layer_norm_eps")?.unwrap_or(1e-5),
            attention_dropout: keys.dropout("attention_dropout")?.unwrap_or(0.0),
            initializer_range: keys.number("initializer_range")?.unwrap_or(0.02),
            initializer_factor: keys.number("initializer_factor")?.unwrap_or(1.0),
            given: given.clone(),
        };
        config.check()?;
        Ok(config)
    }

    fn check(&self) -> Result<(), ConfigError> {
        if self.hidden_size % self.num_attention_heads != 0 {
            let message = format!(
                "found {}; allowed: a multiple of num_attention_heads, which is {}",
                self.hidden_size, self.num_attention_heads
            );
            return Err(fail("hidden_size", message));
        }
        Ok(())
    }

    fn export(&self) -> Map<String, Value> {
        let filled = json!({
            "hidden_size": self.hidden_size,
            "intermediate_size": self.intermediate_size,
            "num_hidden_layers": self.num_hidden_layers,
            "num_attention_heads": self.num_attention_heads,
            "hidden_act": self.given.get("hidden_act").cloned().unwrap_or_else(|| json!("quick_gelu")),
            "layer_norm_eps": self.layer_norm_eps,
            "attention_dropout": self.attention_dropout,
            "initializer_range": self.initializer_range,
            "initializer_factor": self.initializer_factor,
        });
        extended(&self.given, filled)
    }
}

/// The config of one tower; its keys are named with it. Where old files say it twice, `<name>_dict` counts alone, as in
/// transformers.
fn tower<T>(
    given: &Map<String, Value>,
    name: &str,
    read: fn(&Map<String, Value>) -> Result<T, ConfigError>,
) -> Result<T, ConfigError> {
    let old = format!("{name}_dict");
    let (name, keys) = match (given.get(&old), given.get(name)) {
        (Some(Value::Object(keys)), _) => (old.as_str(), keys.clone()),
        (None | Some(Value::Null), None | Some(Value::Null)) => (name, Map::new()),
        (None | Some(Value::Null), Some(Value::Object(keys))) => (name, keys.clone()),
        (None | Some(Value::Null), Some(other)) | (Some(other), _) => {
            let message = format!("found {other}; allowed: an object");
            return Err(fail(name, message));
        }
    };
    read(&keys).map_err(|ConfigError { key, message }| ConfigError { key: format!("{name}.{key}"), message })
}

pub const ARCHITECTURE: Architecture = Architecture {
    read: |config| Ok(Box::new(ClipConfig::read(config)?)),
    starter: Starter {
        fine_tuning: StarterTraining { lr: 1.0e-5, epochs: 5, steps: 100 },
        scratch: StarterTraining { lr: 1.0e-3, epochs: 10, steps: 300 },
        base_lr: 5.0e-4,
        effective_batch: 128,
        schedule: "cosine",
        hub: Some("openai/clip-vit-base-patch32"),
        vocabulary: 49_408,
        config,
    },
    tokenization: Some(Tokenization {
        vocabulary: Some(VocabularyFormat::Clip),
        trained: TrainedTokenizer {
            algorithm: Algorithm::WordEndBpe,
            special: &["<|startoftext|>", "<|endoftext|>"],
            template: Template::Enclosed { start: "<|startoftext|>", end: "<|endoftext|>" },
        },
        token_types: false,
        reserved_positions: 0,
    }),
    in_transformers: true,
    generation_keys: &[],
    adapts: Adaptable::named(&[
        "q_proj",
        "k_proj",
        "v_proj",
        "out_proj",
        "fc1",
        "fc2",
        "visual_projection",
        "text_projection",
    ]),
};

fn config(sizes: &StarterSizes) -> Map<String, Value> {
    let (projection, image, patch) = match sizes.model {
        ModelSize::Small => (64, 64, 8),
        ModelSize::Medium => (256, 128, 16),
        ModelSize::Base => (512, 224, 32),
    };
    let (text, vision) = match sizes.model {
        ModelSize::Small => (tower_sizes(128, 2), tower_sizes(128, 2)),
        ModelSize::Medium => (tower_sizes(256, 4), tower_sizes(256, 6)),
        ModelSize::Base => (tower_sizes(512, 12), tower_sizes(768, 12)),
    };
    let ends = json!({
        "max_position_embeddings": 77, "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 1,
    });
    joined([json!({
        "projection_dim": projection,
        "text_config": joined([json!({ "vocab_size": sizes.vocabulary }), text, ends]),
        "vision_config": joined([vision, json!({ "image_size": image, "patch_size": patch })]),
    })])
}

/// Heads are 64 wide.
fn tower_sizes(hidden: u32, layers: u32) -> Value {
    json!({
        "hidden_size": hidden, "intermediate_size": 4 * hidden, "num_hidden_layers": layers,
        "num_attention_heads": hidden / 64,
    })
}

impl ModelConfig for ClipConfig {
    fn parameters(&self) -> Vec<Parameter> {
        parameters(self)
    }

    fn task_data(&self, _: Option<Labels>) -> TaskData {
        let TextConfig { vocab_size, max_position_embeddings, pad_token_id, .. } = self.text_config;
        TaskData::Contrastive {
            vocab_size: vocab_size as u64,
            pad_token_id,
            eos_token_id: self.text_config.end(),
            max_length: max_position_embeddings as u32,
            num_channels: self.vision_config.num_channels,
            image_size: self.vision_config.image_size,
        }
    }

    fn drops(&self) -> bool {
        self.text_config.tower.attention_dropout.max(self.vision_config.tower.attention_dropout) > 0.0
    }

    fn head_width(&self) -> Option<i64> {
        Some(self.text_config.tower.head_width())
    }

    fn step_memory(&self) -> Option<&dyn StepMemory> {
        Some(self)
    }
}

/// Every parameter in transformers' order.
pub fn parameters(config: &ClipConfig) -> Vec<Parameter> {
    let ClipConfig { text_config, vision_config, projection_dim, .. } = config;
    let (text, vision) = (&text_config.tower, &vision_config.tower);
    let mut list = Listed::default();
    list.push("logit_scale", &[], Init::Constant(config.logit_scale_init_value));

    let width = text.hidden_size;
    let std = text.initializer_factor * 0.02;
    list.push("text_model.embeddings.token_embedding.weight", &[text_config.vocab_size, width], Init::Normal { std });
    let positions = text_config.max_position_embeddings;
    list.push("text_model.embeddings.position_embedding.weight", &[positions, width], Init::Normal { std });
    layers(&mut list, "text_model.encoder.layers", text);
    list.norm("text_model.final_layer_norm", width);

    let width = vision.hidden_size;
    let std = vision.initializer_factor * root(width);
    list.push("vision_model.embeddings.class_embedding", &[width], Init::Normal { std });
    let std = vision.initializer_factor * vision.initializer_range;
    let patch = [width, vision_config.num_channels, vision_config.patch_size, vision_config.patch_size];
    list.push("vision_model.embeddings.patch_embedding.weight", &patch, Init::Normal { std });
    list.push(
        "vision_model.embeddings.position_embedding.weight",
        &[vision_config.positions(), width],
        Init::Normal { std },
    );
    // Spelled so in every file.
    list.norm("vision_model.pre_layrnorm", width);
    layers(&mut list, "vision_model.encoder.layers", vision);
    list.norm("vision_model.post_layernorm", width);

    for (name, width) in [("visual_projection", vision.hidden_size), ("text_projection", text.hidden_size)] {
        let std = config.initializer_factor * root(width);
        list.push(&format!("{name}.weight"), &[*projection_dim, width], Init::Normal { std });
    }
    list.0
}

fn layers(list: &mut Listed, path: &str, tower: &TowerConfig) {
    let TowerConfig { hidden_size: width, intermediate_size: inner, initializer_factor: factor, .. } = *tower;
    let narrow = factor * root(width) * root(2 * tower.num_hidden_layers);
    for layer in 0..tower.num_hidden_layers {
        let path = format!("{path}.{layer}");
        for name in ["k_proj", "v_proj", "q_proj"] {
            list.linear(&format!("{path}.self_attn.{name}"), &[width, width], Init::Normal { std: narrow });
        }
        list.linear(&format!("{path}.self_attn.out_proj"), &[width, width], Init::Normal { std: factor * root(width) });
        list.norm(&format!("{path}.layer_norm1"), width);
        list.linear(&format!("{path}.mlp.fc1"), &[inner, width], Init::Normal { std: factor * root(2 * width) });
        list.linear(&format!("{path}.mlp.fc2"), &[width, inner], Init::Normal { std: narrow });
        list.norm(&format!("{path}.layer_norm2"), width);
    }
}

/// size^-0.5
fn root(size: i64) -> f64 {
    (size as f64).powf(-0.5)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(config: Value) -> Result<ClipConfig, ConfigError> {
        ClipConfig::read(config.as_object().unwrap())
    }

    #[test]
    fn what_is_not_said_is_vit_b_32() {
        let config = read(json!({})).unwrap();
        assert_eq!((config.text_config.tower.hidden_size, config.vision_config.tower.hidden_size), (512, 768));
        assert_eq!((config.vision_config.positions(), config.text_config.end()), (50, Some(49407)));
        assert_eq!(
            read(json!({"text_config": null, "vision_config": {}})).unwrap().vision_config,
            config.vision_config
        );
    }

    #[test]
    fn old_files_say_towers_twice_and_ends_wrong() {
        let config = read(json!({
            "text_config": {"hidden_size": 64, "vocab_size": 100, "eos_token_id": 2},
            "text_config_dict": {"hidden_size": 72, "num_attention_heads": 6},
            "vision_config_dict": null,
        }));
        let text = config.unwrap().text_config;
        assert_eq!((text.tower.hidden_size, text.vocab_size, text.end()), (72, 49408, Some(49407)));
        assert_eq!(read(json!({"text_config": {"eos_token_id": 2}})).unwrap().text_config.end(), None);
    }

    #[test]
    fn the_export_keeps_what_was_given_and_reads_the_same() {
        let given = json!({
            "mine": 1, "projection_dim": 24, "text_config": {"hidden_act": "gelu", "bos_token_id": 7},
            "vision_config_dict": {"patch_size": 16, "yours": 2},
        });
        let config = read(given).unwrap();
        let export = config.export();
        assert_eq!((&export["mine"], &export["text_config"]["bos_token_id"]), (&json!(1), &json!(7)));
        assert_eq!((&export["vision_config"]["yours"], export.get("vision_config_dict")), (&json!(2), None));
        let again = ClipConfig::read(&export).unwrap();
        assert_eq!(again.export(), export);
        assert_eq!((again.vision_config.patch_size, again.text_config.tower.activation), (16, Activation::Gelu));
    }

    #[test]
    fn a_wrong_key_is_named_with_its_tower() {
        let cases = [
            (json!({"text_config": 5}), "text_config: found 5; allowed: an object"),
            (json!({"text_config": {"hidden_size": 0}}), "text_config.hidden_size: found 0"),
            (json!({"text_config": {"hidden_size": 50}}), "text_config.hidden_size: found 50; allowed: a multiple of"),
            (json!({"text_config": {"vocab_size": 4, "pad_token_id": 9}}), "text_config.pad_token_id: found 9"),
            (json!({"vision_config": {"hidden_act": "sine"}}), "vision_config.hidden_act: found \"sine\""),
            (json!({"vision_config": {"attention_dropout": 1}}), "vision_config.attention_dropout: found 1"),
            (json!({"vision_config": {"image_size": 16}}), "vision_config.patch_size: found 32"),
            (json!({"vision_config": {"image_size": [16, 16]}}), "vision_config.image_size: found [16,16]"),
        ];
        for (given, want) in cases {
            let error = read(given).unwrap_err().to_string();
            assert!(error.contains(want), "{error}");
        }
    }
}

#[cfg(test)]
mod parameters_tests {
    use serde_json::{Value, json};

    use super::*;

    fn of(config: Value) -> Vec<Parameter> {
        parameters(&ClipConfig::read(config.as_object().unwrap()).unwrap())
    }

    #[test]
    fn the_published_models_have_their_sizes() {
        let count = |config| of(config).iter().map(|p| p.shape.iter().product::<i64>()).sum::<i64>();
        assert_eq!(count(json!({})), 151_277_313);
        assert_eq!(count(json!({"vision_config": {"patch_size": 16}})), 149_620_737);
    }

    /// Standard deviations that transformers 5 gives a model of these sizes, read off its `_init_weights`.
    #[test]
    fn beginnings_are_those_of_transformers() {
        let list = of(json!({
            "initializer_factor": 3.0, "projection_dim": 5,
            "text_config": {"hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 2},
            "vision_config": {
                "hidden_size": 16, "num_attention_heads": 2, "num_hidden_layers": 8, "initializer_factor": 2.0,
                "initializer_range": 0.5,
            },
        }));
        let cases = [
            ("logit_scale", Init::Constant(2.6592)),
            ("text_model.embeddings.token_embedding.weight", Init::Normal { std: 0.02 }),
            ("text_model.encoder.layers.1.self_attn.q_proj.weight", Init::Normal { std: 0.0625 }),
            ("text_model.encoder.layers.1.self_attn.q_proj.bias", Init::Constant(0.0)),
            ("text_model.encoder.layers.1.self_attn.out_proj.weight", Init::Normal { std: 0.125 }),
            ("text_model.final_layer_norm.weight", Init::Constant(1.0)),
            ("vision_model.embeddings.class_embedding", Init::Normal { std: 0.5 }),
            ("vision_model.embeddings.patch_embedding.weight", Init::Normal { std: 1.0 }),
            ("vision_model.encoder.layers.7.mlp.fc1.weight", Init::Normal { std: 2.0 * 32f64.powf(-0.5) }),
            ("vision_model.encoder.layers.7.mlp.fc2.weight", Init::Normal { std: 0.125 }),
            ("visual_projection.weight", Init::Normal { std: 0.75 }),
            ("text_projection.weight", Init::Normal { std: 0.375 }),
        ];
        for (name, init) in cases {
            assert_eq!(list.iter().find(|parameter| parameter.name == name).map(|p| p.init), Some(init), "{name}");
        }
    }
}

//! ViT: config.json with keys and defaults as in Hugging Face's `ViTConfig`, parameters as in its `ViTForImageClassification`, and
//! the memory of a step. Its layers are those of CLIP's vision tower, under other names.

use serde_json::{Map, Value, json};

use crate::adaptable::Adaptable;
use crate::architecture::{
    Architecture, ModelConfig, ModelSize, Starter, StarterSizes, StarterTraining, encoder, joined,
};
use crate::clip::memory::{Layers, input, patches};
use crate::clip::{TowerConfig, VisionConfig};
use crate::config_keys::{Activation, ConfigError, ConfigKeys, extended};
use crate::estimate::{Stage, StepMemory, Work};
use crate::parameter::{Init, Listed, Parameter};
use crate::task_data::{Labels, TaskData};

#[derive(Clone, Debug, PartialEq)]
pub struct VitConfig {
    /// Sizes, and the dropout of attention weights.
    pub vision: VisionConfig,
    pub hidden_dropout_prob: f64,
    pub qkv_bias: bool,
    pub labels: Labels,
    /// Everything that was given, kept for the export.
    given: Map<String, Value>,
}

impl VitConfig {
    pub fn read(given: &Map<String, Value>) -> Result<Self, ConfigError> {
        let keys = ConfigKeys(given);
        let tower = TowerConfig {
            hidden_size: keys.size("hidden_size")?.unwrap_or(768),
            intermediate_size: keys.size("intermediate_size")?.unwrap_or(3072),
            num_hidden_layers: keys.size("num_hidden_layers")?.unwrap_or(12),
            num_attention_heads: keys.size("num_attention_heads")?.unwrap_or(12),
            activation: Activation::parse("hidden_act", keys.text("hidden_act")?.unwrap_or("gelu"))?,
            layer_norm_eps: keys.number("layer_norm_eps")?.unwrap_or(1e-12),
            attention_dropout: keys.dropout("attention_probs_dropout_prob")?.unwrap_or(0.0),
            initializer_range: keys.number("initializer_range")?.unwrap_or(0.02),
            initializer_factor: 1.0,
            given: Map::new(),
        };
        let vision = VisionConfig {
            tower,
            num_channels: keys.size("num_channels")?.unwrap_or(3),
            image_size: keys.size("image_size")?.unwrap_or(224),
            patch_size: keys.size("patch_size")?.unwrap_or(16),
        };
        vision.check()?;
        Ok(Self {
            vision,
            hidden_dropout_prob: keys.dropout("hidden_dropout_prob")?.unwrap_or(0.0),
            qkv_bias: keys.truth("qkv_bias")?.unwrap_or(true),
            labels: Labels::read(given)?.unwrap_or_default(),
            given: given.clone(),
        })
    }

    /// config.json for transformers: what was given, with every default filled in.
    pub fn export(&self) -> Map<String, Value> {
        let VisionConfig { tower, num_channels, image_size, patch_size } = &self.vision;
        let filled = json!({
            "architectures": ["ViTForImageClassification"],
            "model_type": "vit",
            "hidden_size": tower.hidden_size,
            "intermediate_size": tower.intermediate_size,
            "num_hidden_layers": tower.num_hidden_layers,
            "num_attention_heads": tower.num_attention_heads,
            "hidden_act": self.given.get("hidden_act").filter(|name| !name.is_null()).cloned().unwrap_or(json!("gelu")),
            "layer_norm_eps": tower.layer_norm_eps,
            "attention_probs_dropout_prob": tower.attention_dropout,
            "hidden_dropout_prob": self.hidden_dropout_prob,
            "initializer_range": tower.initializer_range,
            "num_channels": num_channels,
            "image_size": image_size,
            "patch_size": patch_size,
            "qkv_bias": self.qkv_bias,
        });
        let mut config = extended(&self.given, filled);
        self.labels.export(&mut config);
        config
    }
}

pub const ARCHITECTURE: Architecture = Architecture {
    read: |config| Ok(Box::new(VitConfig::read(config)?)),
    starter: Starter {
        fine_tuning: StarterTraining { lr: 5.0e-5, epochs: 3, steps: 100 },
        scratch: StarterTraining { lr: 1.0e-3, epochs: 20, steps: 1000 },
        base_lr: 3.0e-4,
        effective_batch: 32,
        schedule: "cosine",
        hub: Some("google/vit-base-patch16-224-in21k"),
        vocabulary: 0,
        config: |sizes: &StarterSizes| {
            let (image, patch) = match sizes.model {
                ModelSize::Small => (64, 8),
                ModelSize::Medium => (128, 16),
                ModelSize::Base => (224, 16),
            };
            joined([encoder(sizes.model), json!({ "image_size": image, "patch_size": patch })])
        },
    },
    tokenization: None,
    in_transformers: true,
    generation_keys: &[],
    adapts: Adaptable {
        names: &["k_proj", "v_proj", "q_proj", "o_proj", "fc1", "fc2"],
        // Since transformers 5.22.
        renamed: &[
            ("encoder.layer", "layers"),
            ("attention.attention.query", "attention.q_proj"),
            ("attention.attention.key", "attention.k_proj"),
            ("attention.attention.value", "attention.v_proj"),
            ("attention.output.dense", "attention.o_proj"),
            ("intermediate.dense", "mlp.fc1"),
            ("output.dense", "mlp.fc2"),
        ],
    },
};

impl ModelConfig for VitConfig {
    fn parameters(&self) -> Vec<Parameter> {
        parameters(self)
    }

    fn task_data(&self, labels: Option<Labels>) -> TaskData {
        let VisionConfig { num_channels, image_size, .. } = self.vision;
        TaskData::PictureClasses { num_channels, image_size: Some(image_size), labels }
    }

    fn head(&self) -> Option<&'static str> {
        Some("classifier.weight")
    }

    fn drops(&self) -> bool {
        self.hidden_dropout_prob.max(self.vision.tower.attention_dropout) > 0.0
    }

    fn head_width(&self) -> Option<i64> {
        Some(self.vision.tower.head_width())
    }

    fn step_memory(&self) -> Option<&dyn StepMemory> {
        Some(self)
    }
}

/// Every parameter. The encoder must be in a checkpoint; the head may be newly initialised. A file of the encoder alone leaves out
/// its prefix.
pub fn parameters(config: &VitConfig) -> Vec<Parameter> {
    let VisionConfig { tower, num_channels, patch_size, .. } = &config.vision;
    let TowerConfig { hidden_size: width, intermediate_size: inner, .. } = *tower;
    let init = Init::Normal { std: tower.initializer_range };
    let mut list = Listed::default();
    list.push("vit.embeddings.cls_token", &[1, 1, width], init);
    list.push("vit.embeddings.position_embeddings", &[1, config.vision.positions(), width], init);
    let projection = "vit.embeddings.patch_embeddings.projection";
    list.push(&format!("{projection}.weight"), &[width, *num_channels, *patch_size, *patch_size], init);
    list.push(&format!("{projection}.bias"), &[width], Init::Constant(0.0));
    for layer in 0..tower.num_hidden_layers {
        let path = format!("vit.encoder.layer.{layer}");
        for name in ["query", "key", "value"] {
            let path = format!("{path}.attention.attention.{name}");
            match config.qkv_bias {
                true => list.linear(&path, &[width, width], init),
                false => list.push(&format!("{path}.weight"), &[width, width], init),
            }
        }
        list.linear(&format!("{path}.attention.output.dense"), &[width, width], init);
        list.linear(&format!("{path}.intermediate.dense"), &[inner, width], init);
        list.linear(&format!("{path}.output.dense"), &[width, inner], init);
        list.norm(&format!("{path}.layernorm_before"), width);
        list.norm(&format!("{path}.layernorm_after"), width);
    }
    list.norm("vit.layernorm", width);
    for parameter in &mut list.0 {
        parameter.aliases.extend(parameter.name.strip_prefix("vit.").map(str::to_owned));
    }
    let encoder = list.0.len();
    list.linear("classifier", &[config.labels.count(), width], init);
    list.0[encoder..].iter_mut().for_each(|parameter| parameter.may_be_missing = true);
    list.0
}

impl StepMemory for VitConfig {
    fn stages(&self, work: &Work) -> Vec<Stage> {
        let layers = Layers::of(&self.vision.tower, work, self.vision.positions() as u128, false);
        let labels = self.labels.count() as u128;
        let mut stages = vec![input(&self.vision, 0, work), patches(&self.vision, &layers, work)];
        stages.extend(layers.stages("vision"));
        stages.push(layers.projection("classifier", |width| width * labels, labels));
        stages
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(config: Value) -> Result<VitConfig, ConfigError> {
        VitConfig::read(config.as_object().unwrap())
    }

    #[test]
    fn the_published_model_has_its_size() {
        let count = |config: Value| parameters(&read(config).unwrap()).iter().map(Parameter::count).sum::<u64>();
        assert_eq!(count(json!({"num_labels": 1000})), 86_567_656);
    }

    #[test]
    fn a_wrong_key_is_named() {
        let cases = [
            (json!({"hidden_size": 50}), "hidden_size: found 50; allowed: a multiple of num_attention_heads"),
            (json!({"patch_size": 300}), "patch_size: found 300; allowed: at most image_size"),
            (json!({"hidden_act": "sine"}), "hidden_act: found \"sine\""),
            (json!({"hidden_dropout_prob": 1}), "hidden_dropout_prob: found 1"),
        ];
        for (given, want) in cases {
            let error = read(given).unwrap_err().to_string();
            assert!(error.contains(want), "{error}");
        }
    }

    #[test]
    fn the_export_reads_back_and_keeps_unknown_keys() {
        let config = read(json!({"image_size": 64, "num_labels": 3, "qkv_bias": false, "mine": 1})).unwrap();
        let exported = config.export();
        assert_eq!((&exported["mine"], &exported["patch_size"]), (&json!(1), &json!(16)));
        let again = read(Value::Object(exported)).unwrap();
        assert_eq!(VitConfig { given: config.given.clone(), ..again }, config);
    }
}

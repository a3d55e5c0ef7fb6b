//! CLIP's parameters: names and shapes as in Hugging Face's files, beginnings as in its `_init_weights`.

use super::{ClipConfig, TowerConfig};
use crate::parameter::{Init, Listed, Parameter};

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

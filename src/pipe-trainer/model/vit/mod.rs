//! ViT (Dosovitskiy et al., 2021): a class for a picture, which is cut into patches, as transformers' `ViTForImageClassification`
//! computes it.

use std::sync::Arc;

use pipe_model::vit::{VitConfig, parameters};
use serde_json::{Map, Value};
use tch::Tensor;

use super::attention::row_multiple;
use super::classification;
use super::interface::Model;
use super::layers::{FeedForward, LayerNorm, Linear, PreNormLayer};
use super::pass::{Mode, Pass, Setup, Start};
use super::weights::{SharedTensor, Weights};
use crate::data::Part;
use crate::error::TrainerError;

pub struct Vit {
    config: VitConfig,
    weights: Weights,
    setup: Setup,
    /// The shares that are dropped of hidden states and of attention weights.
    hidden_dropout: f64,
    attention_dropout: f64,
    cls_token: SharedTensor,
    position_embeddings: SharedTensor,
    projection: Linear,
    layers: Vec<Arc<PreNormLayer>>,
    layernorm: LayerNorm,
    classifier: Linear,
}

impl Vit {
    pub fn build(config: VitConfig, start: &Start<'_>, setup: &Setup) -> Result<Self, TrainerError> {
        let weights = Weights::start(&parameters(&config), start, setup)?;
        let tower = &config.vision.tower;
        // The dropout of the pipeline replaces both.
        let hidden_dropout = setup.dropout.unwrap_or(config.hidden_dropout_prob);
        let layer = |number| Arc::new(layer(&config, &weights, number, hidden_dropout));
        Ok(Self {
            setup: *setup,
            hidden_dropout,
            attention_dropout: setup.dropout.unwrap_or(tower.attention_dropout),
            cls_token: weights.get("vit.embeddings.cls_token"),
            position_embeddings: weights.get("vit.embeddings.position_embeddings"),
            projection: Linear::new(&weights, "vit.embeddings.patch_embeddings.projection"),
            layers: (0..tower.num_hidden_layers).map(layer).collect(),
            layernorm: LayerNorm::new(&weights, "vit.layernorm", tower.layer_norm_eps),
            classifier: Linear::new(&weights, "classifier"),
            config,
            weights,
        })
    }

    /// [samples, 1 + patches, hidden_size], in the kind of the weights.
    fn embed(&self, pixel_values: &Tensor, pass: Pass) -> Result<Tensor, TrainerError> {
        let narrow = |tensor: &Tensor| tensor.f_to_kind(pass.compute);
        let bias = self.projection.bias.as_deref().map(narrow).transpose()?;
        let stride = [self.config.vision.patch_size; 2];
        let weight = narrow(self.projection.plain().expect("it has no adapter"))?;
        let patches = narrow(pixel_values)?.f_conv2d(&weight, bias.as_ref(), stride, [0, 0], [1, 1], 1)?;
        // A frozen token is narrow.
        let wide = self.setup.kinds.weights;
        let patches = patches.f_flatten(2, 3)?.f_transpose(1, 2)?.f_to_kind(wide)?;
        let (samples, _, width) = patches.size3()?;
        let class = self.cls_token.f_to_kind(wide)?.f_expand([samples, 1, width], false)?;
        pass.drop_out(&Tensor::f_cat(&[class, patches], 1)?.f_add(&self.position_embeddings)?)
    }
}

fn layer(config: &VitConfig, weights: &Weights, number: i64, hidden_dropout: f64) -> PreNormLayer {
    let (tower, path) = (&config.vision.tower, format!("vit.encoder.layer.{number}"));
    let linear = |name: &str| Linear::new(weights, &format!("{path}.{name}"));
    let norm = |name: &str| LayerNorm::new(weights, &format!("{path}.{name}"), tower.layer_norm_eps);
    let projection = |name: &str| {
        let path = format!("{path}.attention.attention.{name}");
        if config.qkv_bias { Linear::new(weights, &path) } else { Linear::without_bias(weights, &path) }
    };
    PreNormLayer {
        norms: [norm("layernorm_before"), norm("layernorm_after")],
        queries_keys_values: [projection("query"), projection("key"), projection("value")],
        attention_output: linear("attention.output.dense"),
        feed_forward: FeedForward {
            first: linear("intermediate.dense"),
            gate: None,
            second: linear("output.dense"),
            activation: tower.activation,
            drops: false,
        },
        heads: tower.num_attention_heads,
        is_causal: false,
        hidden_dropout,
    }
}

impl Model for Vit {
    fn weights(&self) -> &Weights {
        &self.weights
    }

    /// [samples, classes]. A picture stands for itself by a class token that sees all patches.
    fn logits(&self, part: &Part, mode: Mode) -> Result<Tensor, TrainerError> {
        let pass = Pass::new(mode, self.hidden_dropout.max(self.attention_dropout), &self.setup);
        let embedding = pass.dropping(self.hidden_dropout).for_block(0);
        let mut hidden = pass.first_input(self.embed(part.get("pixel_values")?, embedding)?)?;
        for (layer, number) in self.layers.iter().zip(1..) {
            hidden = pass.dropping(self.attention_dropout).block(layer, number, &[&hidden])?;
        }
        // A norm is of each position alone, so only the one that is used is normed.
        self.classifier.forward(&self.layernorm.forward(&hidden.f_select(1, 0)?)?, pass)
    }

    fn loss_sum(&self, part: &Part, mode: Mode) -> Result<Tensor, TrainerError> {
        classification::part_loss_sum(&self.logits(part, mode)?, part)
    }

    fn config(&self) -> Map<String, Value> {
        self.config.export()
    }

    fn row_multiple(&self) -> usize {
        row_multiple(self.setup.kinds.compute, self.setup.device, self.config.vision.tower.head_width())
    }
}

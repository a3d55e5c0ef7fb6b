//! CLIP: pictures and texts in one space (Radford et al., 2021), as transformers' `CLIPModel` computes it. Two towers with the same stack
//! of layers: one reads texts, the other sees pictures.

use std::sync::Arc;

use pipe_model::clip::{ClipConfig, TextConfig, TowerConfig, VisionConfig, parameters};
use serde_json::{Map, Value};
use tch::{Kind, Reduction, Tensor};

use super::attention::{self, key_lengths, row_multiple};
use super::interface::{Contrastive, Embeddings, Model};
use super::layers::{FeedForward, LayerNorm, Linear, PreNormLayer};
use super::pass::{Mode, Pass, Setup, Start, hidden_score};
use super::weights::{SharedTensor, Weights};
use crate::data::{Packed, Part};
use crate::error::TrainerError;

pub struct Clip {
    config: ClipConfig,
    weights: Weights,
    setup: Setup,
    text_model: TextTower,
    text_projection: Linear,
    vision_model: VisionTower,
    visual_projection: Linear,
    logit_scale: SharedTensor,
}

impl Clip {
    pub fn build(config: ClipConfig, start: &Start<'_>, setup: &Setup) -> Result<Self, TrainerError> {
        let weights = Weights::start(&parameters(&config), start, setup)?;
        let text_layers = config.text_config.tower.num_hidden_layers as u64;
        Ok(Self {
            setup: *setup,
            text_model: TextTower::new(&config.text_config, &weights, 0),
            text_projection: Linear::without_bias(&weights, "text_projection"),
            vision_model: VisionTower::new(&config.vision_config, &weights, text_layers),
            visual_projection: Linear::without_bias(&weights, "visual_projection"),
            logit_scale: weights.get("logit_scale"),
            config,
            weights,
        })
    }

    /// Those of both towers.
    fn layers(&self) -> u64 {
        let towers = [&self.config.text_config.tower, &self.config.vision_config.tower];
        towers.iter().map(|tower| tower.num_hidden_layers as u64).sum()
    }

    /// A pass through one tower.
    fn pass(&self, mode: Mode, attention_dropout: f64) -> Pass {
        Pass::new(mode, self.setup.dropout.unwrap_or(attention_dropout), &self.setup)
    }

    /// [images, texts]
    fn logits_per_image(&self, all: &Embeddings) -> Result<Tensor, TrainerError> {
        let scale = self.logit_scale.f_to_kind(Kind::Float)?.f_exp()?;
        Ok(all.images.f_matmul(&all.texts.f_transpose(0, 1)?)?.f_mul(&scale)?)
    }
}

impl Model for Clip {
    fn weights(&self) -> &Weights {
        &self.weights
    }

    /// `logits_per_image`: how well each text fits each picture.
    fn logits(&self, part: &Part, mode: Mode) -> Result<Tensor, TrainerError> {
        self.logits_per_image(&self.embed(part, mode)?)
    }

    /// The loss of one part, whose samples are compared only with each other.
    fn loss_sum(&self, part: &Part, mode: Mode) -> Result<Tensor, TrainerError> {
        let all = self.embed(part, mode)?;
        Ok(self.loss(&all)?.f_mul_scalar(all.images.size()[0])?)
    }

    fn config(&self) -> Map<String, Value> {
        self.config.export()
    }

    fn takes_packed(&self) -> bool {
        true
    }

    fn packs(&self) -> bool {
        let width = self.config.text_config.tower.head_width();
        attention::packs(self.setup.kinds.compute, self.setup.device, width)
    }

    fn row_multiple(&self) -> usize {
        row_multiple(self.setup.kinds.compute, self.setup.device, self.config.text_config.tower.head_width())
    }

    fn contrastive(&self) -> Option<&dyn Contrastive> {
        Some(self)
    }
}

/// Embeddings are in fp32 in every precision.
impl Contrastive for Clip {
    fn embed_images(&self, part: &Part, mode: Mode) -> Result<Tensor, TrainerError> {
        let pass = self.pass(mode, self.config.vision_config.tower.attention_dropout);
        let pooled = self.vision_model.forward(part.get("pixel_values")?, pass)?;
        unit(&self.visual_projection.forward(&pooled, pass.for_block(self.layers()))?)
    }

    fn embed_texts(&self, part: &Part, mode: Mode) -> Result<Tensor, TrainerError> {
        let pass = self.pass(mode, self.config.text_config.tower.attention_dropout);
        let pooled = self.text_model.forward(part, pass)?;
        unit(&self.text_projection.forward(&pooled, pass.for_block(self.layers() + 1))?)
    }

    /// The mean of finding each picture's text and each text's picture.
    fn loss(&self, all: &Embeddings) -> Result<Tensor, TrainerError> {
        let logits = self.logits_per_image(all)?;
        let own = Tensor::f_arange(logits.size()[0], (Kind::Int64, logits.device()))?;
        let find = |logits: &Tensor| logits.f_cross_entropy_loss(&own, None::<&Tensor>, Reduction::Mean, -100, 0.0);
        Ok(find(&logits)?.f_add(&find(&logits.f_transpose(0, 1)?)?)?.f_div_scalar(2.0)?)
    }
}

/// Each row at length 1, in fp32.
fn unit(embeds: &Tensor) -> Result<Tensor, TrainerError> {
    let embeds = embeds.f_to_kind(Kind::Float)?;
    Ok(embeds.f_div(&embeds.f_norm_scalaropt_dim(2, [-1i64], true)?)?)
}

/// The stack of layers that both towers have.
pub struct Encoder {
    layers: Vec<Arc<PreNormLayer>>,
    /// The number of its first layer among all of the model.
    first: u64,
}

impl Encoder {
    /// The layers `<path>.layers.<number>`. In a causal one no position sees a later one.
    pub fn new(config: &TowerConfig, weights: &Weights, path: &str, causal: bool, first: u64) -> Self {
        let layer = |number| Arc::new(layer(config, weights, &format!("{path}.layers.{number}"), causal));
        Self { layers: (0..config.num_hidden_layers).map(layer).collect(), first }
    }

    /// `rows` are where packed samples stand, or a mask where there is one: lengths, or what is added to the scores and then says also what
    /// causality says.
    pub fn forward(&self, hidden: &Tensor, rows: &[&Tensor], pass: Pass) -> Result<Tensor, TrainerError> {
        let mut hidden = pass.first_input(hidden.shallow_clone())?;
        for (index, layer) in self.layers.iter().enumerate() {
            let mut inputs = vec![&hidden];
            inputs.extend(rows);
            hidden = pass.block(layer, self.first + index as u64, &inputs)?;
        }
        Ok(hidden)
    }
}

fn layer(config: &TowerConfig, weights: &Weights, path: &str, is_causal: bool) -> PreNormLayer {
    let linear = |name: &str| Linear::new(weights, &format!("{path}.{name}"));
    let norm = |name: &str| LayerNorm::new(weights, &format!("{path}.{name}"), config.layer_norm_eps);
    PreNormLayer {
        norms: [norm("layer_norm1"), norm("layer_norm2")],
        queries_keys_values: [linear("self_attn.q_proj"), linear("self_attn.k_proj"), linear("self_attn.v_proj")],
        attention_output: linear("self_attn.out_proj"),
        feed_forward: FeedForward {
            first: linear("mlp.fc1"),
            gate: None,
            second: linear("mlp.fc2"),
            activation: config.activation,
            drops: false,
        },
        heads: config.num_attention_heads,
        is_causal,
        // Nothing but attention weights is dropped.
        hidden_dropout: 0.0,
    }
}

/// The tower that reads texts. A text stands for itself by its end token, which sees all of it.
pub struct TextTower {
    token_embedding: SharedTensor,
    position_embedding: SharedTensor,
    encoder: Encoder,
    final_layer_norm: LayerNorm,
    eos_token_id: Option<i64>,
    head_width: i64,
}

impl TextTower {
    pub fn new(config: &TextConfig, weights: &Weights, first: u64) -> Self {
        let of = |name: &str| format!("text_model.{name}");
        Self {
            token_embedding: weights.get(&of("embeddings.token_embedding.weight")),
            position_embedding: weights.get(&of("embeddings.position_embedding.weight")),
            encoder: Encoder::new(&config.tower, weights, &of("encoder"), true, first),
            final_layer_norm: LayerNorm::new(weights, &of("final_layer_norm"), config.tower.layer_norm_eps),
            eos_token_id: config.end(),
            head_width: config.tower.head_width(),
        }
    }

    /// [samples, hidden_size]. Without a mask the padding is behind each text, where causal attention never looks.
    pub fn forward(&self, part: &Part, pass: Pass) -> Result<Tensor, TrainerError> {
        let input_ids = part.get("input_ids")?;
        if let Some(packed) = part.packed("input_ids") {
            // Spare tokens may be at any position.
            let positions = packed.positions()?.f_clamp_max(self.position_embedding.size()[0] - 1)?;
            let positions = Tensor::f_embedding(&self.position_embedding, &positions, -1, false, false)?;
            let hidden = self.embed(input_ids)?.f_add(&positions)?;
            let hidden = self.encoder.forward(&hidden, &packed.tensors(), pass.through(Some(packed)))?;
            return self.pooled(&hidden, &packed.starts()?, &ids_of_samples(packed, input_ids)?);
        }
        let length = self.length(input_ids)?;
        let input_ids = input_ids.f_narrow(1, 0, length)?;
        let mask = match (key_lengths(part, pass.compute, self.head_width), part.find("attention_mask")) {
            (Some(lengths), _) => Some(lengths.shallow_clone()),
            (None, Some(mask)) => Some(causal_mask(&mask.f_narrow(1, 0, length)?, pass.compute)?),
            (None, None) => None,
        };
        let hidden = self.embed(&input_ids)?.f_add(&self.position_embedding.f_narrow(0, 0, length)?)?;
        let rows: Vec<&Tensor> = mask.iter().collect();
        let hidden = self.encoder.forward(&hidden, &rows, pass)?;
        let samples = input_ids.size2()?.0;
        let starts = Tensor::f_arange(samples, (Kind::Int64, hidden.device()))?.f_mul_scalar(length)?;
        self.pooled(&hidden, &starts, &input_ids)
    }

    fn embed(&self, input_ids: &Tensor) -> Result<Tensor, TrainerError> {
        let tokens = Tensor::f_embedding(&self.token_embedding, input_ids, -1, false, false)?;
        // Frozen tables are narrow.
        Ok(tokens.f_to_kind(self.final_layer_norm.weight.kind())?)
    }

    /// On a card rows may be padded to a round length, beyond the last position; behind that is only padding.
    fn length(&self, input_ids: &Tensor) -> Result<i64, TrainerError> {
        let (length, positions) = (input_ids.size2()?.1, self.position_embedding.size()[0]);
        Ok(if input_ids.device().is_cuda() { length.min(positions) } else { length })
    }

    /// [samples, hidden_size]: the end token of each sample, whose tokens begin at `starts` among all of `hidden` and are `ids` [samples, length].
    fn pooled(&self, hidden: &Tensor, starts: &Tensor, ids: &Tensor) -> Result<Tensor, TrainerError> {
        // The first of equals, so padding with the end token does no harm.
        let ends = match self.eos_token_id {
            Some(token) => ids.f_eq(token)?.f_to_kind(Kind::Int)?.f_argmax(1, false)?,
            None => ids.f_argmax(1, false)?,
        };
        let ends = hidden.f_flatten(0, 1)?.f_index_select(0, &ends.f_add(starts)?)?;
        // A norm is of each position alone, so only those that are used are normed.
        self.final_layer_norm.forward(&ends)
    }
}

/// [samples, length]: the tokens of packed samples with a row for each, and -1 behind them.
fn ids_of_samples(packed: Packed<'_>, input_ids: &Tensor) -> Result<Tensor, TrainerError> {
    let behind = packed.counts.f_unsqueeze(0)?.f_ge_tensor(&packed.lengths()?.f_unsqueeze(1)?)?;
    Ok(packed.unpacked(input_ids)?.f_masked_fill(&behind, -1)?)
}

/// [samples, 1, length, length]: no position sees a later one, nor one without a token.
fn causal_mask(attention_mask: &Tensor, kind: Kind) -> Result<Tensor, TrainerError> {
    let (samples, length) = attention_mask.size2()?;
    let later = Tensor::f_ones([length, length], (Kind::Bool, attention_mask.device()))?.f_triu(1)?;
    let hidden = attention_mask.f_eq(0)?.f_view([samples, 1, 1, length])?.f_logical_or(&later)?;
    let zeros = Tensor::f_zeros([samples, 1, length, length], (kind, attention_mask.device()))?;
    Ok(zeros.f_masked_fill(&hidden, hidden_score(kind))?)
}

/// The tower that sees pictures, cut into patches. A picture stands for itself by a class token that sees all patches.
pub struct VisionTower {
    class_embedding: SharedTensor,
    patch_embedding: SharedTensor,
    position_embedding: SharedTensor,
    pre_layrnorm: LayerNorm,
    encoder: Encoder,
    post_layernorm: LayerNorm,
    patch_size: i64,
}

impl VisionTower {
    pub fn new(config: &VisionConfig, weights: &Weights, first: u64) -> Self {
        let of = |name: &str| format!("vision_model.{name}");
        let norm = |name: &str| LayerNorm::new(weights, &of(name), config.tower.layer_norm_eps);
        Self {
            class_embedding: weights.get(&of("embeddings.class_embedding")),
            patch_embedding: weights.get(&of("embeddings.patch_embedding.weight")),
            position_embedding: weights.get(&of("embeddings.position_embedding.weight")),
            pre_layrnorm: norm("pre_layrnorm"),
            encoder: Encoder::new(&config.tower, weights, &of("encoder"), false, first),
            post_layernorm: norm("post_layernorm"),
            patch_size: config.patch_size,
        }
    }

    /// [samples, hidden_size] of [samples, channels, height, width]
    pub fn forward(&self, pixel_values: &Tensor, pass: Pass) -> Result<Tensor, TrainerError> {
        let patches = self.patches(pixel_values, pass)?;
        let (samples, _, width) = patches.size3()?;
        let class = self.class_embedding.f_expand([samples, 1, width], false)?;
        let hidden = Tensor::f_cat(&[class, patches], 1)?.f_add(&self.position_embedding)?;
        let hidden = self.encoder.forward(&self.pre_layrnorm.forward(&hidden)?, &[], pass)?;
        self.post_layernorm.forward(&hidden.f_select(1, 0)?)
    }

    /// [samples, patches, hidden_size], in the kind of the weights.
    fn patches(&self, pixel_values: &Tensor, pass: Pass) -> Result<Tensor, TrainerError> {
        let (pixels, weight) = (pixel_values.f_to_kind(pass.compute)?, self.patch_embedding.f_to_kind(pass.compute)?);
        let stride = [self.patch_size; 2];
        let patches = pixels.f_conv2d(&weight, None::<&Tensor>, stride, [0, 0], [1, 1], 1)?;
        Ok(patches.f_flatten(2, 3)?.f_transpose(1, 2)?.f_to_kind(self.class_embedding.kind())?)
    }
}

#[cfg(test)]
mod text_tests {
    use super::*;

    #[test]
    fn later_positions_and_padding_are_hidden_once() {
        let mask = causal_mask(&Tensor::from_slice(&[0i64, 1, 1]).unsqueeze(0), Kind::Float).unwrap();
        let no = f32::MIN;
        let want = [no, no, no, no, 0.0, no, no, 0.0, 0.0];
        assert_eq!(Vec::<f32>::try_from(mask.reshape([-1])).unwrap(), want);
    }
}

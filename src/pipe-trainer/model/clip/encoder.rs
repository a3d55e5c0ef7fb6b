//! The stack of layers that both towers have: self-attention and a feed-forward layer, each with a norm before it and a
//! residual connection.

use std::sync::Arc;

use pipe_model::clip::TowerConfig;
use tch::Tensor;

use crate::error::TrainerError;
use crate::model::attention::{Scores, attend};
use crate::model::layers::{FeedForward, LayerNorm, Linear, Product, merge_heads, split_heads, together};
use crate::model::pass::{Block, Pass};
use crate::model::weights::Weights;

pub struct Encoder {
    layers: Vec<Arc<Layer>>,
    /// The number of its first layer among all of the model.
    first: u64,
}

impl Encoder {
    /// The layers `<path>.layers.<number>`. In a causal one no position sees a later one.
    pub fn new(config: &TowerConfig, weights: &Weights, path: &str, causal: bool, first: u64) -> Self {
        let layer = |number| Arc::new(Layer::new(config, weights, &format!("{path}.layers.{number}"), causal));
        Self { layers: (0..config.num_hidden_layers).map(layer).collect(), first }
    }

    /// `mask` is lengths, or added to the scores and then says also what causality says.
    pub fn forward(&self, hidden: &Tensor, mask: Option<&Tensor>, pass: Pass) -> Result<Tensor, TrainerError> {
        let mut hidden = hidden.shallow_clone();
        for (index, layer) in self.layers.iter().enumerate() {
            let mut inputs = vec![&hidden];
            inputs.extend(mask);
            hidden = pass.block(layer, self.first + index as u64, &inputs)?;
        }
        Ok(hidden)
    }
}

struct Layer {
    layer_norm1: LayerNorm,
    q_proj: Linear,
    k_proj: Linear,
    v_proj: Linear,
    out_proj: Linear,
    layer_norm2: LayerNorm,
    mlp: FeedForward,
    heads: i64,
    causal: bool,
}

impl Layer {
    fn new(config: &TowerConfig, weights: &Weights, path: &str, causal: bool) -> Self {
        let linear = |name: &str| Linear::new(weights, &format!("{path}.{name}"));
        let norm = |name: &str| LayerNorm::new(weights, &format!("{path}.{name}"), config.layer_norm_eps);
        Self {
            layer_norm1: norm("layer_norm1"),
            q_proj: linear("self_attn.q_proj"),
            k_proj: linear("self_attn.k_proj"),
            v_proj: linear("self_attn.v_proj"),
            out_proj: linear("self_attn.out_proj"),
            layer_norm2: norm("layer_norm2"),
            mlp: FeedForward {
                first: linear("mlp.fc1"),
                gate: None,
                second: linear("mlp.fc2"),
                activation: config.activation,
                drops: false,
            },
            heads: config.num_attention_heads,
            causal,
        }
    }

    fn self_attention(&self, hidden: &Tensor, mask: Option<&Tensor>, pass: Pass) -> Result<Product<'_>, TrainerError> {
        let [q, k, v] = together(hidden, [&self.q_proj, &self.k_proj, &self.v_proj], pass)?;
        let [q, k, v] = [split_heads(&q, self.heads)?, split_heads(&k, self.heads)?, split_heads(&v, self.heads)?];
        let is_causal = self.causal && mask.is_none_or(|mask| mask.dim() == 1);
        let attended = attend([&q, &k, &v], Scores { is_causal, key_mask: mask, ..Scores::default() }, pass)?;
        self.out_proj.product(&merge_heads(&attended)?, pass)
    }
}

impl Block for Layer {
    /// `inputs` are hidden states, and a mask where there is one. What flows through keeps its kind.
    fn forward(&self, inputs: &[&Tensor], pass: Pass) -> Result<Tensor, TrainerError> {
        let normed = self.layer_norm1.forward_as(inputs[0], pass.compute)?;
        let attended = self.self_attention(&normed, inputs.get(1).copied(), pass)?;
        // Nothing but attention weights is dropped.
        let quiet = Pass::quiet(pass.compute);
        let (hidden, normed) = self.layer_norm2.between(&attended, inputs[0], quiet)?;
        quiet.drop_add(&self.mlp.forward(&normed, pass)?, &hidden)
    }
}

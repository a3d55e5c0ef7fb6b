//! T5's layers: a stack of blocks; in a block self-attention, in the decoder attention to the encoder, and a feed-forward
//! layer, each behind a norm and added to what came in.

use std::sync::Arc;

use pipe_model::t5::{FeedForwardKind, T5Config};
use tch::Tensor;

use super::position;
use crate::error::TrainerError;
use crate::model::attention::{Scores, attend, has_kernel};
use crate::model::layers::{self, Linear};
use crate::model::pass::{self, Pass};
use crate::model::weights::{SharedTensor, Weights};

pub struct Stack {
    pub(super) blocks: Vec<Arc<Block>>,
    pub(super) final_layer_norm: Norm,
    /// [buckets, heads]; the first block's, used by all.
    pub(super) relative_attention_bias: SharedTensor,
    pub(super) buckets: position::Buckets,
    d_kv: i64,
    /// The number of its first block among all of the model.
    first: u64,
}

impl Stack {
    pub fn encoder(config: &T5Config, weights: &Weights) -> Self {
        Self::new(config, weights, "encoder", config.num_layers, false)
    }

    pub fn decoder(config: &T5Config, weights: &Weights) -> Self {
        Self::new(config, weights, "decoder", config.num_decoder_layers, true)
    }

    fn new(config: &T5Config, weights: &Weights, name: &str, layers: i64, is_decoder: bool) -> Self {
        let block = |index| Block::new(config, weights, &format!("{name}.block.{index}.layer"), is_decoder);
        let bias = format!("{name}.block.0.layer.0.SelfAttention.relative_attention_bias.weight");
        Self {
            blocks: (0..layers).map(|index| Arc::new(block(index))).collect(),
            final_layer_norm: Norm::new(config, weights, &format!("{name}.final_layer_norm")),
            relative_attention_bias: weights.get(&bias),
            buckets: position::Buckets {
                count: config.relative_attention_num_buckets,
                max_distance: config.relative_attention_max_distance,
                bidirectional: !is_decoder,
            },
            d_kv: config.d_kv,
            first: if is_decoder { config.num_layers as u64 + 3 } else { 1 },
        }
    }

    /// `padding` hides keys of the source; `memory` is the encoder's output, in the decoder.
    pub fn forward(
        &self,
        hidden: &Tensor,
        padding: Option<&Tensor>,
        memory: Option<&Tensor>,
        pass: Pass,
    ) -> Result<Tensor, TrainerError> {
        let bias = self.bias(hidden, padding.filter(|_| memory.is_none()), pass)?;
        let mut hidden = hidden.shallow_clone();
        for (index, block) in self.blocks.iter().enumerate() {
            let mut inputs = vec![&hidden, &bias];
            inputs.extend(memory);
            inputs.extend(padding);
            hidden = pass.block(block, self.first + index as u64, &inputs)?;
        }
        let last = pass.for_block(self.first + self.blocks.len() as u64);
        last.drop_out(&self.final_layer_norm.forward(&hidden)?)
    }

    /// By distance where there is a kernel. Elsewhere what is added to the scores of self-attention, [batch, heads, length, length], whole in
    /// memory: only then does the fused attention of torch compute its gradient.
    fn bias(&self, hidden: &Tensor, padding: Option<&Tensor>, pass: Pass) -> Result<Tensor, TrainerError> {
        let (batch, length, _) = hidden.size3()?;
        let table = &self.relative_attention_bias;
        if has_kernel(pass.compute, hidden.device(), self.d_kv) && padding.is_none_or(|padding| padding.dim() == 1) {
            return self.buckets.by_distance(table, length);
        }
        let mut bias = self.buckets.bias(table, length)?.f_to_kind(pass.compute)?;
        if !self.buckets.bidirectional {
            bias = bias.f_add(&position::causal_bias(length, pass.compute, hidden.device())?)?;
        }
        if let Some(padding) = padding {
            bias = bias.f_add(padding)?;
        }
        let heads = bias.size()[1];
        Ok(bias.f_expand([batch, heads, length, length], false)?.f_contiguous()?)
    }
}

/// T5 does not scale the scores: its initialisation does.
const UNSCALED: Scores<'static> = Scores { scale: Some(1.0), is_causal: false, key_mask: None, by_distance: None };

pub(super) struct Block {
    pub(super) attention: Attention,
    pub(super) cross_attention: Option<Attention>,
    pub(super) feed_forward: FeedForward,
}

impl Block {
    fn new(config: &T5Config, weights: &Weights, path: &str, is_decoder: bool) -> Self {
        let cross = || Attention::new(config, weights, &format!("{path}.1"), "EncDecAttention");
        Self {
            attention: Attention::new(config, weights, &format!("{path}.0"), "SelfAttention"),
            cross_attention: is_decoder.then(cross),
            feed_forward: FeedForward::new(config, weights, &format!("{path}.{}", if is_decoder { 2 } else { 1 })),
        }
    }
}

impl pass::Block for Block {
    /// `inputs` are hidden states and the bias of self-attention; in the decoder also the encoder's output; and what hides the padding
    /// of the source, if anything does.
    fn forward(&self, inputs: &[&Tensor], pass: Pass) -> Result<Tensor, TrainerError> {
        let (cross, memory, padding) = match (&self.cross_attention, inputs) {
            (Some(cross), [_, _, memory, padding @ ..]) => (Some(cross), Some(*memory), padding.first().copied()),
            (_, inputs) => (None, None, inputs.get(2).copied()),
        };
        // What is added to scores by query and key holds all that is hidden.
        let scores = match inputs[1] {
            bias if bias.dim() == 4 => Scores { key_mask: Some(bias), ..UNSCALED },
            bias => {
                let key_mask = padding.filter(|_| memory.is_none());
                Scores { by_distance: Some(bias), key_mask, is_causal: memory.is_some(), ..UNSCALED }
            }
        };
        let mut hidden = self.attention.forward(inputs[0], None, scores, pass)?;
        if let Some(cross) = cross {
            hidden = cross.forward(&hidden, memory, Scores { key_mask: padding, ..UNSCALED }, pass)?;
        }
        self.feed_forward.forward(&hidden, pass)
    }
}

pub(super) struct Attention {
    pub(super) layer_norm: Norm,
    pub(super) q: SharedTensor,
    pub(super) k: SharedTensor,
    pub(super) v: SharedTensor,
    pub(super) o: SharedTensor,
    pub(super) heads: i64,
    pub(super) d_kv: i64,
}

impl Attention {
    fn new(config: &T5Config, weights: &Weights, layer: &str, name: &str) -> Self {
        let projection = |letter: &str| weights.get(&format!("{layer}.{name}.{letter}.weight"));
        Self {
            layer_norm: Norm::new(config, weights, &format!("{layer}.layer_norm")),
            q: projection("q"),
            k: projection("k"),
            v: projection("v"),
            o: projection("o"),
            heads: config.num_heads,
            d_kv: config.d_kv,
        }
    }

    /// Attends to `memory`, or to itself.
    fn forward(
        &self,
        hidden: &Tensor,
        memory: Option<&Tensor>,
        scores: Scores<'_>,
        pass: Pass,
    ) -> Result<Tensor, TrainerError> {
        let normed = self.layer_norm.forward(hidden)?.f_to_kind(pass.compute)?;
        let memory = memory.unwrap_or(&normed);
        let (q, k, v) = (
            self.heads_of(&normed, &self.q, pass)?,
            self.heads_of(memory, &self.k, pass)?,
            self.heads_of(memory, &self.v, pass)?,
        );
        let attended = attend([&q, &k, &v], scores, pass)?;
        let (batch, length, _) = hidden.size3()?;
        let merged = attended.f_transpose(1, 2)?.f_reshape([batch, length, self.heads * self.d_kv])?;
        pass.drop_add(&pass.linear(&merged, &self.o, None)?, hidden)
    }

    /// [batch, length, d_model] to [batch, heads, length, d_kv]
    fn heads_of(&self, input: &Tensor, projection: &Tensor, pass: Pass) -> Result<Tensor, TrainerError> {
        let (batch, length, _) = input.size3()?;
        let projected = pass.linear(input, projection, None)?;
        Ok(projected.f_view([batch, length, self.heads, self.d_kv])?.f_transpose(1, 2)?)
    }
}

pub(super) struct FeedForward {
    layer_norm: Norm,
    layers: layers::FeedForward,
}

impl FeedForward {
    fn new(config: &T5Config, weights: &Weights, layer: &str) -> Self {
        let dense = |name: &str| Linear::without_bias(weights, &format!("{layer}.DenseReluDense.{name}"));
        let FeedForwardKind { gated, activation } = config.feed_forward;
        let first = dense(if gated { "wi_0" } else { "wi" });
        let gate = gated.then(|| dense("wi_1").weight);
        Self {
            layer_norm: Norm::new(config, weights, &format!("{layer}.layer_norm")),
            layers: layers::FeedForward { first, gate, second: dense("wo"), activation, drops: true },
        }
    }

    pub(super) fn forward(&self, hidden: &Tensor, pass: Pass) -> Result<Tensor, TrainerError> {
        let normed = self.layer_norm.forward(hidden)?.f_to_kind(pass.compute)?;
        pass.drop_add(&self.layers.forward(&normed, pass)?, hidden)
    }
}

/// Scaled by the root mean square, without mean and without bias.
pub(super) struct Norm {
    weight: SharedTensor,
    epsilon: f64,
}

impl Norm {
    fn new(config: &T5Config, weights: &Weights, path: &str) -> Self {
        Self { weight: weights.get(&format!("{path}.weight")), epsilon: config.layer_norm_epsilon }
    }

    pub(super) fn forward(&self, hidden: &Tensor) -> Result<Tensor, TrainerError> {
        Ok(hidden.f_rms_norm(self.weight.size(), Some(&*self.weight), self.epsilon)?)
    }
}

//! T5's layers: a stack of blocks; in a block self-attention, in the decoder attention to the encoder, and a feed-forward
//! layer, each behind a norm and added to what came in.

use std::sync::Arc;

use tch::{Kind, Tensor};

use super::config::{Activation, FeedForwardKind, T5Config};
use super::position;
use crate::error::TrainerError;
use crate::model::Mode;
use crate::random::{self, Purpose};
use crate::torch;
use crate::weights::Weights;

/// What one pass through the model has in common everywhere.
#[derive(Clone, Copy)]
pub struct Pass {
    dropout: f64,
    /// Absent when nothing is dropped.
    seed: Option<u64>,
    compute: Kind,
    checkpointing: bool,
}

impl Pass {
    pub fn new(mode: Mode, dropout: f64, compute: Kind, checkpointing: bool) -> Self {
        match mode {
            Mode::Train { seed } => {
                Self { dropout, seed: Some(seed).filter(|_| dropout > 0.0), compute, checkpointing }
            }
            Mode::Eval => Self { dropout: 0.0, seed: None, compute, checkpointing: false },
        }
    }

    /// Random numbers begin anew in each block, so that one that is computed again drops the same.
    pub fn for_block(self, block: u64) -> Self {
        if let Some(seed) = self.seed {
            random::seed_torch(Purpose::Dropout, seed, &[block]);
        }
        self
    }

    pub fn drop_out(self, input: &Tensor) -> Result<Tensor, TrainerError> {
        match self.seed {
            Some(_) => Ok(input.f_dropout(self.dropout, true)?),
            None => Ok(input.shallow_clone()),
        }
    }

    fn linear(self, input: &Tensor, weight: &Tensor) -> Result<Tensor, TrainerError> {
        Ok(input.f_linear(&weight.f_to_kind(self.compute)?, None::<&Tensor>)?)
    }
}

pub struct Stack {
    pub(super) blocks: Vec<Arc<Block>>,
    pub(super) final_layer_norm: Norm,
    /// [buckets, heads]; the first block's, used by all.
    pub(super) relative_attention_bias: Tensor,
    pub(super) buckets: position::Buckets,
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
            first: if is_decoder { config.num_layers as u64 + 2 } else { 1 },
        }
    }

    /// `mask` is added to the scores of self-attention; `memory` is the encoder's output and its mask.
    pub fn forward(
        &self,
        hidden: &Tensor,
        mask: &Tensor,
        memory: Option<(&Tensor, &Tensor)>,
        pass: Pass,
    ) -> Result<Tensor, TrainerError> {
        let bias = self.bias(hidden, mask, pass)?;
        let mut hidden = hidden.shallow_clone();
        for (index, block) in self.blocks.iter().enumerate() {
            let number = self.first + index as u64;
            hidden = if pass.checkpointing {
                let (block, mask) = (Arc::clone(block), memory.map(|(_, mask)| mask.shallow_clone()));
                torch::checkpoint(&hidden, &bias, memory.map(|(memory, _)| memory), move |hidden, bias, memory| {
                    block.forward(hidden, bias, memory.zip(mask.as_ref()), pass.for_block(number))
                })?
            } else {
                block.forward(&hidden, &bias, memory, pass.for_block(number))?
            };
        }
        pass.drop_out(&self.final_layer_norm.forward(&hidden)?)
    }

    /// [batch, heads, length, length], whole in memory: only then does the fused attention kernel compute its gradient.
    fn bias(&self, hidden: &Tensor, mask: &Tensor, pass: Pass) -> Result<Tensor, TrainerError> {
        let (batch, length, _) = hidden.size3()?;
        let position = self.buckets.bias(&self.relative_attention_bias, length)?.f_to_kind(pass.compute)?;
        let bias = position.f_add(mask)?;
        let heads = bias.size()[1];
        Ok(bias.f_expand([batch, heads, length, length], false)?.f_contiguous()?)
    }
}

pub(super) struct Block {
    pub(super) attention: Attention,
    pub(super) cross_attention: Option<Attention>,
    pub(super) feed_forward: FeedForward,
}

// SAFETY: the tensors of a block are only read here, which libtorch allows from several threads at once. It is needed because
// a checkpointed block is computed again on the thread of the backward pass.
unsafe impl Sync for Block {}

impl Block {
    fn new(config: &T5Config, weights: &Weights, path: &str, is_decoder: bool) -> Self {
        let cross = || Attention::new(config, weights, &format!("{path}.1"), "EncDecAttention");
        Self {
            attention: Attention::new(config, weights, &format!("{path}.0"), "SelfAttention"),
            cross_attention: is_decoder.then(cross),
            feed_forward: FeedForward::new(config, weights, &format!("{path}.{}", if is_decoder { 2 } else { 1 })),
        }
    }

    fn forward(
        &self,
        hidden: &Tensor,
        bias: &Tensor,
        memory: Option<(&Tensor, &Tensor)>,
        pass: Pass,
    ) -> Result<Tensor, TrainerError> {
        let mut hidden = self.attention.forward(hidden, None, bias, pass)?;
        if let (Some(cross), Some((memory, mask))) = (&self.cross_attention, memory) {
            hidden = cross.forward(&hidden, Some(memory), mask, pass)?;
        }
        self.feed_forward.forward(&hidden, pass)
    }
}

pub(super) struct Attention {
    pub(super) layer_norm: Norm,
    pub(super) q: Tensor,
    pub(super) k: Tensor,
    pub(super) v: Tensor,
    pub(super) o: Tensor,
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

    /// Attends to `memory`, or to itself. T5 does not scale the scores: its initialisation does.
    fn forward(
        &self,
        hidden: &Tensor,
        memory: Option<&Tensor>,
        bias: &Tensor,
        pass: Pass,
    ) -> Result<Tensor, TrainerError> {
        let normed = self.layer_norm.forward(hidden)?.f_to_kind(pass.compute)?;
        let memory = memory.unwrap_or(&normed);
        let (q, k, v) = (
            self.heads_of(&normed, &self.q, pass)?,
            self.heads_of(memory, &self.k, pass)?,
            self.heads_of(memory, &self.v, pass)?,
        );
        let dropped = if pass.seed.is_some() { pass.dropout } else { 0.0 };
        let attended = Tensor::f_scaled_dot_product_attention(&q, &k, &v, Some(bias), dropped, false, 1.0, false)?;
        let (batch, length, _) = hidden.size3()?;
        let merged = attended.f_transpose(1, 2)?.f_reshape([batch, length, self.heads * self.d_kv])?;
        Ok(hidden.f_add(&pass.drop_out(&pass.linear(&merged, &self.o)?)?)?)
    }

    /// [batch, length, d_model] to [batch, heads, length, d_kv]
    fn heads_of(&self, input: &Tensor, projection: &Tensor, pass: Pass) -> Result<Tensor, TrainerError> {
        let (batch, length, _) = input.size3()?;
        let projected = pass.linear(input, projection)?;
        Ok(projected.f_view([batch, length, self.heads, self.d_kv])?.f_transpose(1, 2)?)
    }
}

pub(super) struct FeedForward {
    layer_norm: Norm,
    /// One, or with a gate two.
    wi: Vec<Tensor>,
    wo: Tensor,
    kind: FeedForwardKind,
}

impl FeedForward {
    fn new(config: &T5Config, weights: &Weights, layer: &str) -> Self {
        let dense = |name: &str| weights.get(&format!("{layer}.DenseReluDense.{name}.weight"));
        let inputs: &[&str] = if config.feed_forward.gated { &["wi_0", "wi_1"] } else { &["wi"] };
        Self {
            layer_norm: Norm::new(config, weights, &format!("{layer}.layer_norm")),
            wi: inputs.iter().map(|name| dense(name)).collect(),
            wo: dense("wo"),
            kind: config.feed_forward,
        }
    }

    pub(super) fn forward(&self, hidden: &Tensor, pass: Pass) -> Result<Tensor, TrainerError> {
        let normed = self.layer_norm.forward(hidden)?.f_to_kind(pass.compute)?;
        let first = pass.linear(&normed, &self.wi[0])?;
        let inner = match self.wi.get(1) {
            None => self.activate(&first)?,
            Some(gate) => self.gate(&first, &pass.linear(&normed, gate)?)?,
        };
        let output = pass.linear(&pass.drop_out(&inner)?, &self.wo)?;
        Ok(hidden.f_add(&pass.drop_out(&output)?)?)
    }

    fn gate(&self, input: &Tensor, gate: &Tensor) -> Result<Tensor, TrainerError> {
        if input.device().is_cuda() && self.kind.activation == Activation::GeluTanh {
            return Ok(torch::gated_gelu(input, gate)?);
        }
        Ok(self.activate(input)?.f_mul(gate)?)
    }

    fn activate(&self, input: &Tensor) -> Result<Tensor, TrainerError> {
        Ok(match self.kind.activation {
            Activation::Relu => input.f_relu()?,
            Activation::Gelu => input.f_gelu("none")?,
            Activation::GeluTanh => input.f_gelu("tanh")?,
            Activation::Silu => input.f_silu()?,
        })
    }
}

/// Scaled by the root mean square, without mean and without bias.
pub(super) struct Norm {
    weight: Tensor,
    epsilon: f64,
}

impl Norm {
    fn new(config: &T5Config, weights: &Weights, path: &str) -> Self {
        Self { weight: weights.get(&format!("{path}.weight")), epsilon: config.layer_norm_epsilon }
    }

    pub(super) fn forward(&self, hidden: &Tensor) -> Result<Tensor, TrainerError> {
        Ok(hidden.f_rms_norm(self.weight.size(), Some(&self.weight), self.epsilon)?)
    }
}

//! T5's layers: a stack of blocks; in a block self-attention, in the decoder attention to the encoder, and a feed-forward
//! layer, each behind a norm and added to what came in.

use tch::Tensor;

use super::config::{Activation, FeedForwardKind, T5Config};
use super::position;
use crate::error::TrainerError;
use crate::model::Mode;
use crate::weights::Weights;

#[derive(Clone, Copy)]
pub struct Dropout {
    rate: f64,
    on: bool,
}

impl Dropout {
    pub fn new(rate: f64, mode: Mode) -> Self {
        Self { rate, on: mode == Mode::Train && rate > 0.0 }
    }

    pub fn apply(self, input: &Tensor) -> Result<Tensor, TrainerError> {
        if self.on { Ok(input.f_dropout(self.rate, true)?) } else { Ok(input.shallow_clone()) }
    }
}

pub struct Stack {
    blocks: Vec<Block>,
    final_layer_norm: Norm,
    /// [buckets, heads]; the first block's, used by all.
    relative_attention_bias: Tensor,
    buckets: position::Buckets,
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
            blocks: (0..layers).map(block).collect(),
            final_layer_norm: Norm::new(config, weights, &format!("{name}.final_layer_norm")),
            relative_attention_bias: weights.get(&bias),
            buckets: position::Buckets {
                count: config.relative_attention_num_buckets,
                max_distance: config.relative_attention_max_distance,
                bidirectional: !is_decoder,
            },
        }
    }

    /// `mask` is added to the scores of self-attention; `memory` is the encoder's output and its mask.
    pub fn forward(
        &self,
        hidden: &Tensor,
        mask: &Tensor,
        memory: Option<(&Tensor, &Tensor)>,
        dropout: Dropout,
    ) -> Result<Tensor, TrainerError> {
        let position = self.buckets.bias(&self.relative_attention_bias, hidden.size3()?.1)?;
        let bias = position.f_add(mask)?;
        let mut hidden = hidden.shallow_clone();
        for block in &self.blocks {
            hidden = block.forward(&hidden, &bias, memory, dropout)?;
        }
        dropout.apply(&self.final_layer_norm.forward(&hidden)?)
    }
}

struct Block {
    attention: Attention,
    cross_attention: Option<Attention>,
    feed_forward: FeedForward,
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

    fn forward(
        &self,
        hidden: &Tensor,
        bias: &Tensor,
        memory: Option<(&Tensor, &Tensor)>,
        dropout: Dropout,
    ) -> Result<Tensor, TrainerError> {
        let mut hidden = self.attention.forward(hidden, None, bias, dropout)?;
        if let (Some(cross), Some((memory, mask))) = (&self.cross_attention, memory) {
            hidden = cross.forward(&hidden, Some(memory), mask, dropout)?;
        }
        self.feed_forward.forward(&hidden, dropout)
    }
}

struct Attention {
    layer_norm: Norm,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    o: Tensor,
    heads: i64,
    d_kv: i64,
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
        dropout: Dropout,
    ) -> Result<Tensor, TrainerError> {
        let normed = self.layer_norm.forward(hidden)?;
        let memory = memory.unwrap_or(&normed);
        let (q, k, v) =
            (self.heads_of(&normed, &self.q)?, self.heads_of(memory, &self.k)?, self.heads_of(memory, &self.v)?);
        let scores = q.f_matmul(&k.f_transpose(2, 3)?)?.f_add(bias)?;
        let attended = dropout.apply(&scores.f_softmax(-1, None)?)?.f_matmul(&v)?;
        let (batch, length, _) = hidden.size3()?;
        let merged = attended.f_transpose(1, 2)?.f_reshape([batch, length, self.heads * self.d_kv])?;
        Ok(hidden.f_add(&dropout.apply(&merged.f_linear(&self.o, None::<&Tensor>)?)?)?)
    }

    /// [batch, length, d_model] to [batch, heads, length, d_kv]
    fn heads_of(&self, input: &Tensor, projection: &Tensor) -> Result<Tensor, TrainerError> {
        let (batch, length, _) = input.size3()?;
        let projected = input.f_linear(projection, None::<&Tensor>)?;
        Ok(projected.f_view([batch, length, self.heads, self.d_kv])?.f_transpose(1, 2)?)
    }
}

struct FeedForward {
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

    fn forward(&self, hidden: &Tensor, dropout: Dropout) -> Result<Tensor, TrainerError> {
        let normed = self.layer_norm.forward(hidden)?;
        let mut inner = self.activate(&normed.f_linear(&self.wi[0], None::<&Tensor>)?)?;
        if let Some(gate) = self.wi.get(1) {
            inner = inner.f_mul(&normed.f_linear(gate, None::<&Tensor>)?)?;
        }
        let output = dropout.apply(&inner)?.f_linear(&self.wo, None::<&Tensor>)?;
        Ok(hidden.f_add(&dropout.apply(&output)?)?)
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
struct Norm {
    weight: Tensor,
    epsilon: f64,
}

impl Norm {
    fn new(config: &T5Config, weights: &Weights, path: &str) -> Self {
        Self { weight: weights.get(&format!("{path}.weight")), epsilon: config.layer_norm_epsilon }
    }

    fn forward(&self, hidden: &Tensor) -> Result<Tensor, TrainerError> {
        let variance = hidden.f_square()?.f_mean_dim(-1i64, true, None)?;
        Ok(hidden.f_mul(&variance.f_add_scalar(self.epsilon)?.f_rsqrt()?)?.f_mul(&self.weight)?)
    }
}

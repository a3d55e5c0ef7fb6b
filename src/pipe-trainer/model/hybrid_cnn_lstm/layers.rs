//! Its layers: convolutions with norms, an LSTM, attention with a norm, and a head.

use std::sync::Arc;

use pipe_model::hybrid_cnn_lstm::{HybridConfig, NormKind};
use tch::Tensor;

use super::batch_norm::BatchNorm;
use crate::error::TrainerError;
use crate::model::attention::{Scores, attend};
use crate::model::layers::{LayerNorm, Linear, merge_heads, split_heads};
use crate::model::pass::{Block, Pass};
use crate::model::weights::{SharedTensor, Weights};
use crate::ranks::SharedSum;

/// Of torch's norms.
const EPSILON: f64 = 1e-5;

/// A convolution, a norm and gelu. What batch norm remembers must be seen once, so only the other kind is recomputed.
pub enum Stage {
    Layer(Arc<LayerStage>),
    Batch(Conv, BatchNorm),
}

impl Stage {
    pub fn new(config: &HybridConfig, weights: &Weights, index: usize) -> Self {
        let conv = Conv::new(config, weights, index);
        let path = format!("norm.{index}");
        match config.norm {
            NormKind::Layer => {
                Self::Layer(Arc::new(LayerStage { conv, norm: LayerNorm::new(weights, &path, EPSILON) }))
            }
            NormKind::Batch => Self::Batch(conv, BatchNorm::new(weights, &path)),
        }
    }

    /// [batch, channels, time]
    pub fn forward(&self, input: &Tensor, number: u64, training: bool, pass: Pass) -> Result<Tensor, TrainerError> {
        match self {
            Self::Layer(stage) => pass.block(stage, number, &[input]),
            Self::Batch(conv, norm) => Ok(norm.forward(&conv.forward(input, pass)?, training)?.f_gelu("none")?),
        }
    }

    pub fn share_statistics(&self, sum: &'static SharedSum) {
        if let Self::Batch(_, norm) = self {
            norm.share_statistics(sum);
        }
    }

    pub fn step_ended(&self, done: bool) -> Result<(), TrainerError> {
        match self {
            Self::Layer(_) => Ok(()),
            Self::Batch(_, norm) => norm.step_ended(done),
        }
    }
}

pub struct Conv {
    weight: SharedTensor,
    bias: SharedTensor,
    padding: i64,
}

impl Conv {
    fn new(config: &HybridConfig, weights: &Weights, index: usize) -> Self {
        let of = |name: &str| weights.get(&format!("conv.{index}.{name}"));
        Self { weight: of("weight"), bias: of("bias"), padding: config.kernel_size / 2 }
    }

    fn forward(&self, input: &Tensor, pass: Pass) -> Result<Tensor, TrainerError> {
        let (weight, bias) = (self.weight.f_to_kind(pass.compute)?, self.bias.f_to_kind(pass.compute)?);
        Ok(input.f_to_kind(pass.compute)?.f_conv1d(&weight, Some(&bias), [1], [self.padding], [1], 1)?)
    }
}

pub struct LayerStage {
    conv: Conv,
    norm: LayerNorm,
}

impl Block for LayerStage {
    /// The norm is one over all channels and times of a sample: GroupNorm with one group.
    fn forward(&self, inputs: &[&Tensor], pass: Pass) -> Result<Tensor, TrainerError> {
        let hidden = self.conv.forward(inputs[0], pass)?;
        let LayerNorm { weight, bias, epsilon } = &self.norm;
        let (weight, bias) = (weight.f_to_kind(hidden.kind())?, bias.f_to_kind(hidden.kind())?);
        Ok(hidden.f_group_norm(1, Some(&weight), Some(&bias), *epsilon, true)?.f_gelu("none")?)
    }
}

pub struct Attention {
    qkv: Linear,
    out: Linear,
    norm: LayerNorm,
    heads: i64,
}

impl Attention {
    pub fn new(config: &HybridConfig, weights: &Weights) -> Self {
        Self {
            qkv: Linear::new(weights, "attn.qkv"),
            out: Linear::new(weights, "attn.out"),
            norm: LayerNorm::new(weights, "attn_norm", EPSILON),
            heads: config.attention_heads,
        }
    }
}

impl Block for Attention {
    /// [batch, time, width]
    fn forward(&self, inputs: &[&Tensor], pass: Pass) -> Result<Tensor, TrainerError> {
        // Nothing is dropped but in the head.
        let pass = pass.dropping(0.0);
        let qkv = self.qkv.forward(inputs[0], pass)?.f_chunk(3, -1)?;
        let heads = |index: usize| split_heads(&qkv[index], self.heads);
        let attended = attend([&heads(0)?, &heads(1)?, &heads(2)?], Scores::default(), pass)?;
        self.norm.after(&self.out.product(&merge_heads(&attended)?, pass)?, inputs[0], pass)
    }
}

pub struct Head {
    first: Linear,
    second: Linear,
}

impl Head {
    pub fn new(weights: &Weights) -> Self {
        Self { first: Linear::new(weights, "head.0"), second: Linear::new(weights, "head.1") }
    }

    /// [batch, width] to [batch, classes]
    pub fn forward(&self, pooled: &Tensor, pass: Pass) -> Result<Tensor, TrainerError> {
        let hidden = self.first.forward(pooled, pass)?.f_gelu("none")?;
        self.second.forward(&pass.drop_out(&hidden)?, pass)
    }
}

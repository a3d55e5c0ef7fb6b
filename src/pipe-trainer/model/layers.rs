//! Layers that several architectures have.

use tch::{Kind, Tensor};

use super::activation::Activation;
use super::pass::Pass;
use crate::error::TrainerError;
use crate::precision;
use crate::torch;
use crate::weights::Weights;

pub struct Linear {
    pub weight: Tensor,
    pub bias: Option<Tensor>,
}

impl Linear {
    /// `<path>.weight` and `<path>.bias`.
    pub fn new(weights: &Weights, path: &str) -> Self {
        Self { bias: Some(weights.get(&format!("{path}.bias"))), ..Self::without_bias(weights, path) }
    }

    pub fn without_bias(weights: &Weights, path: &str) -> Self {
        Self { weight: weights.get(&format!("{path}.weight")), bias: None }
    }

    /// In the kind that the pass computes in.
    pub fn forward(&self, input: &Tensor, pass: Pass) -> Result<Tensor, TrainerError> {
        pass.linear(&input.f_to_kind(pass.compute)?, &self.weight, self.bias.as_ref())
    }
}

pub struct LayerNorm {
    pub weight: Tensor,
    pub bias: Tensor,
    pub epsilon: f64,
}

impl LayerNorm {
    /// `<path>.weight` and `<path>.bias`.
    pub fn new(weights: &Weights, path: &str, epsilon: f64) -> Self {
        let of = |name: &str| weights.get(&format!("{path}.{name}"));
        Self { weight: of("weight"), bias: of("bias"), epsilon }
    }

    /// In the kind of the input; inside in fp32.
    pub fn forward(&self, input: &Tensor) -> Result<Tensor, TrainerError> {
        let (weight, bias) = (self.weight.f_to_kind(input.kind())?, self.bias.f_to_kind(input.kind())?);
        Ok(input.f_layer_norm(self.weight.size(), Some(&weight), Some(&bias), self.epsilon, true)?)
    }

    /// What a layer gave, some of it dropped, added to what went into it, and normed: the end of a block that norms last.
    pub fn after(&self, output: &Tensor, input: &Tensor, pass: Pass) -> Result<Tensor, TrainerError> {
        let residual = input.f_to_kind(output.kind())?;
        if output.device().is_cuda() {
            let affine = [&self.weight, &self.bias];
            if let Some(normed) = torch::add_norm(output, &residual, affine, self.epsilon, pass.dropped())? {
                return Ok(normed);
            }
        }
        self.forward(&pass.drop_add(output, &residual)?)
    }
}

/// Two layers with an activation between them.
pub struct FeedForward {
    pub first: Linear,
    /// Multiplied with the activation.
    pub gate: Option<Tensor>,
    pub second: Linear,
    pub activation: Activation,
    /// Whether some of what lies between the layers is dropped.
    pub drops: bool,
}

impl FeedForward {
    /// `input` is in the kind that the pass computes in, and so is what comes out.
    pub fn forward(&self, input: &Tensor, pass: Pass) -> Result<Tensor, TrainerError> {
        if input.device().is_cuda() {
            let fused = torch::FeedForward {
                first: &self.first.weight,
                first_bias: self.first.bias.as_ref(),
                gate: self.gate.as_ref(),
                second: &self.second.weight,
                second_bias: self.second.bias.as_ref(),
                activation: self.activation as i64,
                dropped: if self.drops { pass.dropped() } else { torch::Dropped::NOTHING },
            };
            return Ok(fused.forward(input)?);
        }
        let mut inner = self.activation.apply(&self.first.forward(input, pass)?)?;
        if let Some(gate) = &self.gate {
            inner = inner.f_mul(&pass.linear(input, gate, None)?)?;
        }
        let inner = if self.drops { pass.drop_out(&inner)? } else { inner };
        self.second.forward(&inner, pass)
    }
}

/// [batch, length, width] to [batch, heads, length, width / heads]
pub fn split_heads(input: &Tensor, heads: i64) -> Result<Tensor, TrainerError> {
    let (batch, length, width) = input.size3()?;
    Ok(input.f_view([batch, length, heads, width / heads])?.f_transpose(1, 2)?)
}

/// The inverse.
pub fn merge_heads(input: &Tensor) -> Result<Tensor, TrainerError> {
    let (batch, heads, length, width) = input.size4()?;
    Ok(input.f_transpose(1, 2)?.f_reshape([batch, length, heads * width])?)
}

/// Fused attention of heads, scores scaled by 1/sqrt(width), with a part of its weights dropped. `mask` is added to the
/// scores.
pub fn attend(
    [q, k, v]: [&Tensor; 3],
    mask: Option<&Tensor>,
    is_causal: bool,
    pass: Pass,
) -> Result<Tensor, TrainerError> {
    attend_scaled([q, k, v], mask, is_causal, None, pass)
}

/// The same with scores scaled by `scale`.
pub fn attend_scaled(
    [q, k, v]: [&Tensor; 3],
    mask: Option<&Tensor>,
    is_causal: bool,
    scale: Option<f64>,
    pass: Pass,
) -> Result<Tensor, TrainerError> {
    let dropped = pass.attention_dropout();
    Ok(Tensor::f_scaled_dot_product_attention(q, k, v, mask, dropped, is_causal, scale, false)?)
}

/// [batch, length], 1 where there is a token, as what is added to scores: [batch, 1, 1, length].
pub fn padding_mask(attention_mask: &Tensor, kind: Kind) -> Result<Tensor, TrainerError> {
    let hidden = attention_mask.f_eq(0)?.f_unsqueeze(1)?.f_unsqueeze(1)?;
    Ok(hidden.f_to_kind(kind)?.f_mul_scalar(precision::hidden_score(kind))?)
}

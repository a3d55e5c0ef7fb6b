//! A layer of a decoder model: attention with rotary positions, in which several heads of queries share one of keys and values, and a
//! gated feed-forward part, each with a norm before it and a residual connection.

use pipe_model::Activation;
use pipe_model::llama::{Heads, LlamaConfig};
use tch::{Device, Kind, Tensor};

use crate::data::Packed;
use crate::error::TrainerError;
use crate::model::attention::{Scores, attend};
use crate::model::layers::{self, FeedForward, Linear, RmsNorm, activate_gated, merge_heads, split_heads};
use crate::model::pass::{self, Pass};
use crate::model::setup::hidden_score;
use crate::model::weights::{SharedTensor, Weights};
use crate::torch;

pub struct Layer {
    input_norm: RmsNorm,
    queries_keys_values: [Linear; 3],
    /// Those of queries and of keys, head by head.
    head_norms: Option<[RmsNorm; 2]>,
    attention_output: Linear,
    post_attention_norm: RmsNorm,
    feed_forward: Gated,
    heads: Heads,
    /// How many tokens a token sees, itself included.
    window: Option<i64>,
}

impl Layer {
    pub fn new(config: &LlamaConfig, weights: &Weights, number: usize) -> Self {
        let path = |name: &str| format!("model.layers.{number}.{name}");
        let linear = |name: &str, has_bias: bool| match has_bias {
            true => Linear::new(weights, &path(name)),
            false => Linear::without_bias(weights, &path(name)),
        };
        let norm = |name: &str| RmsNorm::new(weights, &path(name), config.rms_norm_eps);
        let biases = config.biases;
        let attention = |name: &str| linear(&format!("self_attn.{name}"), biases.queries_keys_values);
        let feed_forward = |name: &str| linear(&format!("mlp.{name}"), biases.feed_forward);
        let norms_heads = config.family.norms_queries_and_keys();
        Self {
            input_norm: norm("input_layernorm"),
            queries_keys_values: ["q_proj", "k_proj", "v_proj"].map(attention),
            head_norms: norms_heads.then(|| ["self_attn.q_norm", "self_attn.k_norm"].map(norm)),
            attention_output: linear("self_attn.o_proj", biases.attention_output),
            post_attention_norm: norm("post_attention_layernorm"),
            feed_forward: Gated::new(["gate_proj", "up_proj", "down_proj"].map(feed_forward), config.hidden_act),
            heads: config.heads,
            window: config.windows[number],
        }
    }

    pub fn step(
        &self,
        hidden: &Tensor,
        turns: [&Tensor; 2],
        rows: Rows<'_>,
        pass: Pass,
    ) -> Result<Tensor, TrainerError> {
        let (normed, hidden) = self.input_norm.forward_and_residual(hidden, pass.compute)?;
        let attended = self.attend(&normed, turns, rows, pass)?;
        let hidden = hidden.f_add(&self.attention_output.forward(&attended, pass)?)?;
        let (normed, hidden) = self.post_attention_norm.forward_and_residual(&hidden, pass.compute)?;
        Ok(hidden.f_add(&self.feed_forward.forward(&normed, pass)?)?)
    }

    fn attend(&self, normed: &Tensor, turns: [&Tensor; 2], rows: Rows<'_>, pass: Pass) -> Result<Tensor, TrainerError> {
        let [q, k, v] = &self.queries_keys_values;
        let [of_queries, of_keys] =
            self.head_norms.as_ref().map(<[RmsNorm; 2]>::each_ref).map_or([None; 2], |norms| norms.map(Some));
        let [q, k, v] = layers::apart(normed, [q, k, v], pass)?;
        let heads = |projected: &Tensor, count: i64, norm: Option<&RmsNorm>| -> Result<Tensor, TrainerError> {
            let Some(norm) = norm else { return split_heads(projected, count) };
            let (batch, length, _) = projected.size3()?;
            let each = projected.f_view([batch, length, count, self.heads.width])?;
            Ok(norm.forward_and_residual(&each, pass.compute)?.0.f_transpose(1, 2)?)
        };
        let q = turn(&heads(&q, self.heads.queries, of_queries)?, turns)?;
        let mut k = turn(&heads(&k, self.heads.keys, of_keys)?, turns)?;
        let mut v = heads(&v, self.heads.keys, None)?;
        let packed = match rows {
            Rows::Packed(packed) => Some([packed, packed]),
            Rows::Each => None,
            Rows::After(past) => {
                (k, v) = past.extend(k, v)?;
                None
            }
        };
        let (queries, keys) = match packed {
            Some([own, _]) => (own.longest(), own.longest()),
            None => (q.size()[2], k.size()[2]),
        };
        let mask = match self.window.filter(|window| *window < keys) {
            Some(window) => Some(window_mask([queries, keys], window, pass.compute, q.device())?),
            None => None,
        };
        // A single query is the last token and sees all before it.
        let is_causal = mask.is_none() && queries > 1;
        let scores = Scores { is_causal, key_mask: mask.as_ref(), packed, ..Scores::default() };
        merge_heads(&attend([&q, &k, &v], scores, pass)?)
    }
}

/// Where the tokens of a layer stand.
pub enum Rows<'a> {
    /// A row for each sample.
    Each,
    Packed(Packed<'a>),
    /// A row for each sample behind the tokens that are remembered, and they are remembered from then on as well.
    After(&'a mut Past),
}

impl pass::Block for Layer {
    /// `inputs` are hidden states, the cosines and sines of their positions, and where packed samples stand. What flows through keeps its kind.
    fn forward(&self, inputs: &[&Tensor], pass: Pass) -> Result<Tensor, TrainerError> {
        let rows = inputs[3..].try_into().map_or(Rows::Each, |tensors| Rows::Packed(Packed::from_tensors(tensors)));
        self.step(inputs[0], [inputs[1], inputs[2]], rows, pass)
    }
}

/// A feed-forward part whose activation is multiplied by a second product.
enum Gated {
    /// Computed as one, which keeps less on a card.
    Fused(FeedForward),
    Layers {
        gate: Linear,
        up: Linear,
        down: Linear,
        activation: Activation,
    },
}

impl Gated {
    fn new([gate, up, down]: [Linear; 3], activation: Activation) -> Self {
        let is_plain = up.bias.is_none() && [&gate, &up, &down].iter().all(|layer| layer.plain().is_some());
        match is_plain {
            true => Self::Fused(FeedForward { first: gate, gate: Some(up), second: down, activation, drops: false }),
            false => Self::Layers { gate, up, down, activation },
        }
    }

    fn forward(&self, input: &Tensor, pass: Pass) -> Result<Tensor, TrainerError> {
        match self {
            Self::Fused(layers) => layers.forward(input, pass),
            Self::Layers { gate, up, down, activation } => {
                let (inner, by) = (gate.forward(input, pass)?, up.forward(input, pass)?);
                down.forward(&activate_gated(*activation, &inner, &by)?, pass)
            }
        }
    }
}

/// The keys and values of the tokens before.
#[derive(Default)]
pub struct Past(Option<[Tensor; 2]>);

impl Past {
    /// With those of new tokens behind them.
    fn extend(&mut self, keys: Tensor, values: Tensor) -> Result<(Tensor, Tensor), TrainerError> {
        let [keys, values] = match &self.0 {
            None => [keys, values],
            Some([before, values_before]) => {
                [Tensor::f_cat(&[before, &keys], 2)?, Tensor::f_cat(&[values_before, &values], 2)?]
            }
        };
        self.0 = Some([keys.shallow_clone(), values.shallow_clone()]);
        Ok((keys, values))
    }
}

/// How far the features of each position are turned.
pub struct Rotary {
    /// Radians by position for each pair of features, [width / 2] in fp32.
    frequencies: SharedTensor,
    attention_factor: f64,
}

impl Rotary {
    pub fn new(config: &LlamaConfig, device: Device) -> Result<Self, TrainerError> {
        let frequencies: Vec<f32> =
            config.rope.frequencies(config.heads.width).into_iter().map(|value| value as f32).collect();
        let frequencies = Tensor::f_from_slice(&frequencies)?.f_to_device(device)?.into();
        Ok(Self { frequencies, attention_factor: config.rope.attention_factor() })
    }

    /// Cosines and sines of `length` positions from `first` on, each [length, width].
    pub fn turns(&self, first: i64, length: i64, kind: Kind) -> Result<[Tensor; 2], TrainerError> {
        let options = (Kind::Float, self.frequencies.device());
        self.turns_of(&Tensor::f_arange_start(first, first + length, options)?, kind)
    }

    /// The same of any positions.
    pub fn turns_of(&self, positions: &Tensor, kind: Kind) -> Result<[Tensor; 2], TrainerError> {
        let positions = positions.f_to_kind(Kind::Float)?.f_unsqueeze(1)?;
        let angles = positions.f_mul(&self.frequencies.f_unsqueeze(0)?)?;
        let angles = Tensor::f_cat(&[&angles, &angles], 1)?;
        let scaled = |values: Tensor| values.f_mul_scalar(self.attention_factor)?.f_to_kind(kind);
        Ok([scaled(angles.f_cos()?)?, scaled(angles.f_sin()?)?])
    }
}

/// Each feature of the first half of a head is a pair with the one of the second half.
fn turn(heads: &Tensor, [cosines, sines]: [&Tensor; 2]) -> Result<Tensor, TrainerError> {
    if heads.device().is_cuda()
        && let Some(turned) = torch::turn(heads, [cosines, sines])?
    {
        return Ok(turned);
    }
    let half = heads.size()[3] / 2;
    let turned = Tensor::f_cat(&[heads.f_narrow(3, half, half)?.f_neg()?, heads.f_narrow(3, 0, half)?], 3)?;
    Ok(heads.f_mul(cosines)?.f_add(&turned.f_mul(sines)?)?)
}

/// Added to scores, [1, 1, queries, keys]: the last query is the last key, and each sees `window` keys up to its own.
fn window_mask([queries, keys]: [i64; 2], window: i64, kind: Kind, device: Device) -> Result<Tensor, TrainerError> {
    let ones = Tensor::f_ones([queries, keys], (Kind::Bool, device))?;
    let own = keys - queries;
    let seen = ones.f_tril(own)?.f_logical_and(&ones.f_triu(own - window + 1)?)?;
    let hidden = seen.f_logical_not()?.f_to_kind(kind)?.f_mul_scalar(hidden_score(kind))?;
    Ok(hidden.f_unsqueeze(0)?.f_unsqueeze(0)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_hides_later_and_far_keys() {
        let mask = window_mask([3, 4], 2, Kind::Float, Device::Cpu).unwrap().reshape([-1]);
        let seen: Vec<bool> = Vec::<f32>::try_from(mask).unwrap().into_iter().map(|score| score == 0.0).collect();
        assert_eq!(seen, [true, true, false, false, false, true, true, false, false, false, true, true]);
    }
}

//! Decoder models: Llama (Touvron et al., 2023), Mistral (Jiang et al., 2023), Qwen2 and Qwen3 (Yang et al., 2024 and 2025) as
//! transformers' `...ForCausalLM` compute them. Where rows are padded it is at their end, where no token before sees it: no mask is needed.
//!
//! A layer of a decoder model: attention with rotary positions, in which several heads of queries share one of keys and values, and a
//! gated feed-forward part, each with a norm before it and a residual connection.

mod generate;

use std::sync::Arc;

use pipe_model::Activation;
use pipe_model::llama::{Heads, LlamaConfig, parameters};
use serde_json::{Map, Value};
use tch::{Device, Kind, Tensor};

use super::attention::{self, Scores, attend};
use super::interface::{Model, Scorer, TextGenerator};
use super::layers::{self, FeedForward, Linear, RmsNorm, activate_gated, merge_heads, split_heads};
use super::pass::{self, Mode, Pass, Setup, Start, hidden_score};
use super::preference;
use super::weights::{SharedTensor, Weights};
use crate::data::{IGNORED, Packed, Part, next_packed_tokens, next_tokens};
use crate::error::TrainerError;
use crate::torch;

pub struct Llama {
    config: LlamaConfig,
    weights: Weights,
    /// The share of attention weights that is dropped.
    dropout: f64,
    setup: Setup,
    embeddings: SharedTensor,
    rotary: Rotary,
    layers: Vec<Arc<Layer>>,
    norm: RmsNorm,
    head: SharedTensor,
}

impl Llama {
    pub fn build(config: LlamaConfig, start: &Start<'_>, setup: &Setup) -> Result<Self, TrainerError> {
        let weights = Weights::start(&parameters(&config), start, setup)?;
        let embeddings = "model.embed_tokens.weight";
        Ok(Self {
            dropout: setup.dropout.unwrap_or(config.attention_dropout),
            setup: *setup,
            embeddings: weights.get(embeddings),
            rotary: Rotary::new(&config, setup.device)?,
            layers: (0..config.windows.len()).map(|number| Arc::new(Layer::new(&config, &weights, number))).collect(),
            norm: RmsNorm::new(&weights, "model.norm", config.rms_norm_eps),
            head: weights.get(if config.tie_word_embeddings { embeddings } else { "lm_head.weight" }),
            config,
            weights,
        })
    }

    /// In the kind that is added up along the layers.
    fn embed(&self, ids: &Tensor) -> Result<Tensor, TrainerError> {
        Ok(Tensor::f_embedding(&self.embeddings, ids, -1, false, false)?.f_to_kind(self.setup.kinds.weights)?)
    }

    /// The input of the head: [batch, length, hidden_size], or [1, tokens, hidden_size] of packed samples, in the kind that is computed in.
    fn read(&self, part: &Part, mode: Mode) -> Result<Tensor, TrainerError> {
        let (name, ids) = ids(part)?;
        let packed = part.packed(name);
        let pass = Pass::new(mode, self.dropout, &self.setup).through(packed);
        let length = packed.map_or(ids.size2()?.1, Packed::longest);
        if length > self.config.max_position_embeddings {
            let message = format!("found {}; a row has {length} tokens", self.config.max_position_embeddings);
            return Err(TrainerError::config("max_position_embeddings", message));
        }
        let [cosines, sines] = match packed {
            Some(packed) => self.rotary.turns_of(&packed.positions()?, pass.compute)?,
            None => self.rotary.turns(0, length, pass.compute)?,
        };
        let mut hidden = pass.first_input(self.embed(ids)?)?;
        for (layer, number) in self.layers.iter().zip(1..) {
            let rows = packed.into_iter().flat_map(Packed::tensors);
            let inputs: Vec<&Tensor> = [&hidden, &cosines, &sines].into_iter().chain(rows).collect();
            hidden = pass.block(layer, number, &inputs)?;
        }
        Ok(self.norm.forward(&hidden)?.f_to_kind(pass.compute)?)
    }

    fn head(&self) -> Result<Tensor, TrainerError> {
        Ok(self.head.f_to_kind(self.setup.kinds.compute)?)
    }
}

/// Tokens have one name in files of transformers, and another one where texts were cut into rows.
fn ids(part: &Part) -> Result<(&'static str, &Tensor), TrainerError> {
    match part.find("input_ids") {
        Some(ids) => Ok(("input_ids", ids)),
        None => Ok(("ids", part.get("ids")?)),
    }
}

/// The token that each token predicts, or `IGNORED`.
fn labels(part: &Part) -> Result<Tensor, TrainerError> {
    let (name, ids) = ids(part)?;
    let labels = part.get("labels")?;
    match part.packed(name) {
        Some(packed) => Ok(next_packed_tokens(labels, packed, part.packed("labels").unwrap_or(packed))?),
        None => Ok(next_tokens(labels, ids.size2()?.1)?),
    }
}

impl Model for Llama {
    fn weights(&self) -> &Weights {
        &self.weights
    }

    /// [batch, length, vocab_size]
    fn logits(&self, part: &Part, mode: Mode) -> Result<Tensor, TrainerError> {
        let logits = self.read(part, mode)?.f_linear(&self.head()?, None::<&Tensor>)?;
        Ok(part.packed(ids(part)?.0).map(|packed| packed.unpacked(&logits)).transpose()?.unwrap_or(logits))
    }

    fn loss_sum(&self, part: &Part, mode: Mode) -> Result<Tensor, TrainerError> {
        let hidden = self.read(part, mode)?.f_reshape([-1, self.config.hidden_size])?;
        let labels = labels(part)?.f_reshape([-1])?;
        Ok(torch::linear_cross_entropy(&hidden, &self.head()?, &labels, IGNORED, self.config.loss_rows())?)
    }

    fn targets(&self, part: &Part) -> Result<i64, TrainerError> {
        Ok(labels(part)?.f_ne(IGNORED)?.f_sum(Kind::Int64)?.f_int64_value(&[])?)
    }

    fn config(&self) -> Map<String, Value> {
        self.config.export()
    }

    fn takes_packed(&self) -> bool {
        true
    }

    fn packs(&self) -> bool {
        attention::packs(self.setup.kinds.compute, self.setup.device, self.config.heads.width)
    }

    /// A window is a mask that torch attends with.
    fn is_recordable(&self) -> bool {
        self.packs() && self.config.windows.iter().all(Option::is_none)
    }

    fn text_generator(&self) -> Option<&dyn TextGenerator> {
        Some(self)
    }

    fn scorer(&self) -> Option<&dyn Scorer> {
        Some(self)
    }
}

impl Scorer for Llama {
    fn log_probabilities(&self, part: &Part, mode: Mode) -> Result<Tensor, TrainerError> {
        let hidden = self.read(part, mode)?;
        let (rows, labels) = (hidden.f_reshape([-1, self.config.hidden_size])?, labels(part)?);
        let each =
            preference::log_probabilities(&rows, &self.head()?, &labels.f_reshape([-1])?, self.config.loss_rows())?;
        let (name, ids) = ids(part)?;
        let each = each.f_reshape(ids.size())?;
        let Some(packed) = part.packed(name) else { return Ok(each.f_sum_dim_intlist(1i64, false, Kind::Float)?) };
        let is_own = packed.counts.f_unsqueeze(0)?.f_lt_tensor(&packed.lengths()?.f_unsqueeze(1)?)?;
        Ok(packed.unpacked(&each)?.f_mul(&is_own)?.f_sum_dim_intlist(1i64, false, Kind::Float)?)
    }
}

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

//! T5's layers: a stack of blocks; in a block self-attention, in the decoder attention to the encoder, and a feed-forward
//! layer, each behind a norm and added to what came in.
//!
//! Relative positions in buckets and masks are added to attention scores.

use std::sync::Arc;

use pipe_model::t5::{FeedForwardKind, T5Config};
use tch::{Device, Kind, Tensor};

use crate::data::Packed;
use crate::error::TrainerError;
use crate::model::attention::{Scores, attend, has_kernel, padding_of};
use crate::model::layers::{self, Linear, RmsNorm};
use crate::model::pass::{self, Pass, hidden_score};
use crate::model::weights::{SharedTensor, Weights};

pub struct Stack {
    pub(super) blocks: Vec<Arc<Block>>,
    pub(super) final_layer_norm: RmsNorm,
    /// [buckets, heads]; the first block's, used by all.
    pub(super) relative_attention_bias: SharedTensor,
    pub(super) buckets: Buckets,
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
            final_layer_norm: norm(config, weights, &format!("{name}.final_layer_norm")),
            relative_attention_bias: weights.get(&bias),
            buckets: Buckets {
                count: config.relative_attention_num_buckets,
                max_distance: config.relative_attention_max_distance,
                bidirectional: !is_decoder,
            },
            d_kv: config.d_kv,
            first: if is_decoder { config.num_layers as u64 + 3 } else { 1 },
        }
    }

    /// `memory` is the encoder's output, in the decoder.
    pub fn forward(
        &self,
        hidden: &Tensor,
        rows: Rows<'_>,
        memory: Option<&Tensor>,
        pass: Pass,
    ) -> Result<Tensor, TrainerError> {
        let pass = pass.through(rows.packed(memory.is_some()).map(|[own, _]| own));
        let bias = self.bias(hidden, rows, memory.is_some(), pass)?;
        let beside = rows.tensors(memory.is_some());
        let mut hidden = hidden.shallow_clone();
        for (index, block) in self.blocks.iter().enumerate() {
            let mut inputs = vec![&hidden, &bias];
            inputs.extend(memory);
            inputs.extend(&beside);
            hidden = pass.block(block, self.first + index as u64, &inputs)?;
        }
        let last = pass.for_block(self.first + self.blocks.len() as u64);
        last.drop_out(&self.final_layer_norm.forward(&hidden)?)
    }

    /// By distance where there is a kernel. Elsewhere what is added to the scores of self-attention, [batch, heads, length, length],
    /// whole in memory: only then does the fused attention of torch compute its gradient.
    fn bias(&self, hidden: &Tensor, rows: Rows<'_>, is_decoder: bool, pass: Pass) -> Result<Tensor, TrainerError> {
        let packed = rows.packed(is_decoder).map(|[own, _]| own);
        let (batch, length) = match packed {
            Some(packed) => (packed.samples(), packed.longest()),
            None => (hidden.size()[0], hidden.size()[1]),
        };
        let table = &self.relative_attention_bias;
        let padding = match rows {
            Rows::Each { padding } => padding.filter(|_| !is_decoder),
            Rows::Packed { .. } => None,
        };
        if has_kernel(pass.compute, hidden.device(), self.d_kv) && padding.is_none_or(|padding| padding.dim() == 1) {
            return self.buckets.by_distance(table, length);
        }
        let behind = match packed.filter(|packed| !is_decoder && !packed.is_even()) {
            Some(packed) => Some(padding_of(packed, pass.compute)?),
            None => None,
        };
        let padding = padding.or(behind.as_ref());
        let mut bias = self.buckets.bias(table, length)?.f_to_kind(pass.compute)?;
        if !self.buckets.bidirectional {
            bias = bias.f_add(&causal_bias(length, pass.compute, hidden.device())?)?;
        }
        if let Some(padding) = padding {
            bias = bias.f_add(padding)?;
        }
        let heads = bias.size()[1];
        Ok(bias.f_expand([batch, heads, length, length], false)?.f_contiguous()?)
    }
}

/// Where the samples of a part stand.
#[derive(Clone, Copy)]
pub enum Rows<'a> {
    /// Each in a row of its own; `padding` hides keys of the source.
    Each {
        padding: Option<&'a Tensor>,
    },
    Packed {
        source: Packed<'a>,
        target: Option<Packed<'a>>,
    },
}

impl<'a> Rows<'a> {
    /// Those of a stack itself, and of the source.
    fn packed(self, is_decoder: bool) -> Option<[Packed<'a>; 2]> {
        match self {
            Self::Each { .. } => None,
            Self::Packed { source, target } => Some([if is_decoder { target? } else { source }, source]),
        }
    }

    /// The tensors that blocks are given of them, for `of_inputs`.
    fn tensors(self, is_decoder: bool) -> Vec<&'a Tensor> {
        match (self, self.packed(is_decoder)) {
            (Self::Each { padding }, _) => padding.into_iter().collect(),
            (_, packed) => packed.into_iter().flatten().flat_map(Packed::tensors).collect(),
        }
    }

    fn of_inputs(inputs: &[&'a Tensor]) -> Self {
        let packed = |inputs: &[&'a Tensor]| inputs.try_into().ok().map(Packed::from_tensors);
        let (own, source) = inputs.split_at(inputs.len() / 2);
        match packed(own).zip(packed(source)) {
            Some((target, source)) => Self::Packed { source, target: Some(target) },
            None => Self::Each { padding: inputs.first().copied() },
        }
    }
}

/// T5 does not scale the scores: its initialisation does.
const UNSCALED: Scores<'static> =
    Scores { scale: Some(1.0), is_causal: false, key_mask: None, by_distance: None, packed: None };

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
    /// `inputs` are hidden states and the bias of self-attention; in the decoder also the encoder's output; and the rows of the samples.
    fn forward(&self, inputs: &[&Tensor], pass: Pass) -> Result<Tensor, TrainerError> {
        let (cross, memory, rows) = match (&self.cross_attention, inputs) {
            (Some(cross), [_, _, memory, rows @ ..]) => (Some(cross), Some(*memory), Rows::of_inputs(rows)),
            (_, inputs) => (None, None, Rows::of_inputs(&inputs[2..])),
        };
        let (padding, packed) = match rows {
            Rows::Each { padding } => (padding, None),
            Rows::Packed { .. } => (None, rows.packed(true)),
        };
        let own = packed.map(|[own, _]| [own, own]);
        // A bias by query and key hides all that is to be hidden.
        let scores = match inputs[1] {
            bias if bias.dim() == 4 => Scores { key_mask: Some(bias), packed: own, ..UNSCALED },
            bias => {
                let key_mask = padding.filter(|_| memory.is_none());
                Scores { by_distance: Some(bias), key_mask, is_causal: memory.is_some(), packed: own, ..UNSCALED }
            }
        };
        let mut hidden = self.attention.forward(inputs[0], None, scores, pass)?;
        if let Some(cross) = cross {
            hidden = cross.forward(&hidden, memory, Scores { key_mask: padding, packed, ..UNSCALED }, pass)?;
        }
        self.feed_forward.forward(&hidden, pass)
    }
}

pub(super) struct Attention {
    pub(super) layer_norm: RmsNorm,
    pub(super) q: Linear,
    pub(super) k: Linear,
    pub(super) v: Linear,
    pub(super) o: Linear,
    pub(super) heads: i64,
    pub(super) d_kv: i64,
}

impl Attention {
    fn new(config: &T5Config, weights: &Weights, layer: &str, name: &str) -> Self {
        let projection = |letter: &str| Linear::without_bias(weights, &format!("{layer}.{name}.{letter}"));
        let [q, k, v] = ["q", "k", "v"].map(projection);
        layers::lay_together([&q, &k, &v]);
        Self {
            layer_norm: norm(config, weights, &format!("{layer}.layer_norm")),
            q,
            k,
            v,
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
        let (normed, hidden) = self.layer_norm.forward_and_residual(hidden, pass.compute)?;
        let [q, k, v] = match memory {
            None => self.heads_of(&normed, [&self.q, &self.k, &self.v], pass)?,
            Some(memory) => {
                let [q] = self.heads_of(&normed, [&self.q], pass)?;
                let source = scores.packed.map(|[_, source]| source);
                let [k, v] = self.heads_of(memory, [&self.k, &self.v], pass.through(source))?;
                [q, k, v]
            }
        };
        let attended = attend([&q, &k, &v], scores, pass)?;
        let (batch, length, _) = hidden.size3()?;
        let merged = attended.f_transpose(1, 2)?.f_reshape([batch, length, self.heads * self.d_kv])?;
        pass.drop_add(&self.o.forward(&merged, pass)?, &hidden)
    }

    /// [batch, length, d_model] to [batch, heads, length, d_kv], by each projection. On a card they are one product: so is the gradient of the
    /// input, of which nothing is added up afterwards.
    fn heads_of<const N: usize>(
        &self,
        input: &Tensor,
        projections: [&Linear; N],
        pass: Pass,
    ) -> Result<[Tensor; N], TrainerError> {
        let (batch, length, _) = input.size3()?;
        let projected = match N > 1 && input.device().is_cuda() {
            true => layers::together(input, projections, pass)?,
            false => layers::each(input, projections, pass)?,
        };
        let heads = |one: &Tensor| one.f_view([batch, length, self.heads, self.d_kv])?.f_transpose(1, 2);
        let all = projected.iter().map(heads).collect::<Result<Vec<_>, _>>()?;
        Ok(all.try_into().expect("each projection has a result"))
    }
}

pub(super) struct FeedForward {
    layer_norm: RmsNorm,
    layers: layers::FeedForward,
}

impl FeedForward {
    fn new(config: &T5Config, weights: &Weights, layer: &str) -> Self {
        let dense = |name: &str| Linear::without_bias(weights, &format!("{layer}.DenseReluDense.{name}"));
        let FeedForwardKind { gated, activation } = config.feed_forward;
        let first = dense(if gated { "wi_0" } else { "wi" });
        let gate = gated.then(|| dense("wi_1"));
        Self {
            layer_norm: norm(config, weights, &format!("{layer}.layer_norm")),
            layers: layers::FeedForward { first, gate, second: dense("wo"), activation, drops: true },
        }
    }

    pub(super) fn forward(&self, hidden: &Tensor, pass: Pass) -> Result<Tensor, TrainerError> {
        let (normed, hidden) = self.layer_norm.forward_and_residual(hidden, pass.compute)?;
        pass.drop_add(&self.layers.forward(&normed, pass)?, &hidden)
    }
}

fn norm(config: &T5Config, weights: &Weights, path: &str) -> RmsNorm {
    RmsNorm::new(weights, path, config.layer_norm_epsilon)
}

/// Near positions have a bucket each, far ones share buckets that grow with the logarithm of the distance.
pub struct Buckets {
    pub count: i64,
    pub max_distance: i64,
    /// Whether positions behind are distinguished from positions ahead; otherwise those ahead count as 0.
    pub bidirectional: bool,
}

impl Buckets {
    /// [1, heads, length, length] from the trained `weight` [buckets, heads].
    pub fn bias(&self, weight: &Tensor, length: i64) -> Result<Tensor, TrainerError> {
        let positions = Tensor::f_arange(length, (Kind::Int64, weight.device()))?;
        let distances = positions.f_unsqueeze(0)?.f_sub(&positions.f_unsqueeze(1)?)?;
        self.values(weight, &distances)
    }

    /// [heads, 2 * length - 1]: the value of each distance, from 1 - length on.
    pub fn by_distance(&self, weight: &Tensor, length: i64) -> Result<Tensor, TrainerError> {
        let distances = Tensor::f_arange_start(1 - length, length, (Kind::Int64, weight.device()))?;
        Ok(Tensor::f_embedding(weight, &self.of(&distances)?, -1, false, false)?.f_transpose(0, 1)?)
    }

    /// [1, heads, 1, length]: the last row of `bias`.
    pub fn last_row(&self, weight: &Tensor, length: i64) -> Result<Tensor, TrainerError> {
        let distances = Tensor::f_arange_start(1 - length, 1, (Kind::Int64, weight.device()))?;
        self.values(weight, &distances.f_unsqueeze(0)?)
    }

    /// [1, heads, queries, keys] for distances [queries, keys].
    fn values(&self, weight: &Tensor, distances: &Tensor) -> Result<Tensor, TrainerError> {
        let values = Tensor::f_embedding(weight, &self.of(distances)?, -1, false, false)?;
        Ok(values.f_permute([2, 0, 1])?.f_unsqueeze(0)?)
    }

    /// The bucket of each distance (key minus query), step by step as `T5Attention._relative_position_bucket`, so that
    /// rounding falls the same way at the edges of buckets.
    fn of(&self, distances: &Tensor) -> Result<Tensor, TrainerError> {
        let (count, base, distances) = if self.bidirectional {
            let half = self.count / 2;
            (half, distances.f_gt(0)?.f_to_kind(Kind::Int64)?.f_mul_scalar(half)?, distances.f_abs()?)
        } else {
            (self.count, distances.f_zeros_like()?, distances.f_clamp_max(0)?.f_neg()?)
        };
        let exact = count / 2;
        let range = (self.max_distance as f64 / exact as f64).ln();
        let far = distances
            .f_to_kind(Kind::Float)?
            .f_div_scalar(exact)?
            .f_log()?
            .f_div_scalar(range)?
            .f_mul_scalar(count - exact)?
            // The logarithm of distance 0 has no whole number; it is not used, because 0 is near.
            .f_clamp_min(0)?
            .f_to_kind(Kind::Int64)?
            .f_add_scalar(exact)?
            .f_clamp_max(count - 1)?;
        Ok(base.f_add(&distances.f_where_self(&distances.f_lt(exact)?, &far)?)?)
    }
}

/// [1, 1, length, length]: no position sees a later one.
pub fn causal_bias(length: i64, kind: Kind, device: Device) -> Result<Tensor, TrainerError> {
    Ok(Tensor::f_full([1, 1, length, length], hidden_score(kind), (kind, device))?.f_triu(1)?)
}

#[cfg(test)]
mod position_tests {
    use super::*;
    use crate::model::attention::padding_mask;

    fn buckets(bidirectional: bool, distances: &[i64]) -> Vec<i64> {
        let buckets = Buckets { count: 32, max_distance: 128, bidirectional };
        Vec::try_from(buckets.of(&Tensor::from_slice(distances)).unwrap()).unwrap()
    }

    /// From transformers' `_relative_position_bucket` with 32 buckets and distance 128.
    #[test]
    fn distances_fall_into_the_buckets_of_transformers() {
        let distances = [0, 1, -1, 7, -7, 8, -8, 11, -12, 16, -16, 32, -32, 64, -100, 127, -128, 500, -500];
        assert_eq!(buckets(true, &distances), [0, 17, 1, 23, 7, 24, 8, 24, 9, 26, 10, 28, 12, 30, 15, 31, 15, 31, 15]);
        assert_eq!(buckets(false, &distances), [0, 0, 1, 0, 7, 0, 8, 0, 12, 0, 16, 0, 21, 0, 30, 0, 31, 0, 31]);
    }

    #[test]
    fn the_last_row_is_that_of_the_whole() {
        let weight = Tensor::arange(64, (Kind::Float, Device::Cpu)).reshape([32, 2]);
        for bidirectional in [true, false] {
            let buckets = Buckets { count: 32, max_distance: 128, bidirectional };
            let whole = buckets.bias(&weight, 40).unwrap();
            assert_eq!(buckets.last_row(&weight, 40).unwrap(), whole.narrow(2, 39, 1));
            let by_distance = buckets.by_distance(&weight, 40).unwrap();
            for (query, key) in [(0, 0), (0, 39), (39, 0), (7, 30)] {
                let want = whole.select(3, key).select(2, query).squeeze_dim(0);
                assert_eq!(by_distance.select(1, key - query + 39), want);
            }
        }
    }

    #[test]
    fn later_positions_and_padding_are_hidden() {
        let causal = causal_bias(2, Kind::Float, Device::Cpu).unwrap();
        assert_eq!(Vec::<f32>::try_from(causal.reshape([-1])).unwrap(), [0.0, f32::MIN, 0.0, 0.0]);
        let padding = padding_mask(&Tensor::from_slice(&[1i64, 0]).unsqueeze(0), Kind::Float).unwrap();
        assert_eq!(Vec::<f32>::try_from(padding.reshape([-1])).unwrap(), [0.0, f32::MIN]);
    }
}

//! The layers of DeBERTa: embeddings, layers of attention and a feed-forward part, each with a residual connection and a
//! norm after it, a convolution beside the first of them in some, and a head.
//!
//! Disentangled attention (He et al., 2021): beside the product of two tokens, their score has a part by the content of one and
//! the distance of the other.
//!
//! Distances between tokens: which row of the trained distances stands for each, and scores of distances as scores of tokens.

use pipe_model::Activation;
use pipe_model::deberta::{ConvConfig, DebertaConfig, Relative};
use tch::{Device, Kind, Tensor};

use crate::data::{Packed, Part, UNPACKED_TENSORS, UnpackedRows};
use crate::error::TrainerError;
use crate::model::attention::{Scores, attend};
use crate::model::layers::{LayerNorm, Linear, PostNormOutput, activate, merge_heads, split_heads, together};
use crate::model::pass::{self, Pass};
use crate::model::weights::{SharedTensor, Weights};

pub struct Embeddings {
    word_embeddings: SharedTensor,
    position_embeddings: Option<SharedTensor>,
    token_type_embeddings: Option<SharedTensor>,
    embed_proj: Option<Linear>,
    layer_norm: LayerNorm,
    pad_token_id: i64,
}

impl Embeddings {
    pub fn new(config: &DebertaConfig, weights: &Weights) -> Self {
        let of = |name: &str| weights.get(&format!("deberta.embeddings.{name}.weight"));
        Self {
            word_embeddings: of("word_embeddings"),
            position_embeddings: config.position_biased_input.then(|| of("position_embeddings")),
            token_type_embeddings: (config.type_vocab_size > 0).then(|| of("token_type_embeddings")),
            embed_proj: (config.embedding_size != config.hidden_size)
                .then(|| Linear::without_bias(weights, "deberta.embeddings.embed_proj")),
            layer_norm: LayerNorm::new(weights, "deberta.embeddings.LayerNorm", config.layer_norm_eps),
            pad_token_id: config.pad_token_id,
        }
    }

    /// In the kind of the weights; padding becomes 0. Tokens without types are all of the first.
    pub fn forward(&self, part: &Part, pass: Pass) -> Result<Tensor, TrainerError> {
        let input_ids = part.get("input_ids")?;
        // Frozen tables are narrow.
        let wide = self.layer_norm.weight.kind();
        let embedded = Tensor::f_embedding(&self.word_embeddings, input_ids, self.pad_token_id, false, false)?;
        let mut embedded = embedded.f_to_kind(wide)?;
        if let Some(table) = &self.position_embeddings {
            let (last, length) = (table.size()[0] - 1, input_ids.size2()?.1);
            // Padding may reach beyond the last position; it is masked.
            let counted = match part.packed("input_ids") {
                Some(packed) => packed.positions()?,
                None => Tensor::f_arange(length, (Kind::Int64, input_ids.device()))?,
            };
            embedded = embedded.f_add(&Tensor::f_embedding(table, &counted.f_clamp_max(last)?, -1, false, false)?)?;
        }
        if let Some(table) = &self.token_type_embeddings {
            let types = match part.find("token_type_ids") {
                Some(types) => Tensor::f_embedding(table, types, -1, false, false)?,
                None => table.f_narrow(0, 0, 1)?,
            };
            embedded = embedded.f_add(&types)?;
        }
        if let Some(projection) = &self.embed_proj {
            embedded = projection.forward(&embedded, pass)?.f_to_kind(wide)?;
        }
        let mut normed = self.layer_norm.forward(&embedded)?;
        if let Some(mask) = part.find("attention_mask") {
            normed = normed.f_mul(&mask.f_unsqueeze(2)?.f_to_kind(normed.kind())?)?;
        }
        pass.drop_out(&normed)
    }
}

pub struct Layer {
    attention: Attention,
    output: PostNormOutput,
    relative: bool,
}

impl Layer {
    pub fn new(config: &DebertaConfig, weights: &Weights, number: i64, attention_dropout: f64) -> Self {
        let path = format!("deberta.encoder.layer.{number}");
        Self {
            attention: Attention::new(config, weights, &format!("{path}.attention.self"), attention_dropout),
            output: PostNormOutput::new(weights, &path, config.hidden_act, config.layer_norm_eps),
            relative: config.relative.is_some(),
        }
    }
}

impl pass::Block for Layer {
    /// `inputs` are hidden states; with relative attention the embeddings of distances and the rows of these; where there is padding, what is added
    /// to scores; and the rows that packed samples are for attention.
    fn forward(&self, inputs: &[&Tensor], pass: Pass) -> Result<Tensor, TrainerError> {
        let (hidden, distances, rest) = match inputs {
            [hidden, embeddings, rows, rest @ ..] if self.relative => {
                (*hidden, Some(Distances { embeddings, rows }), rest)
            }
            [hidden, rest @ ..] => (*hidden, None, rest),
            [] => panic!("a layer without an input"),
        };
        let rows = rest.get(1..).and_then(unpacked_rows);
        let attended = self.attention.forward(hidden, rest.first().copied(), distances, rows.as_ref(), pass)?;
        self.output.forward(&attended, hidden, pass)
    }
}

/// The rows of packed samples, where `inputs` of a block are these.
fn unpacked_rows(inputs: &[&Tensor]) -> Option<UnpackedRows> {
    <[&Tensor; UNPACKED_TENSORS]>::try_from(inputs).ok().map(UnpackedRows::from_tensors)
}

/// A convolution of the embeddings, added to what the first layer gave.
pub struct Conv {
    weight: SharedTensor,
    bias: SharedTensor,
    norm: LayerNorm,
    config: ConvConfig,
}

impl Conv {
    pub fn new(config: &DebertaConfig, conv: ConvConfig, weights: &Weights) -> Self {
        let of = |name: &str| weights.get(&format!("deberta.encoder.conv.conv.{name}"));
        Self {
            weight: of("weight"),
            bias: of("bias"),
            norm: LayerNorm::new(weights, "deberta.encoder.conv.LayerNorm", config.layer_norm_eps),
            config: conv,
        }
    }
}

impl pass::Block for Conv {
    /// `inputs` are what the first layer gave, the embeddings and, where there is padding, the mask, [batch, length], or where samples are packed, their
    /// rows: none of them reaches into another.
    fn forward(&self, inputs: &[&Tensor], pass: Pass) -> Result<Tensor, TrainerError> {
        let (output, embeddings) = (inputs[0], inputs[1]);
        let rows = unpacked_rows(&inputs[2..]);
        let mask = inputs.get(2).filter(|_| rows.is_none());
        let mask = mask.map(|mask| mask.f_unsqueeze(2)?.f_to_kind(pass.compute)).transpose()?;
        let masked = |tensor: Tensor| match &mask {
            Some(mask) => tensor.f_mul(mask),
            None => Ok(tensor),
        };
        let (weight, bias) = (self.weight.f_to_kind(pass.compute)?, self.bias.f_to_kind(pass.compute)?);
        let ConvConfig { kernel_size, groups, activation } = self.config;
        let mut input = embeddings.f_to_kind(pass.compute)?;
        if let Some(rows) = &rows {
            input = rows.unpacked(&input)?.f_masked_fill(&rows.is_empty().f_unsqueeze(2)?, 0.0)?;
        }
        let input = input.f_transpose(1, 2)?;
        let found = input.f_conv1d(&weight, Some(&bias), [1], [kernel_size / 2], [1], groups)?.f_transpose(1, 2)?;
        let found = rows.as_ref().map(|rows| rows.packed(&found)).transpose()?.unwrap_or(found);
        let found = activate(activation, &pass.drop_out(&masked(found)?)?)?;
        Ok(masked(self.norm.forward(&output.f_add(&found)?.f_contiguous()?)?)?)
    }
}

/// From the first token, or from every token, to the logits.
pub struct Head {
    /// Absent where every token has a label.
    pooler: Option<Linear>,
    activation: Activation,
    classifier: Linear,
    pooler_dropout: f64,
    dropout: f64,
}

impl Head {
    pub fn new(config: &DebertaConfig, weights: &Weights, pooler_dropout: f64, dropout: f64) -> Self {
        Self {
            pooler: (!config.labels_tokens).then(|| Linear::new(weights, "pooler.dense")),
            activation: config.pooler_hidden_act,
            classifier: Linear::new(weights, "classifier"),
            pooler_dropout,
            dropout,
        }
    }

    pub fn forward(&self, hidden: &Tensor, packed: Option<Packed<'_>>, pass: Pass) -> Result<Tensor, TrainerError> {
        let Some(pooler) = &self.pooler else {
            let dropped = pass.through(packed).dropping(self.dropout).drop_out(hidden)?;
            return self.classifier.forward(&dropped, pass);
        };
        let first = match packed {
            Some(packed) => hidden.f_squeeze_dim(0)?.f_index_select(0, &packed.starts()?)?,
            None => hidden.f_select(1, 0)?,
        };
        let first = pass.dropping(self.pooler_dropout).drop_out(&first)?;
        let pooled = activate(self.activation, &pooler.forward(&first, pass)?)?;
        self.classifier.forward(&pass.dropping(self.dropout).drop_out(&pooled)?, pass)
    }
}

pub struct Attention {
    query: Linear,
    key: Linear,
    value: Linear,
    /// Makes keys of distances, where queries look at them.
    position_key: Option<Linear>,
    /// Makes queries of distances, where keys look at them.
    position_query: Option<Linear>,
    heads: i64,
    /// Scores are multiplied by this.
    scale: f64,
    dropout: f64,
}

/// The distances between tokens, as layers see them.
#[derive(Clone, Copy)]
pub struct Distances<'a> {
    /// One row for each bucket, [2 * span, hidden_size].
    pub embeddings: &'a Tensor,
    /// Which row stands for each distance, [2, 2 * length]: see `Relative::rows`.
    pub rows: &'a Tensor,
}

impl Attention {
    pub fn new(config: &DebertaConfig, weights: &Weights, path: &str, dropout: f64) -> Self {
        let linear = |name: &str| Linear::new(weights, &format!("{path}.{name}"));
        let position = |is_on: bool, shared: &str, own: &str| {
            let name = if config.share_att_key { shared } else { own };
            (is_on && config.relative.is_some()).then(|| linear(name))
        };
        let (head_size, heads) = (config.hidden_size / config.num_attention_heads, config.num_attention_heads);
        let parts = 1 + i64::from(config.c2p) + i64::from(config.p2c);
        Self {
            query: linear("query_proj"),
            key: linear("key_proj"),
            value: linear("value_proj"),
            position_key: position(config.c2p, "key_proj", "pos_key_proj"),
            position_query: position(config.p2c, "query_proj", "pos_query_proj"),
            heads,
            scale: ((head_size * parts) as f64).powf(-0.5),
            dropout,
        }
    }

    /// [batch, length, hidden_size]; `mask`, [batch, 1, length, length], is added to the scores. Packed samples, [1, tokens, hidden_size], are `rows`
    /// for a moment.
    pub fn forward(
        &self,
        hidden: &Tensor,
        mask: Option<&Tensor>,
        distances: Option<Distances<'_>>,
        rows: Option<&UnpackedRows>,
        pass: Pass,
    ) -> Result<Tensor, TrainerError> {
        let [mut q, mut k, mut v] = together(hidden, [&self.query, &self.key, &self.value], pass)?;
        if let Some(rows) = rows {
            (q, k, v) = (rows.unpacked(&q)?, rows.unpacked(&k)?, rows.unpacked(&v)?);
        }
        let bias = distances.map(|distances| self.bias(&q, &k, distances, pass)).transpose()?.flatten();
        let bias = match (bias, mask) {
            (Some(bias), Some(mask)) => Some(bias.f_add(mask)?),
            (bias, mask) => bias.or(mask.map(Tensor::shallow_clone)),
        };
        let [q, k, v] = [split_heads(&q, self.heads)?, split_heads(&k, self.heads)?, split_heads(&v, self.heads)?];
        let pass = pass.dropping(self.dropout);
        let scores = Scores { scale: Some(self.scale), key_mask: bias.as_ref(), ..Scores::default() };
        let attended = merge_heads(&attend([&q, &k, &v], scores, pass)?)?;
        Ok(rows.map(|rows| rows.packed(&attended)).transpose()?.unwrap_or(attended))
    }

    /// The parts of scores by distance, [batch, heads, length, length]. Its rows are whole in memory, as fused attention wants.
    fn bias(
        &self,
        q: &Tensor,
        k: &Tensor,
        distances: Distances<'_>,
        pass: Pass,
    ) -> Result<Option<Tensor>, TrainerError> {
        let embeddings = pass.drop_out_shared(distances.embeddings)?;
        let part = |content: &Tensor, layer: &Option<Linear>, rows: i64| -> Result<Option<Tensor>, TrainerError> {
            let Some(layer) = layer else { return Ok(None) };
            let positions = layer.forward_shared(&embeddings, pass)?.f_mul_scalar(self.scale)?;
            let positions = positions.f_index_select(0, &distances.rows.f_select(0, rows)?)?;
            by_token(&self.products(content, &positions)?).map(Some)
        };
        // In c2p rows are queries and columns keys; in p2c rows are keys and columns queries.
        let (c2p, p2c) = (part(q, &self.position_key, 0)?, part(k, &self.position_query, 1)?);
        let sum = match (c2p, p2c) {
            (Some(c2p), Some(p2c)) => c2p.f_add(&p2c.f_transpose(2, 3)?)?,
            (Some(c2p), None) => c2p.f_contiguous()?,
            (None, Some(p2c)) => p2c.f_transpose(2, 3)?.f_contiguous()?,
            (None, None) => return Ok(None),
        };
        Ok(Some(sum.f_transpose(0, 1)?))
    }

    /// The product of every token with every distance, head by head: [heads, batch, length, distances]. The batch is among the
    /// rows of each product, so that distances are not copied for every sample.
    fn products(&self, content: &Tensor, positions: &Tensor) -> Result<Tensor, TrainerError> {
        let (batch, length, width) = content.size3()?;
        let (heads, size) = (self.heads, width / self.heads);
        let content = content.f_reshape([batch * length, heads, size])?.f_transpose(0, 1)?;
        let positions = positions.f_view([-1, heads, size])?.f_permute([1, 2, 0])?;
        let products = content.f_bmm(&positions)?;
        Ok(products.f_view([heads, batch, length, -1])?)
    }
}

/// Which of the trained rows stands for each distance of a query from a key, [2, 2 * length]: first for distances that
/// fall from length - 1, then for those that rise from -(length - 1). The last of either is never used: it makes their
/// count even, and a multiple of what matrix products want where the length is one. On the CPU, so that rounding is the
/// same everywhere.
pub fn rows(relative: Relative, length: i64) -> Result<Tensor, TrainerError> {
    let rising = Tensor::f_arange_start(1 - length, length + 1, (Kind::Int64, Device::Cpu))?;
    let distances = Tensor::f_stack(&[rising.f_neg()?, rising], 0)?;
    let buckets = match relative.position_buckets {
        Some(buckets) => bucket(relative, &distances, buckets)?,
        None => distances,
    };
    let span = relative.span();
    Ok(buckets.f_add_scalar(span)?.f_clamp(0, 2 * span - 1)?)
}

/// Near distances have a bucket each, far ones share buckets that grow with the logarithm: step by step as
/// `make_log_bucket_position`, so that rounding falls the same way at the edges of buckets.
fn bucket(relative: Relative, distances: &Tensor, buckets: i64) -> Result<Tensor, TrainerError> {
    let middle = buckets / 2;
    let size = distances.f_abs()?;
    let range = (relative.max_relative_positions - 1) as f64 / middle as f64;
    let range = Tensor::f_full([0i64; 0], range, (Kind::Float, Device::Cpu))?;
    let far = size
        // Near ones are not used, and 0 has no logarithm.
        .f_clamp_min((middle - 1).max(1))?
        .f_to_kind(Kind::Float)?
        .f_div_scalar(middle)?
        .f_log()?
        .f_div(&range.f_log()?)?
        .f_mul_scalar(middle - 1)?
        .f_ceil()?
        .f_add_scalar(middle)?
        .f_to_kind(Kind::Int64)?
        .f_mul(&distances.f_sign()?)?;
    Ok(distances.f_where_self(&size.f_le(middle)?, &far)?)
}

/// From scores of distances, [heads, batch, length, 2 * length], to those of tokens, [heads, batch, length, length]: column j of
/// row i is what stands at j - i + length - 1. A view, in which every row begins one index further left.
pub fn by_token(scores: &Tensor) -> Result<Tensor, TrainerError> {
    let (heads, batch, length, width) = scores.size4()?;
    let strides = [batch * length * width, length * width, width - 1, 1];
    Ok(scores.f_as_strided([heads, batch, length, length], strides, length - 1)?)
}

#[cfg(test)]
mod position_tests {
    use super::*;

    /// The rows of every distance up to 1200, 80 and so on are those of transformers' `build_relative_position`.
    #[test]
    fn distances_fall_into_the_buckets_of_transformers() {
        for (buckets, max, length, want) in [
            (256, 512, 1200, 1_091_828_050),
            (8, 64, 80, 145_064),
            (10, 20, 40, 45_046),
            (2, 12, 16, 1_232),
            (33, 100, 150, 2_148_625),
        ] {
            let relative = Relative { position_buckets: Some(buckets), max_relative_positions: max };
            let all = Vec::<Vec<i64>>::try_from(rows(relative, length).unwrap()).unwrap();
            let sum: i64 = all[1].iter().take(2 * length as usize - 1).zip(1..).map(|(row, index)| row * index).sum();
            assert_eq!(sum, want, "{buckets} {max}");
            let falling: Vec<i64> = all[0].iter().take(2 * length as usize - 1).rev().copied().collect();
            assert_eq!(falling, all[1][..falling.len()]);
        }
        let plain = Relative { position_buckets: None, max_relative_positions: 2 };
        let all = Vec::<Vec<i64>>::try_from(rows(plain, 4).unwrap()).unwrap();
        assert_eq!(all, [[3, 3, 3, 2, 1, 0, 0, 0], [0, 0, 1, 2, 3, 3, 3, 3]]);
    }

    #[test]
    fn scores_of_distances_become_scores_of_tokens_and_get_their_gradients() {
        let (heads, batch, length) = (2, 3, 4);
        let scores =
            Tensor::rand([heads, batch, length, 2 * length], (Kind::Float, Device::Cpu)).set_requires_grad(true);
        let tokens = by_token(&scores).unwrap();
        for (i, j) in (0..length).flat_map(|i| (0..length).map(move |j| (i, j))) {
            let (got, want) = (tokens.select(3, j).select(2, i), scores.select(3, j - i + length - 1).select(2, i));
            assert_eq!(got, want, "{i} {j}");
        }
        tokens.sum(Kind::Float).backward();
        let row = |i: i64| {
            (0..2 * length).map(move |c| f32::from(u8::from((length - 1 - i..2 * length - 1 - i).contains(&c))))
        };
        let want: Vec<f32> = (0..length).flat_map(row).collect();
        assert_eq!(Vec::<f32>::try_from(scores.grad().select(0, 1).select(0, 2).reshape([-1])).unwrap(), want);
    }
}

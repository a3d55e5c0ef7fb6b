//! Disentangled attention (He et al., 2021): beside the product of two tokens, their score has a part by the content of one and
//! the distance of the other.

use pipe_model::deberta::DebertaConfig;
use tch::Tensor;

use super::position::by_token;
use crate::error::TrainerError;
use crate::model::attention::{Scores, attend};
use crate::model::layers::{Linear, merge_heads, split_heads, together};
use crate::model::pass::Pass;
use crate::model::weights::Weights;

pub struct Attention {
    query: Linear,
    key: Linear,
    value: Linear,
    /// What makes keys of distances, where queries look at them.
    position_key: Option<Linear>,
    /// What makes queries of distances, where keys look at them.
    position_query: Option<Linear>,
    heads: i64,
    /// What scores are multiplied with.
    scale: f64,
    dropout: f64,
}

/// What layers know of distances.
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

    /// [batch, length, hidden_size]; `mask`, [batch, 1, length, length], is added to the scores.
    pub fn forward(
        &self,
        hidden: &Tensor,
        mask: Option<&Tensor>,
        distances: Option<Distances<'_>>,
        pass: Pass,
    ) -> Result<Tensor, TrainerError> {
        let [q, k, v] = together(hidden, [&self.query, &self.key, &self.value], pass)?;
        let bias = distances.map(|distances| self.bias(&q, &k, distances, pass)).transpose()?.flatten();
        let bias = match (bias, mask) {
            (Some(bias), Some(mask)) => Some(bias.f_add(mask)?),
            (bias, mask) => bias.or(mask.map(Tensor::shallow_clone)),
        };
        let [q, k, v] = [split_heads(&q, self.heads)?, split_heads(&k, self.heads)?, split_heads(&v, self.heads)?];
        let pass = pass.dropping(self.dropout);
        let scores = Scores { scale: Some(self.scale), key_mask: bias.as_ref(), ..Scores::default() };
        merge_heads(&attend([&q, &k, &v], scores, pass)?)
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
            let positions = layer.forward(&embeddings, pass)?.f_mul_scalar(self.scale)?;
            let positions = positions.f_index_select(0, &distances.rows.f_select(0, rows)?)?;
            by_token(&self.products(content, &positions)?).map(Some)
        };
        // Of the one rows are queries and columns keys; of the other rows are keys and columns queries.
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

//! A layer of MU-SOTA: block attentions, an attention across the blocks and a feed-forward layer, each with a norm before
//! it and a residual connection.

use pipe_model::mu_sota::MuSotaConfig;
use tch::Tensor;

use super::blocks::Projections;
use crate::error::TrainerError;
use crate::model::attention::{Scores, attend};
use crate::model::layers::{LayerNorm, Linear, merge_heads};
use crate::model::pass::{self, Pass};
use crate::model::weights::{SharedTensor, Weights};
use crate::torch;

/// The epsilon of torch's norms.
pub const EPSILON: f64 = 1e-5;

pub(super) struct Layer {
    ln1: LayerNorm,
    /// [n_blocks, block_dim]
    blocks_out_bias: SharedTensor,
    block_heads: Heads,
    ln2: LayerNorm,
    cross_qkv: Linear,
    cross_out: Linear,
    cross_heads: Heads,
    ln3: LayerNorm,
    /// Rows of which the inside of the feed-forward layer exists at a time. The inner width is more than a hundred times the
    /// outer: kept whole, it would be most of the memory.
    feed_forward_rows: i64,
    /// Weight and bias of fc1 and of fc2.
    ffn: [SharedTensor; 4],
}

impl Layer {
    pub fn new(config: &MuSotaConfig, weights: &Weights, index: i64) -> Self {
        let path = |name: &str| format!("layers.{index}.{name}");
        let (linear, norm) = (
            |name: &str| Linear::new(weights, &path(name)),
            |name: &str| LayerNorm::new(weights, &path(name), EPSILON),
        );
        Self {
            ln1: norm("ln1"),
            blocks_out_bias: weights.get(&path("blocks.out.bias")),
            block_heads: Heads::new(config.n_blocks * config.block_heads, config.block_dim / config.block_heads),
            ln2: norm("ln2"),
            cross_qkv: linear("cross.qkv"),
            cross_out: linear("cross.out"),
            cross_heads: Heads::new(config.cross_heads, config.width() / config.cross_heads),
            ln3: norm("ln3"),
            feed_forward_rows: config.feed_forward_rows(),
            ffn: ["fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias"]
                .map(|name| weights.get(&path(&format!("ffn.{name}")))),
        }
    }

    /// `past` remembers the tokens before, and `hidden` as well from then on.
    pub fn step(
        &self,
        hidden: &Tensor,
        [qkv, qkv_bias, out]: [&Tensor; 3],
        mut past: Option<&mut Past>,
        pass: Pass,
    ) -> Result<Tensor, TrainerError> {
        let normed = self.ln1.forward_as(hidden, pass.compute)?;
        let projected = normed.f_linear(qkv, Some(qkv_bias))?;
        let attended = self.block_heads.attend(&projected, past.as_deref_mut().map(|past| &mut past.blocks), pass)?;
        let output = pass.linear(&attended, out, Some(&self.blocks_out_bias.f_reshape([-1])?))?;
        let hidden = pass.drop_add(&output, hidden)?;

        let projected = self.cross_qkv.forward(&self.ln2.forward_as(&hidden, pass.compute)?, pass)?;
        let attended = self.cross_heads.attend(&projected, past.map(|past| &mut past.cross), pass)?;
        let output = self.cross_out.forward(&attended, pass)?;
        let hidden = pass.drop_add(&output, &hidden)?;

        let output = self.feed_forward(&self.ln3.forward_as(&hidden, pass.compute)?, pass)?;
        pass.drop_add(&output, &hidden)
    }

    fn feed_forward(&self, input: &Tensor, pass: Pass) -> Result<Tensor, TrainerError> {
        let [w1, b1, w2, b2] = self.ffn.each_ref().map(|tensor| tensor.f_to_kind(pass.compute));
        let w1 = w1?;
        let width = w1.size2()?.1;
        let rows = input.f_reshape([-1, width])?;
        let output = torch::gelu_feed_forward(&rows, [&w1, &b1?, &w2?, &b2?], self.feed_forward_rows)?;
        Ok(output.f_view(input.size().as_slice())?)
    }
}

impl pass::Block for Layer {
    /// `inputs` are hidden states and the layer's projections of its blocks.
    fn forward(&self, inputs: &[&Tensor], pass: Pass) -> Result<Tensor, TrainerError> {
        let [hidden, qkv, qkv_bias, out] = inputs else { panic!("a layer takes 4 inputs, not {}", inputs.len()) };
        self.step(hidden, [qkv, qkv_bias, out], None, pass)
    }
}

impl Projections {
    pub fn tensors(&self) -> [&Tensor; 3] {
        [&self.qkv, &self.qkv_bias, &self.out]
    }
}

struct Heads {
    count: i64,
    /// Of the scores: size^-0.5.
    scale: f64,
}

impl Heads {
    fn new(count: i64, size: i64) -> Self {
        Self { count, scale: (size as f64).powf(-0.5) }
    }

    /// Causal attention of `projected` [batch, length, 3 * heads * room] to [batch, length, heads * room]. After a past, one
    /// token at a time.
    fn attend(&self, projected: &Tensor, past: Option<&mut Remembered>, pass: Pass) -> Result<Tensor, TrainerError> {
        let (batch, length, width) = projected.size3()?;
        let parts = projected.f_view([batch, length, 3, self.count, width / (3 * self.count)])?.f_unbind(2)?;
        let [q, k, v] = [0, 1, 2].map(|part: usize| parts[part].f_transpose(1, 2));
        let (q, mut k, mut v) = (q?, k?, v?);
        if let Some(past) = past {
            (k, v) = past.followed_by(k, v)?;
        }
        let is_causal = k.size()[2] == length;
        let scores = Scores { scale: Some(self.scale), is_causal, ..Scores::default() };
        let attended = attend([&q, &k, &v], scores, pass.dropping(0.0))?;
        merge_heads(&attended)
    }
}

/// What a layer remembers of the tokens so far.
#[derive(Default)]
pub(super) struct Past {
    blocks: Remembered,
    cross: Remembered,
}

/// Keys and values, each [rows, heads, length, room], if there are any.
#[derive(Default)]
struct Remembered(Option<(Tensor, Tensor)>);

impl Remembered {
    /// All so far, with new ones at the end.
    fn followed_by(&mut self, keys: Tensor, values: Tensor) -> Result<(Tensor, Tensor), TrainerError> {
        let (keys, values) = match &self.0 {
            Some((before, old)) => (Tensor::f_cat(&[before, &keys], 2)?, Tensor::f_cat(&[old, &values], 2)?),
            None => (keys, values),
        };
        self.0 = Some((keys.shallow_clone(), values.shallow_clone()));
        Ok((keys, values))
    }
}

#[cfg(test)]
mod tests {
    use tch::{Device, Kind};

    use super::*;

    /// Computed a few rows at a time and again for the gradient, or whole and kept.
    #[test]
    fn the_feed_forward_layer_and_its_gradients_do_not_depend_on_the_rows_at_a_time() {
        tch::manual_seed(1);
        let shapes: [&[i64]; 6] = [&[10, 6], &[33, 6], &[33], &[6, 33], &[6], &[10, 6]];
        let tensors = shapes.map(|shape| Tensor::randn(shape, (Kind::Float, Device::Cpu)).set_requires_grad(true));
        let [x, w1, b1, w2, b2, wanted] = &tensors;
        let gradients = |output: Tensor| {
            let loss = (output * wanted.detach()).sum(Kind::Float);
            Tensor::run_backward(&[loss], &[x, w1, b1, w2, b2], false, false)
        };
        let plain = x.linear(w1, Some(b1)).gelu("none").linear(w2, Some(b2));
        let want = gradients(plain.shallow_clone());
        for rows in [1, 3, 10, 64] {
            let output = torch::gelu_feed_forward(x, [w1, b1, w2, b2], rows).unwrap();
            assert!(output.allclose(&plain, 1e-5, 1e-5, false), "{rows} rows: {output} {plain}");
            for (got, want) in gradients(output).iter().zip(&want) {
                assert!(got.allclose(want, 1e-5, 1e-5, false), "{rows} rows: {got} {want}");
            }
        }
    }
}

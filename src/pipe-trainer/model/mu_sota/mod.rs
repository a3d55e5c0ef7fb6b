//! MU-SOTA: a language model whose layers attend within narrow blocks side by side, and then across all of them.
//!
//! A layer of MU-SOTA: block attentions, an attention across the blocks and a feed-forward layer, each with a norm before
//! it and a residual connection.
//!
//! The block attentions. Those of a layer are one attention with the heads of all of them, if its projections are block
//! diagonal: one large product then takes the place of many tiny ones, and no attention weights are kept. What is 0 there
//! costs less than it would to slice, project and join.
//!
//! The block-diagonal projections of all layers are made at once, a few kernels in a pass instead of a few in each layer.

mod generate;

use std::sync::Arc;

use pipe_model::mu_sota::{MuSotaConfig, parameters};
use serde_json::{Map, Value};
use tch::{Device, Kind, Tensor};

use super::attention::{Scores, attend};
use super::interface::{Model, TextGenerator};
use super::layers::{LayerNorm, Linear, merge_heads};
use super::pass::{self, Mode, Pass, Setup, Start};
use super::weights::{SharedTensor, Weights};
use crate::data::{IGNORED, Part, next_tokens};
use crate::error::TrainerError;
use crate::torch;

pub struct MuSota {
    config: MuSotaConfig,
    weights: Weights,
    dropout: f64,
    setup: Setup,
    tok_emb: SharedTensor,
    pos_emb: SharedTensor,
    blocks: Blocks,
    layers: Vec<Arc<Layer>>,
    ln_f: LayerNorm,
}

impl MuSota {
    pub fn build(config: MuSotaConfig, start: &Start<'_>, setup: &Setup) -> Result<Self, TrainerError> {
        let weights = Weights::start(&parameters(&config), start, setup)?;
        Ok(Self {
            dropout: setup.dropout.unwrap_or(config.dropout),
            setup: *setup,
            tok_emb: weights.get("tok_emb.weight"),
            pos_emb: weights.get("pos_emb.weight"),
            blocks: Blocks::new(&config, &weights),
            layers: (0..config.n_layers).map(|index| Arc::new(Layer::new(&config, &weights, index))).collect(),
            ln_f: LayerNorm::new(&weights, "ln_f", EPSILON),
            config,
            weights,
        })
    }

    /// `ids` [rows, length] behind `before` others.
    fn embed(&self, ids: &Tensor, before: i64) -> Result<Tensor, TrainerError> {
        let length = ids.size2()?.1;
        if before + length > self.config.max_seq_len {
            let message = format!("found {}; a row has {} tokens", self.config.max_seq_len, before + length);
            return Err(TrainerError::config("max_seq_len", message));
        }
        let positions = self.pos_emb.f_narrow(0, before, length)?;
        Ok(Tensor::f_embedding(&self.tok_emb, ids, -1, false, false)?.f_add(&positions)?)
    }

    /// The input of the head: [batch, length, width], in the kind that is computed in.
    fn read(&self, ids: &Tensor, mode: Mode) -> Result<Tensor, TrainerError> {
        let pass = Pass::new(mode, self.dropout, &self.setup);
        let mut hidden = pass.for_block(0).drop_out(&self.embed(ids, 0)?)?;
        let projections = self.blocks.projections(pass.compute)?;
        for (number, (layer, projections)) in (1..).zip(self.layers.iter().zip(&projections)) {
            let [qkv, qkv_bias, out] = projections.tensors();
            hidden = pass.block(layer, number, &[&hidden, qkv, qkv_bias, out])?;
        }
        Ok(self.ln_f.forward(&hidden)?.f_to_kind(pass.compute)?)
    }

    fn head(&self) -> Result<Tensor, TrainerError> {
        Ok(self.tok_emb.f_to_kind(self.setup.kinds.compute)?)
    }
}

impl Model for MuSota {
    fn weights(&self) -> &Weights {
        &self.weights
    }

    /// [batch, length, vocab_size]
    fn logits(&self, part: &Part, mode: Mode) -> Result<Tensor, TrainerError> {
        Ok(self.read(part.get("ids")?, mode)?.f_linear(&self.head()?, None::<&Tensor>)?)
    }

    fn loss_sum(&self, part: &Part, mode: Mode) -> Result<Tensor, TrainerError> {
        let ids = part.get("ids")?;
        let hidden = self.read(ids, mode)?.f_reshape([-1, self.config.width()])?;
        let labels = next_tokens(part.get("labels")?, ids.size2()?.1)?.f_reshape([-1])?;
        Ok(torch::linear_cross_entropy(&hidden, &self.head()?, &labels, IGNORED, self.config.loss_rows())?)
    }

    fn targets(&self, part: &Part) -> Result<i64, TrainerError> {
        let labels = next_tokens(part.get("labels")?, part.get("ids")?.size2()?.1)?;
        Ok(labels.f_ne(IGNORED)?.f_sum(Kind::Int64)?.f_int64_value(&[])?)
    }

    fn config(&self) -> Map<String, Value> {
        self.config.export()
    }

    fn text_generator(&self) -> Option<&dyn TextGenerator> {
        Some(self)
    }
}

/// The epsilon of torch's norms.
pub const EPSILON: f64 = 1e-5;

struct Layer {
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
    /// Scores are multiplied by size^-0.5.
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

/// Keys and values of the tokens so far, of one layer.
#[derive(Default)]
struct Past {
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

pub struct Blocks {
    qkv_weight: Vec<SharedTensor>,
    qkv_bias: Vec<SharedTensor>,
    out_weight: Vec<SharedTensor>,
    n_blocks: i64,
    block_dim: i64,
    block_heads: i64,
}

/// The projections of one layer: each head has `room` places, of which its own size is used.
pub struct Projections {
    /// [3 * heads * room, width]
    pub qkv: Tensor,
    /// [3 * heads * room]
    pub qkv_bias: Tensor,
    /// [width, heads * room]
    pub out: Tensor,
}

impl Blocks {
    pub fn new(config: &MuSotaConfig, weights: &Weights) -> Self {
        let of = |name: &str| -> Vec<SharedTensor> {
            (0..config.n_layers).map(|layer| weights.get(&format!("layers.{layer}.blocks.{name}"))).collect()
        };
        Self {
            qkv_weight: of("qkv.weight"),
            qkv_bias: of("qkv.bias"),
            out_weight: of("out.weight"),
            n_blocks: config.n_blocks,
            block_dim: config.block_dim,
            block_heads: config.block_heads,
        }
    }

    /// The projections of each layer.
    pub fn projections(&self, kind: Kind) -> Result<Vec<Projections>, TrainerError> {
        let room = room(self.block_dim / self.block_heads, kind, self.qkv_weight[0].device());
        let (qkv, biases, out) = (self.qkv(room, kind)?, self.qkv_bias(room, kind)?, self.out(room, kind)?);
        let layers = qkv.into_iter().zip(biases).zip(out);
        Ok(layers.map(|((qkv, qkv_bias), out)| Projections { qkv, qkv_bias, out }).collect())
    }

    fn qkv(&self, room: i64, kind: Kind) -> Result<Vec<Tensor>, TrainerError> {
        let (n, heads, size) = (self.n_blocks, self.block_heads, self.block_dim / self.block_heads);
        let own = stacked(&self.qkv_weight, kind)?
            .f_view([-1, n, 3, heads, size, self.block_dim])?
            .f_transpose(1, 2)?
            .f_constant_pad_nd([0, 0, 0, room - size])?;
        let all = own.f_unsqueeze(5)?.f_mul(&self.diagonal(&own)?.f_view([n, 1, 1, n, 1])?)?;
        Ok(all.f_reshape([-1, 3 * n * heads * room, n * self.block_dim])?.f_unbind(0)?)
    }

    fn qkv_bias(&self, room: i64, kind: Kind) -> Result<Vec<Tensor>, TrainerError> {
        let (n, heads, size) = (self.n_blocks, self.block_heads, self.block_dim / self.block_heads);
        let own = stacked(&self.qkv_bias, kind)?.f_view([-1, n, 3, heads, size])?.f_transpose(1, 2)?;
        Ok(own.f_constant_pad_nd([0, room - size])?.f_reshape([-1, 3 * n * heads * room])?.f_unbind(0)?)
    }

    fn out(&self, room: i64, kind: Kind) -> Result<Vec<Tensor>, TrainerError> {
        let (n, heads, size) = (self.n_blocks, self.block_heads, self.block_dim / self.block_heads);
        let own = stacked(&self.out_weight, kind)?
            .f_view([-1, n, self.block_dim, heads, size])?
            .f_constant_pad_nd([0, room - size])?;
        let all = own.f_unsqueeze(3)?.f_mul(&self.diagonal(&own)?.f_view([n, 1, n, 1, 1])?)?;
        Ok(all.f_reshape([-1, n * self.block_dim, n * heads * room])?.f_unbind(0)?)
    }

    /// 1 where a block meets itself.
    fn diagonal(&self, like: &Tensor) -> Result<Tensor, TrainerError> {
        Ok(Tensor::f_eye(self.n_blocks, (like.kind(), like.device()))?)
    }
}

/// The tensors of all layers, one behind the other.
fn stacked(layers: &[SharedTensor], kind: Kind) -> Result<Tensor, TrainerError> {
    Ok(Tensor::f_stack(layers, 0)?.f_to_kind(kind)?)
}

/// Fused attention on a card wants rows of whole 16 bytes; zeros in the rest change nothing.
fn room(size: i64, kind: Kind, device: Device) -> i64 {
    let multiple = if device.is_cuda() { 16 / kind.elt_size_in_bytes() as u64 } else { 1 };
    (size as u64).next_multiple_of(multiple) as i64
}

#[cfg(test)]
mod tests {
    use pipe_model::mu_sota::parameters;
    use serde_json::json;
    use tch::{Device, Kind};

    use super::*;
    use crate::model::{Drawn, Setup, Start};

    /// The gradient of each parameter, by name.
    fn gradients(checkpointing: bool) -> Vec<(String, Tensor)> {
        let config = json!({
            "vocab_size": 31, "n_layers": 2, "n_blocks": 3, "block_dim": 4, "cross_heads": 3, "ffn_dim": 40, "max_seq_len": 9,
        });
        let config = MuSotaConfig::read(config.as_object().unwrap()).unwrap();
        let setup = Setup { checkpointing, ..Setup::plain() };
        let model = MuSota::build(config, &Start::Random { seed: 1 }, &setup).unwrap();
        let ids = Tensor::arange(18, (Kind::Int64, Device::Cpu)).reshape([2, 9]);
        let part = Part::default().with("labels", ids.shallow_clone()).with("ids", ids);
        model.loss_sum(&part, Mode::Train(Drawn::new(7, 0))).unwrap().backward();
        let names = model.weights.trained().map(|(name, _)| name.to_owned());
        names.zip(model.weights.gradients().unwrap()).collect()
    }

    #[test]
    fn checkpointing_gives_the_same_gradients() {
        for ((name, kept), (_, again)) in gradients(false).iter().zip(gradients(true)) {
            assert!(kept.abs().max().double_value(&[]) > 0.0, "{name} has no gradient");
            assert!(kept.allclose(&again, 1e-5, 1e-7, false), "{name}: {kept} {again}");
        }
    }

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

    #[test]
    fn rows_on_a_card_are_whole() {
        let cuda = Device::Cuda(0);
        let cases =
            [(2, Kind::Float, 4), (2, Kind::Half, 8), (2, Kind::BFloat16, 8), (8, Kind::Half, 8), (9, Kind::Float, 12)];
        for (size, kind, want) in cases {
            assert_eq!((room(size, kind, cuda), room(size, kind, Device::Cpu)), (want, size), "{size} {kind:?}");
        }
    }

    /// Every block alone, projected and projected back, is its slice of all of them together.
    #[test]
    fn every_block_reads_and_writes_its_own_slice() {
        let config = json!({"n_layers": 2, "n_blocks": 3, "block_dim": 6, "block_heads": 2, "cross_heads": 3, "ffn_dim": 4, "vocab_size": 5});
        let config = MuSotaConfig::read(config.as_object().unwrap()).unwrap();
        let weights = Weights::start(&parameters(&config), &Start::Random { seed: 3 }, &Setup::plain()).unwrap();
        let blocks = Blocks::new(&config, &weights);
        let input = Tensor::randn([7, 18], (Kind::Float, Device::Cpu));
        for (room, layer) in [(3, 0), (4, 1), (8, 1)] {
            let together = input.linear(&blocks.qkv(room, Kind::Float).unwrap()[layer], None::<&Tensor>);
            let together = together.view([7, 3, 3, 2, room]); // [rows, q k v, blocks, heads, room]
            let back = together.select(1, 2).reshape([7, -1]);
            let back = back.linear(&blocks.out(room, Kind::Float).unwrap()[layer], None::<&Tensor>).view([7, 3, 6]);
            assert_eq!(together.narrow(4, 3, room - 3).abs().sum(Kind::Float).double_value(&[]), 0.0);
            for block in 0..3 {
                let own = |name: &str| weights.get(&format!("layers.{layer}.blocks.{name}.weight")).get(block);
                let alone = input.narrow(1, 6 * block, 6).linear(&own("qkv"), None::<&Tensor>).view([7, 3, 2, 3]);
                assert!(together.select(2, block).narrow(3, 0, 3).allclose(&alone, 1e-6, 1e-7, false));
                let alone = alone.select(1, 2).reshape([7, 6]).linear(&own("out"), None::<&Tensor>);
                assert!(back.select(1, block).allclose(&alone, 1e-6, 1e-7, false));
            }
        }
    }
}

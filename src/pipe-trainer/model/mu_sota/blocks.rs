//! The block attentions. Those of a layer are one attention with the heads of all of them, if its projections are block
//! diagonal: one large product then takes the place of many tiny ones, and no attention weights are kept. What is 0 there
//! costs less than it would to slice, project and join.
//!
//! The block-diagonal projections of all layers are made at once, a few kernels in a pass instead of a few in each layer.

use pipe_model::mu_sota::MuSotaConfig;
use tch::{Device, Kind, Tensor};

use crate::error::TrainerError;
use crate::model::weights::{SharedTensor, Weights};

pub struct Blocks {
    qkv_weight: Vec<SharedTensor>,
    qkv_bias: Vec<SharedTensor>,
    out_weight: Vec<SharedTensor>,
    n_blocks: i64,
    block_dim: i64,
    block_heads: i64,
}

/// Of one layer, each head with `room` places of which its own size is used.
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
    use serde_json::json;

    use super::*;
    use crate::model::{Setup, Start};
    use pipe_model::mu_sota::parameters;

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

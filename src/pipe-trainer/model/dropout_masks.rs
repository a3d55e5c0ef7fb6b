//! What dropout keeps, as layers see it, so that two devices can be compared.

use pipe_model::Activation;
use tch::{Device, Kind, Tensor};

use super::attention::{Scores, attend};
use super::interface::Drawn;
use super::layers::{FeedForward, LayerNorm, Linear, Product};
use super::pass::Pass;
use crate::error::TrainerError;

/// Names, and 1 where something is kept.
pub fn dropout_masks(kind: Kind, device: Device) -> Result<Vec<(String, Tensor)>, TrainerError> {
    let drawn = Drawn::new(5, 3);
    let pass = Pass { dropout: 0.1, drawn: Some(drawn), compute: kind, checkpointing: false, block: 2 };
    let options = (kind, device);
    let mut all = Vec::new();
    for (sizes, number) in [&[4, 33, 64][..], &[2, 7, 301], &[3, 509, 1024], &[5, 448]].into_iter().zip(0..) {
        let ones = Tensor::f_ones(sizes, options)?;
        let pass = pass.for_block(number);
        all.push((format!("states {sizes:?}"), pass.drop_out(&ones)?.f_ne(0.0)?));
        let width = ones.size()[ones.dim() - 1];
        let layer = || -> Result<Linear, TrainerError> {
            Ok(Linear { weight: Tensor::f_eye(width, options)?.into(), bias: None })
        };
        let layers =
            FeedForward { first: layer()?, gate: None, second: layer()?, activation: Activation::Relu, drops: true };
        all.push((format!("between layers {sizes:?}"), layers.forward(&ones, pass)?.f_ne(0.0)?));
        let of = |value: f64| Tensor::f_full([width], value, options);
        let norm = LayerNorm { weight: of(1.0)?.into(), bias: of(0.0)?.into(), epsilon: 1e-6 };
        let residual = ones.f_zeros_like()?;
        let normed = norm.after(&Product { output: ones, bias: None }, &residual, pass)?;
        all.push((format!("before a norm {sizes:?}"), normed.f_gt(0.0)?));
    }
    for [samples, heads, queries, keys] in [[3, 4, 130, 64], [2, 12, 509, 128], [1, 2, 31, 24], [2, 3, 7, 8]] {
        let zeros = |length: i64| Tensor::f_zeros([samples, heads, length, keys], options);
        // Each key has a value of its own.
        let values = Tensor::f_eye(keys, options)?.f_expand([samples, heads, keys, keys], false)?.f_contiguous()?;
        let attended = attend([&zeros(queries)?, &zeros(keys)?, &values], Scores::default(), pass.for_block(9))?;
        all.push((format!("attention {:?}", [samples, heads, queries, keys]), attended.f_ne(0.0)?.f_contiguous()?));
    }
    Ok(all)
}

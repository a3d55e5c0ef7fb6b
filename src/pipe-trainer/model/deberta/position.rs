//! Distances between tokens: which row of the trained distances stands for each, and scores of distances as scores of tokens.

use pipe_model::deberta::Relative;
use tch::{Device, Kind, Tensor};

use crate::error::TrainerError;

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
mod tests {
    use super::*;

    /// Of every distance up to 1200, 80 and so on the row that transformers' `build_relative_position` leads to.
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

//! What is added to attention scores: relative positions in buckets, and masks.

use tch::{Device, Kind, Tensor};

use crate::error::TrainerError;
use crate::precision::hidden_score;

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
mod tests {
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

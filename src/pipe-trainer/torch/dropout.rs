//! Dropout whose masks are functions of key, sample, position and feature, so that none is kept. See docs/dev/dropout.md.

use std::ffi::c_char;

use tch::{TchError, Tensor};
use torch_sys::C_tensor;

use super::{optional, pointer, returned};

unsafe extern "C" {
    fn pipe_drop_add(
        input: *mut C_tensor,
        residual: *mut C_tensor,
        dropped: *const Dropped,
        out: *mut *mut C_tensor,
    ) -> *mut c_char;
    fn pipe_chunked_attention(
        q: *mut C_tensor,
        k: *mut C_tensor,
        v: *mut C_tensor,
        bias: *mut C_tensor,
        is_causal: bool,
        scale: f64,
        dropped: *const Dropped,
        out: *mut *mut C_tensor,
    ) -> *mut c_char;
}

/// A dropout of a tensor whose first dimension is samples and whose last is features.
#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(C)]
pub struct Dropped {
    pub share: f64,
    /// The key of one dropout of the model at one step.
    pub key: u64,
    /// Where the first sample of the tensor stands in its step.
    pub first_sample: u32,
    /// Where kernels read the key and what is added to the first sample, as an address on the card: a CUDA graph is launched again
    /// with other ones. 0 where they are those above.
    pub place: u64,
    /// Where samples are packed: the address of sample and position, 32 bits each, of every token, on the device of the tensor. 0 where the tensor
    /// has a row for each sample. The caller keeps what lies there until the gradient is computed.
    pub tokens: u64,
}

impl Dropped {
    pub const NOTHING: Self = Self { share: 0.0, key: 0, first_sample: 0, place: 0, tokens: 0 };
}

/// `residual` (or nothing) plus `input` with some of it dropped, in the kind of the residual.
pub fn drop_add(input: &Tensor, residual: Option<&Tensor>, dropped: Dropped) -> Result<Tensor, TchError> {
    // SAFETY: the pointers are of living tensors, or null.
    returned(|out| unsafe { pipe_drop_add(pointer(input), optional(residual), &raw const dropped, out) })
}

/// Attention of [samples, heads, length, width], some of its weights dropped, a few samples at a time: no weights are kept.
/// `bias` is added to the scores.
pub fn chunked_attention(
    [q, k, v]: [&Tensor; 3],
    bias: Option<&Tensor>,
    is_causal: bool,
    scale: f64,
    dropped: Dropped,
) -> Result<Tensor, TchError> {
    let [q, k, v] = [q, k, v].map(pointer);
    // SAFETY: as above.
    returned(|out| unsafe {
        pipe_chunked_attention(q, k, v, optional(bias), is_causal, scale, &raw const dropped, out)
    })
}

#[cfg(test)]
mod tests {
    use tch::{Device, Kind};

    use super::*;

    const KEY: u64 = 0x0123_4567_89AB_CDEF;
    const SHARE: f64 = 0.1;

    fn dropped(key: u64, first_sample: u32) -> Dropped {
        Dropped { share: SHARE, key, first_sample, place: 0, tokens: 0 }
    }

    /// As docs/dev/dropout.md has it, number by number.
    fn philox(key: u64, counter: [u32; 4]) -> [u32; 4] {
        let [mut c0, mut c1, mut c2, mut c3] = counter;
        let (mut k0, mut k1) = (key as u32, (key >> 32) as u32);
        for _ in 0..7 {
            let (p0, p1) = (u64::from(c0) * 0xD251_1F53, u64::from(c2) * 0xCD9E_8D57);
            (c0, c1, c2, c3) = ((p1 >> 32) as u32 ^ c1 ^ k0, p1 as u32, (p0 >> 32) as u32 ^ c3 ^ k1, p0 as u32);
            (k0, k1) = (k0.wrapping_add(0x9E37_79B9), k1.wrapping_add(0xBB67_AE85));
        }
        [c0, c1, c2, c3]
    }

    fn is_kept(drawn: [u32; 4], number: u32) -> bool {
        let half = drawn[number as usize / 2] >> (16 * (number % 2)) & 0xFFFF;
        f64::from(half) >= (SHARE * 65536.0).round()
    }

    /// Ones after dropout, [samples, positions, features].
    fn kept(key: u64, first_sample: u32, shape: [i64; 3]) -> Tensor {
        let ones = Tensor::ones(shape, (Kind::Float, Device::Cpu));
        drop_add(&ones, None, dropped(key, first_sample)).unwrap().ne(0.0)
    }

    /// Equal weights after dropout, [samples, heads, queries, keys]: each key has a value of its own.
    fn kept_weights(key: u64, first_sample: u32, [samples, heads, queries, keys]: [i64; 4]) -> Tensor {
        let zeros = |length: i64| Tensor::zeros([samples, heads, length, keys], (Kind::Float, Device::Cpu));
        let values = Tensor::eye(keys, (Kind::Float, Device::Cpu)).expand([samples, heads, keys, keys], false);
        let [q, k] = [zeros(queries), zeros(keys)];
        chunked_attention([&q, &k, &values], None, false, 1.0, dropped(key, first_sample)).unwrap().ne(0.0)
    }

    fn bits(tensor: &Tensor) -> Vec<bool> {
        Vec::try_from(tensor.reshape([-1])).unwrap()
    }

    /// The vectors that Random123 tests itself with.
    #[test]
    fn the_generator_is_philox() {
        let pi = [0x243F_6A88, 0x85A3_08D3, 0x1319_8A2E, 0x0370_7344];
        assert_eq!(philox(0, [0; 4]), [0x5F6F_B709, 0x0D89_3F64, 0x4F12_1F81, 0x4F73_0A48]);
        assert_eq!(philox(u64::MAX, [u32::MAX; 4]), [0x5207_DDC2, 0x4516_5E59, 0x4D8E_E751, 0x8C52_F662]);
        assert_eq!(philox(0x299F_31D0_A409_3822, pi), [0x4DFC_CABA, 0x190A_87F0, 0xC473_62BA, 0xB6B5_242A]);
    }

    #[test]
    fn hidden_states_are_dropped_as_the_docs_say() {
        let [samples, positions, features] = [3, 5, 301];
        let mut want = Vec::new();
        for sample in 0..samples {
            for position in 0..positions {
                for feature in 0..features {
                    let drawn = philox(KEY, [feature / 8, position, sample + 7, 0]);
                    want.push(is_kept(drawn, feature % 8));
                }
            }
        }
        assert_eq!(bits(&kept(KEY, 7, [samples, positions, features].map(i64::from))), want);
    }

    #[test]
    fn attention_is_dropped_as_the_docs_say() {
        let [samples, heads, queries, keys] = [2, 3, 37, 45];
        let mut want = Vec::new();
        for sample in 0..samples {
            for head in 0..heads {
                for i in 0..queries {
                    for j in 0..keys {
                        let thread = (i % 8) * 4 + (j % 8) / 2;
                        let drawn = philox(KEY, [(j / 16) * 32 + thread, i / 16, sample + 7, head + 1]);
                        want.push(is_kept(drawn, 4 * (j % 16 / 8) + 2 * (i % 16 / 8) + j % 2));
                    }
                }
            }
        }
        assert_eq!(bits(&kept_weights(KEY, 7, [samples, heads, queries, keys].map(i64::from))), want);
    }

    /// How often two masks agree, in standard deviations from what independent ones would.
    fn agreement(one: &Tensor, other: &Tensor) -> f64 {
        let count = one.numel() as f64;
        let same = one.eq_tensor(other).sum(Kind::Int64).int64_value(&[]) as f64 / count;
        let expected = SHARE * SHARE + (1.0 - SHARE) * (1.0 - SHARE);
        (same - expected) / (expected * (1.0 - expected) / count).sqrt()
    }

    #[test]
    fn masks_are_independent_of_each_other_and_drop_their_share() {
        let hidden = kept(KEY, 0, [16, 64, 512]);
        let weights = kept_weights(KEY, 0, [8, 8, 64, 96]);
        for mask in [&hidden, &weights] {
            let count = mask.numel() as f64;
            let share = 1.0 - mask.sum(Kind::Int64).int64_value(&[]) as f64 / count;
            assert!((share - SHARE).abs() < 4.0 * (SHARE * (1.0 - SHARE) / count).sqrt(), "{share}");
            for dimension in 0..mask.dim() as i64 {
                for shift in [1, 2, 8, 16] {
                    let length = mask.size()[dimension as usize];
                    if shift < length {
                        let (front, back) =
                            (mask.narrow(dimension, 0, length - shift), mask.narrow(dimension, shift, length - shift));
                        let off = agreement(&front, &back);
                        assert!(
                            off.abs() < 5.0,
                            "{:?} shifted by {shift} in dimension {dimension}: {off}",
                            mask.size()
                        );
                    }
                }
            }
        }
        // Another step or another dropout of the model has another key.
        assert!(agreement(&hidden, &kept(KEY ^ 1, 0, [16, 64, 512])).abs() < 5.0);
        assert!(agreement(&weights, &kept_weights(KEY ^ 1, 0, [8, 8, 64, 96])).abs() < 5.0);
    }

    /// In chunks of one sample, because the weights of two are too large.
    #[test]
    fn attention_in_chunks_is_attention() {
        tch::manual_seed(1);
        let random = |shape: [i64; 4]| Tensor::randn(shape, (Kind::Float, Device::Cpu)).set_requires_grad(true);
        for is_causal in [false, true] {
            let all =
                [random([3, 2, 2100, 8]), random([3, 2, 2100, 8]), random([3, 2, 2100, 8]), random([1, 2, 2100, 2100])];
            let [q, k, v, bias] = &all;
            let later = Tensor::ones([2100, 2100], (Kind::Bool, Device::Cpu)).triu(1);
            let hidden = if is_causal { bias.masked_fill(&later, f64::NEG_INFINITY) } else { bias.shallow_clone() };
            let plain = Tensor::scaled_dot_product_attention(q, k, v, Some(&hidden), 0.0, false, 0.5, false);
            let weight = plain.randn_like();
            let gradients =
                |out: &Tensor| Tensor::run_backward(&[(out * &weight).sum(Kind::Float)], &all, false, false);
            let want = gradients(&plain);
            let chunked = chunked_attention([q, k, v], Some(bias), is_causal, 0.5, Dropped::NOTHING).unwrap();
            assert!(chunked.allclose(&plain, 1e-4, 1e-5, false));
            for (got, want) in gradients(&chunked).iter().zip(want) {
                assert!(got.allclose(&want, 1e-3, 1e-4, false), "{:?}", (got - want).abs().max());
            }
        }
    }
}

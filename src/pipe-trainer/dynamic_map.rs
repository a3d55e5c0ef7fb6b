//! Numbers of 8 bits whose codes lie closer together towards 0 (Dettmers, 2016), in blocks that share a scale: the scales of quantized weights
//! and the moments of an optimizer, with the numbers of bitsandbytes.

use tch::{Kind, TchError, Tensor};

/// Numbers that share a scale.
pub const BLOCK: i64 = 256;

/// The least that a scale is taken for when it divides.
const LEAST: f64 = 1e-38;

/// Decades that the numbers reach down.
const DECADES: i32 = 7;

/// Whether there are negative numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sign {
    Either,
    Positive,
}

/// Codes of numbers, and the scale of each block.
pub struct Codes {
    pub codes: Tensor,
    pub scales: Tensor,
}

/// The numbers that the 256 codes stand for, ascending: in each decade twice as many as in the one below, at the middles of equal parts.
pub fn numbers(sign: Sign) -> [f32; 256] {
    let mut all = vec![0.0, 1.0];
    for decade in 0..DECADES {
        let parts = match sign {
            Sign::Either => 1 << decade,
            Sign::Positive => 2 << decade,
        };
        let size = 10f64.powi(decade + 1 - DECADES) as f32;
        for part in 0..parts {
            let number = size * ((bound(part, parts) + bound(part + 1, parts)) / 2.0);
            all.push(number);
            if sign == Sign::Either {
                all.push(-number);
            }
        }
    }
    all.sort_by(f32::total_cmp);
    all.try_into().expect("there are 256 numbers")
}

/// Bound number `at` between 0.1 and 1, with the rounding of `torch.linspace`: counted from the nearer end, in one operation.
fn bound(at: i32, parts: i32) -> f32 {
    let step = (1.0 - 0.1f32) / parts as f32;
    if at < (parts + 1) / 2 { step.mul_add(at as f32, 0.1) } else { step.mul_add((at - parts) as f32, 1.0) }
}

/// The nearest codes of values [n] in fp32, on their device.
pub fn quantize(values: &Tensor, sign: Sign) -> Result<Codes, TchError> {
    let middles: Vec<f32> = numbers(sign).windows(2).map(|pair| (pair[0] + pair[1]) / 2.0).collect();
    let middles = Tensor::f_from_slice(&middles)?.f_to_device(values.device())?;
    let (scales, scaled) = scaled_by_block(values, BLOCK)?;
    Ok(Codes { codes: scaled.f_bucketize(&middles, true, false)?.f_to_kind(Kind::Uint8)?, scales })
}

/// The largest of each block of `block` values by size, and the values divided by it. The last block may be shorter.
pub fn scaled_by_block(values: &Tensor, block: i64) -> Result<(Tensor, Tensor), TchError> {
    let count = values.size1()?;
    let whole = count / block * block;
    let blocks = values.f_narrow(0, 0, whole)?.f_view([-1, block])?;
    let largest = blocks.f_abs()?.f_amax([1].as_slice(), false)?;
    let inverse = largest.f_clamp_min(LEAST)?.f_reciprocal()?.f_unsqueeze(1)?;
    let scaled = blocks.f_mul(&inverse)?.f_clamp(-1.0, 1.0)?.f_view([-1])?;
    if whole == count {
        return Ok((largest, scaled));
    }
    let rest = values.f_narrow(0, whole, count - whole)?;
    let most = rest.f_abs()?.f_max()?.f_clamp_min(LEAST)?;
    let rest = rest.f_div(&most)?.f_clamp(-1.0, 1.0)?;
    Ok((Tensor::f_cat(&[largest, most.f_unsqueeze(0)?], 0)?, Tensor::f_cat(&[scaled, rest], 0)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::TensorFiles;

    #[test]
    fn the_numbers_are_those_of_bitsandbytes() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/quantized/weights.safetensors");
        let files = TensorFiles::open_file(path.as_ref()).unwrap();
        for (sign, name) in [(Sign::Either, "map.signed"), (Sign::Positive, "map.unsigned")] {
            let want: Vec<f32> = Vec::try_from(files.read(name).unwrap()).unwrap();
            for (at, (got, want)) in numbers(sign).into_iter().zip(want).enumerate() {
                assert_eq!(got.to_bits(), want.to_bits(), "{name} {at}: {got} is not {want}");
            }
        }
    }
}

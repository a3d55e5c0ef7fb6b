//! Attention of heads, and the masks that hide keys from it.

use pipe_model::memory::{ROW_MULTIPLE, has_attention_kernel};
use tch::{Device, Kind, Tensor};

use super::pass::{Pass, hidden_score};
use crate::data::{PACKED_TENSORS, Packed, Part};
use crate::error::TrainerError;
use crate::torch::{self, Dropped};

/// Changes to the products of queries and keys before they become weights.
#[derive(Clone, Copy, Default)]
pub struct Scores<'a> {
    /// The products are multiplied by this; 1/sqrt(width) where it is absent.
    pub scale: Option<f64>,
    /// No query sees a later key.
    pub is_causal: bool,
    /// How many keys each sample has, [batch], or what is added, of a shape that expands to [batch, heads, queries, keys].
    pub key_mask: Option<&'a Tensor>,
    /// A bias by distance, [heads, queries + keys - 1] at key - query + queries - 1. Only where `has_kernel`.
    pub by_distance: Option<&'a Tensor>,
    /// Where the samples of queries and of keys stand, if they are packed: then all are [1, heads, tokens, width]. Masks and biases are those of
    /// samples that each have a row.
    pub packed: Option<[Packed<'a>; 2]>,
}

impl<'a> Scores<'a> {
    /// The scores by the tensors that blocks are given beside their input: where packed samples stand or, where there is padding, what hides it.
    pub fn of_rows(rows: &[&'a Tensor]) -> Self {
        match <[&Tensor; PACKED_TENSORS]>::try_from(rows) {
            Ok(tensors) => Self { packed: Some([Packed::from_tensors(tensors); 2]), ..Self::default() },
            Err(_) => Self { key_mask: rows.first().copied(), ..Self::default() },
        }
    }
}

/// [batch, heads, queries, width], with a part of its weights dropped. Heads of keys and values may be shared by several of queries.
pub fn attend([q, k, v]: [&Tensor; 3], scores: Scores<'_>, pass: Pass) -> Result<Tensor, TrainerError> {
    let Scores { scale, is_causal, key_mask, by_distance: bias, packed } = scores;
    let width = q.size()[3];
    let scale = scale.unwrap_or_else(|| (width as f64).powf(-0.5));
    let dropped = pass.dropped();
    if has_kernel(q.kind(), q.device(), width) && key_mask.is_none_or(|mask| mask.dim() == 1) {
        let packed = packed.map(|[q, k]| [q.offsets, q.tiles, k.offsets, k.tiles]);
        let kernel = torch::Attention { q, k, v, bias, lengths: key_mask, packed, is_causal, scale, dropped };
        if let Some(attended) = kernel.forward()? {
            return Ok(attended.f_transpose(1, 2)?);
        }
    }
    let shared = q.size()[1] / k.size()[1];
    let (k, v) = (&repeat_heads(k, shared)?, &repeat_heads(v, shared)?);
    let Some([of_queries, of_keys]) = packed else { return attend_rows([q, k, v], scores, scale, dropped) };
    // Tokens stand beside each other as [1, tokens, heads, width].
    let unpacked = |packed: Packed<'_>, heads: &Tensor| packed.unpacked(&heads.f_transpose(1, 2)?)?.f_transpose(1, 2);
    let [q, k, v] = [unpacked(of_queries, q)?, unpacked(of_keys, k)?, unpacked(of_keys, v)?];
    let padding = match key_mask.is_none() && !is_causal && !of_keys.is_even() {
        true => Some(padding_of(of_keys, q.kind())?),
        false => None,
    };
    let scores = Scores { key_mask: key_mask.or(padding.as_ref()), ..scores };
    let attended = attend_rows([&q, &k, &v], scores, scale, dropped)?;
    Ok(of_queries.packed(&attended.f_transpose(1, 2)?)?.f_transpose(1, 2)?)
}

/// The same without a kernel, of samples that each have a row.
fn attend_rows(
    [q, k, v]: [&Tensor; 3],
    scores: Scores<'_>,
    scale: f64,
    dropped: Dropped,
) -> Result<Tensor, TrainerError> {
    let Scores { is_causal, key_mask, by_distance: bias, .. } = scores;
    if bias.is_some() || key_mask.is_some_and(|mask| mask.dim() == 1) {
        let message = format!("attention has no kernel for queries {:?} and keys {:?}", q.size(), k.size());
        return Err(TrainerError::Panic { message });
    }
    match dropped {
        Dropped::NOTHING => {
            Ok(Tensor::f_scaled_dot_product_attention(q, k, v, key_mask, 0.0, is_causal, scale, false)?)
        }
        dropped => Ok(torch::chunked_attention([q, k, v], key_mask, is_causal, scale, dropped)?),
    }
}

/// [batch, heads, length, width] to `count` times as many heads, each beside its copies.
fn repeat_heads(input: &Tensor, count: i64) -> Result<Tensor, TrainerError> {
    if count == 1 {
        return Ok(input.shallow_clone());
    }
    let (batch, heads, length, width) = input.size4()?;
    let repeated = input.f_unsqueeze(2)?.f_expand([batch, heads, count, length, width], false)?;
    Ok(repeated.f_reshape([batch, heads * count, length, width])?)
}

/// Whether heads of this width have a kernel of their own, which takes lengths for a mask, a bias by distance, and rows of any
/// length at the same price.
pub fn has_kernel(kind: Kind, device: Device, width: i64) -> bool {
    matches!(kind, Kind::BFloat16 | Kind::Half) && has_attention_kernel(width) && torch::has_attention(device)
}

/// Lengths of rows should be multiples of this: the fused attention of torch wants rows of a bias that begin at whole 32 bytes, and
/// copies it otherwise.
pub fn row_multiple(kind: Kind, device: Device, width: i64) -> usize {
    if device.is_cuda() && !has_kernel(kind, device, width) { ROW_MULTIPLE } else { 1 }
}

/// The keys of each row of a part with padding, where that will do for heads of this width.
pub fn key_lengths(part: &Part, kind: Kind, width: i64) -> Option<&Tensor> {
    part.find("lengths").filter(|lengths| has_kernel(kind, lengths.device(), width))
}

/// The mask that hides the padding of a part from heads of this width, where it has any: lengths where they will do, or else numbers
/// for the scores, [batch, 1, 1, length].
pub fn key_mask(part: &Part, kind: Kind, width: i64) -> Result<Option<Tensor>, TrainerError> {
    let Some(mask) = part.find("attention_mask") else { return Ok(None) };
    match key_lengths(part, kind, width) {
        Some(lengths) => Ok(Some(lengths.shallow_clone())),
        None => padding_mask(mask, kind).map(Some),
    }
}

/// The same for packed samples as they are unpacked: hides what stands behind each of them.
pub fn padding_of(packed: Packed<'_>, kind: Kind) -> Result<Tensor, TrainerError> {
    let behind = packed.counts.f_unsqueeze(0)?.f_ge_tensor(&packed.lengths()?.f_unsqueeze(1)?)?;
    Ok(behind.f_unsqueeze(1)?.f_unsqueeze(1)?.f_to_kind(kind)?.f_mul_scalar(hidden_score(kind))?)
}

/// Whether a model with heads of this width trains on packed samples: where attention goes by sample too.
pub fn packs(kind: Kind, device: Device, width: i64) -> bool {
    has_kernel(kind, device, width)
}

/// [batch, length], 1 where there is a token, as what is added to scores: [batch, 1, 1, length].
pub fn padding_mask(attention_mask: &Tensor, kind: Kind) -> Result<Tensor, TrainerError> {
    let hidden = attention_mask.f_eq(0)?.f_unsqueeze(1)?.f_unsqueeze(1)?;
    Ok(hidden.f_to_kind(kind)?.f_mul_scalar(hidden_score(kind))?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_stand_beside_their_copies() {
        let heads = Tensor::arange(4, (Kind::Float, Device::Cpu)).reshape([1, 2, 1, 2]);
        let repeated = Vec::<f32>::try_from(repeat_heads(&heads, 2).unwrap().reshape([-1])).unwrap();
        assert_eq!(repeated, [0.0, 1.0, 0.0, 1.0, 2.0, 3.0, 2.0, 3.0]);
    }
}

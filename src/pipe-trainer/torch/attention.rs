//! Attention that keeps no scores, with a bias by distance and a gradient of its own.

use std::ffi::c_char;

use tch::{Device, TchError, Tensor};
use torch_sys::C_tensor;

use super::call::{checked, optional, pointer};
use super::dropout::Dropped;

unsafe extern "C" {
    fn pipe_attention(
        q: *mut C_tensor,
        k: *mut C_tensor,
        v: *mut C_tensor,
        bias: *mut C_tensor,
        lengths: *mut C_tensor,
        is_causal: bool,
        scale: f64,
        dropped: *const Dropped,
        out: *mut *mut C_tensor,
    ) -> *mut c_char;
    fn pipe_has_attention(card: i64, has: *mut bool) -> *mut c_char;
}

/// Whether a device has the instructions that the kernels are made of.
pub fn has_attention(device: Device) -> bool {
    let Device::Cuda(card) = device else { return false };
    let mut has = false;
    // SAFETY: the result has room.
    checked(unsafe { pipe_has_attention(card as i64, &raw mut has) }).is_ok() && has
}

/// Heads of queries, keys and values: [batch, heads, length, width], bf16 or fp16.
pub struct Attention<'a> {
    pub q: &'a Tensor,
    pub k: &'a Tensor,
    pub v: &'a Tensor,
    /// Added to the scores: [heads, queries + keys - 1], at key - query + queries - 1.
    pub bias: Option<&'a Tensor>,
    /// The number of visible keys of each sample, int32.
    pub lengths: Option<&'a Tensor>,
    /// Hides key j from query i where j > i + keys - queries.
    pub is_causal: bool,
    pub scale: f64,
    pub dropped: Dropped,
}

impl Attention<'_> {
    /// [batch, queries, heads, width]; nothing where there is no kernel for such tensors.
    pub fn forward(&self) -> Result<Option<Tensor>, TchError> {
        let mut out = std::ptr::null_mut();
        // SAFETY: the pointers are of living tensors, or null; the result has room.
        checked(unsafe {
            pipe_attention(
                pointer(self.q),
                pointer(self.k),
                pointer(self.v),
                optional(self.bias),
                optional(self.lengths),
                self.is_causal,
                self.scale,
                &raw const self.dropped,
                &raw mut out,
            )
        })?;
        // SAFETY: without an error it is null, or a new tensor that no one else owns.
        Ok((!out.is_null()).then(|| unsafe { Tensor::from_ptr(out) }))
    }
}

//! Functions whose inside exists for a few rows at a time.

use std::ffi::c_char;

use tch::{TchError, Tensor};
use torch_sys::C_tensor;

use super::call::returned;

unsafe extern "C" {
    fn pipe_linear_cross_entropy(
        hidden: *mut C_tensor,
        weight: *mut C_tensor,
        labels: *mut C_tensor,
        ignored: i64,
        rows: i64,
        out: *mut *mut C_tensor,
    ) -> *mut c_char;
    fn pipe_gelu_feed_forward(
        x: *mut C_tensor,
        w1: *mut C_tensor,
        b1: *mut C_tensor,
        w2: *mut C_tensor,
        b2: *mut C_tensor,
        rows: i64,
        out: *mut *mut C_tensor,
    ) -> *mut c_char;
}

/// The cross-entropy of `hidden` [n, d] through the head `weight` [words, d], summed over the labels [n] that are not
/// `ignored`; the logits of only `rows` rows exist at a time.
pub fn linear_cross_entropy(
    hidden: &Tensor,
    weight: &Tensor,
    labels: &Tensor,
    ignored: i64,
    rows: i64,
) -> Result<Tensor, TchError> {
    let pointer = |tensor: &Tensor| tensor.as_ptr().cast_mut();
    // SAFETY: as above.
    returned(|out| unsafe {
        pipe_linear_cross_entropy(pointer(hidden), pointer(weight), pointer(labels), ignored, rows, out)
    })
}

/// gelu(input w1^T + b1) w2^T + b2 for `input` [n, d], with the exact gelu. What is inside exists for `rows` rows at a time,
/// and is recomputed for the gradient instead of being kept.
pub fn gelu_feed_forward(input: &Tensor, [w1, b1, w2, b2]: [&Tensor; 4], rows: i64) -> Result<Tensor, TchError> {
    let pointer = |tensor: &Tensor| tensor.as_ptr().cast_mut();
    // SAFETY: as above.
    returned(|out| unsafe {
        pipe_gelu_feed_forward(pointer(input), pointer(w1), pointer(b1), pointer(w2), pointer(b2), rows, out)
    })
}

//! Layers whose pieces are computed together, with gradients of their own: less is kept, and less is moved.

use std::ffi::c_char;

use tch::{TchError, Tensor};
use torch_sys::C_tensor;

use super::{checked, returned};

unsafe extern "C" {
    fn pipe_drop_add(
        input: *mut C_tensor,
        residual: *mut C_tensor,
        share: f64,
        seed: u64,
        out: *mut *mut C_tensor,
    ) -> *mut c_char;
    fn pipe_add_norm(
        input: *mut C_tensor,
        residual: *mut C_tensor,
        weight: *mut C_tensor,
        bias: *mut C_tensor,
        eps: f64,
        share: f64,
        seed: u64,
        out: *mut *mut C_tensor,
    ) -> *mut c_char;
    fn pipe_linear(
        input: *mut C_tensor,
        weight: *mut C_tensor,
        bias: *mut C_tensor,
        out: *mut *mut C_tensor,
    ) -> *mut c_char;
    fn pipe_feed_forward(
        input: *mut C_tensor,
        layers: *const *mut C_tensor,
        kind: i64,
        share: f64,
        seed: u64,
        out: *mut *mut C_tensor,
    ) -> *mut c_char;
}

/// What is dropped: a share, which is a function of the seed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Dropped {
    pub share: f64,
    pub seed: u64,
}

impl Dropped {
    pub const NOTHING: Self = Self { share: 0.0, seed: 0 };
}

/// `residual` (or nothing) plus `input` with some of it dropped, in the kind of the residual. On a card only.
pub fn drop_add(input: &Tensor, residual: Option<&Tensor>, dropped: Dropped) -> Result<Tensor, TchError> {
    // SAFETY: the pointers are of living tensors, or null.
    returned(|out| unsafe { pipe_drop_add(pointer(input), optional(residual), dropped.share, dropped.seed, out) })
}

/// The norm of `residual` plus `input` with some of it dropped; nothing where there is no kernel for such tensors.
pub fn add_norm(
    input: &Tensor,
    residual: &Tensor,
    [weight, bias]: [&Tensor; 2],
    eps: f64,
    dropped: Dropped,
) -> Result<Option<Tensor>, TchError> {
    let mut out = std::ptr::null_mut();
    // SAFETY: as above.
    checked(unsafe {
        let (weight, bias) = (pointer(weight), pointer(bias));
        let Dropped { share, seed } = dropped;
        pipe_add_norm(pointer(input), pointer(residual), weight, bias, eps, share, seed, &raw mut out)
    })?;
    // SAFETY: without an error it is null, or a new tensor that nobody else owns.
    Ok((!out.is_null()).then(|| unsafe { Tensor::from_ptr(out) }))
}

/// A product with weights that are wider than `input`: no narrow copy of them is kept for the backward pass.
pub fn linear(input: &Tensor, weight: &Tensor, bias: Option<&Tensor>) -> Result<Tensor, TchError> {
    // SAFETY: as above.
    returned(|out| unsafe { pipe_linear(pointer(input), pointer(weight), optional(bias), out) })
}

/// Two products with an activation between them, some of which is dropped; with a gate the activation is multiplied with a
/// third product. On a card only.
pub struct FeedForward<'a> {
    pub first: &'a Tensor,
    pub first_bias: Option<&'a Tensor>,
    pub gate: Option<&'a Tensor>,
    pub second: &'a Tensor,
    pub second_bias: Option<&'a Tensor>,
    /// As `Activation` counts them.
    pub activation: i64,
    pub dropped: Dropped,
}

impl FeedForward<'_> {
    pub fn forward(&self, input: &Tensor) -> Result<Tensor, TchError> {
        let layers = [
            pointer(self.first),
            optional(self.first_bias),
            optional(self.gate),
            pointer(self.second),
            optional(self.second_bias),
        ];
        let Dropped { share, seed } = self.dropped;
        // SAFETY: as above, and there are five layers.
        returned(|out| unsafe { pipe_feed_forward(pointer(input), layers.as_ptr(), self.activation, share, seed, out) })
    }
}

fn pointer(tensor: &Tensor) -> *mut C_tensor {
    tensor.as_ptr().cast_mut()
}

fn optional(tensor: Option<&Tensor>) -> *mut C_tensor {
    tensor.map_or(std::ptr::null_mut(), pointer)
}

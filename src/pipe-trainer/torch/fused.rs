//! Layers whose pieces are computed together, with gradients of their own: less is kept, and less is moved.

use std::ffi::{c_char, c_int};

use tch::{Kind, TchError, Tensor};
use torch_sys::C_tensor;

use super::call::{checked, optional, pointer, returned};
use super::dropout::Dropped;

unsafe extern "C" {
    fn pipe_add_norm(
        input: *mut C_tensor,
        input_bias: *mut C_tensor,
        residual: *mut C_tensor,
        weight: *mut C_tensor,
        bias: *mut C_tensor,
        kind: c_int,
        eps: f64,
        dropped: *const Dropped,
        out: *mut *mut C_tensor,
        sum: *mut *mut C_tensor,
    ) -> *mut c_char;
    fn pipe_linears(
        input: *mut C_tensor,
        layers: *const *mut C_tensor,
        total: usize,
        count: usize,
        outs: *mut *mut C_tensor,
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
        dropped: *const Dropped,
        out: *mut *mut C_tensor,
    ) -> *mut c_char;
}

/// The norm of `residual` plus what a layer gave, some of it dropped.
pub struct AddNorm<'a> {
    /// What the layer gave, and the bias that is still to be added. Absent, the residual itself is normed.
    pub input: Option<(&'a Tensor, Option<&'a Tensor>)>,
    pub residual: &'a Tensor,
    pub weight: &'a Tensor,
    pub bias: &'a Tensor,
    pub eps: f64,
    pub dropped: Dropped,
    /// Of the result; the sum has that of the residual.
    pub kind: Kind,
}

impl AddNorm<'_> {
    /// Nothing where there is no kernel for such tensors.
    pub fn forward(&self) -> Result<Option<Tensor>, TchError> {
        self.compute(None)
    }

    /// The norm, and the sum as well.
    pub fn forward_with_sum(&self) -> Result<Option<(Tensor, Tensor)>, TchError> {
        let mut sum = std::ptr::null_mut();
        let normed = self.compute(Some(&mut sum))?;
        // SAFETY: where there is a norm there is a sum, a new tensor that no one else owns.
        Ok(normed.map(|normed| (normed, unsafe { Tensor::from_ptr(sum) })))
    }

    fn compute(&self, sum: Option<&mut *mut C_tensor>) -> Result<Option<Tensor>, TchError> {
        let (input, input_bias) = self.input.map_or((None, None), |(input, bias)| (Some(input), bias));
        let mut out = std::ptr::null_mut();
        let kind = scalar_type(self.kind)?;
        // SAFETY: the pointers are of living tensors, or null; the results have room.
        checked(unsafe {
            pipe_add_norm(
                optional(input),
                optional(input_bias),
                pointer(self.residual),
                pointer(self.weight),
                pointer(self.bias),
                kind,
                self.eps,
                &raw const self.dropped,
                &raw mut out,
                sum.map_or(std::ptr::null_mut(), |sum| sum),
            )
        })?;
        // SAFETY: without an error it is null, or a new tensor that no one else owns.
        Ok((!out.is_null()).then(|| unsafe { Tensor::from_ptr(out) }))
    }
}

/// Several products of one input as one, with all their biases or none. What comes out are slices of one tensor.
pub fn linears<const N: usize>(
    input: &Tensor,
    weights: [&Tensor; N],
    biases: Option<[&Tensor; N]>,
) -> Result<[Tensor; N], TchError> {
    let layers: Vec<*mut C_tensor> = weights.into_iter().chain(biases.into_iter().flatten()).map(pointer).collect();
    let mut outs = [std::ptr::null_mut(); N];
    // SAFETY: the pointers are of living tensors, there are N weights among them, and N results have room.
    checked(unsafe { pipe_linears(pointer(input), layers.as_ptr(), layers.len(), N, outs.as_mut_ptr()) })?;
    // SAFETY: without an error each is a new tensor that no one else owns.
    Ok(outs.map(|out| unsafe { Tensor::from_ptr(out) }))
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
        // SAFETY: as above, and there are five layers.
        returned(|out| unsafe {
            pipe_feed_forward(pointer(input), layers.as_ptr(), self.activation, &raw const self.dropped, out)
        })
    }
}

/// The number of a kind in torch, of those that the kernels know.
fn scalar_type(kind: Kind) -> Result<c_int, TchError> {
    match kind {
        Kind::Half => Ok(5),
        Kind::Float => Ok(6),
        Kind::BFloat16 => Ok(15),
        other => Err(TchError::Kind(format!("no kernel computes in {other:?}"))),
    }
}

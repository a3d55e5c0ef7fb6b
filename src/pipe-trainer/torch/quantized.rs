//! Weights of 4 and 8 bits in products, and updates of many parameters in one call, also with moments of 8 bits.

use std::ffi::{c_char, c_int};
use std::ptr;

use tch::{Kind, TchError, Tensor};
use torch_sys::C_tensor;

use super::fused::scalar_type;
use super::{checked, optional, pointer, pointers, returned};

/// As in shim.cpp.
#[repr(C)]
struct QuantizedTensors {
    codes: *mut C_tensor,
    scales: *mut C_tensor,
    scales_of_scales: *mut C_tensor,
    map: *mut C_tensor,
    offset: f64,
    rows: i64,
    columns: i64,
}

unsafe extern "C" {
    fn pipe_nf4_numbers(out: *mut f32);
    fn pipe_dequantize(weight: *const QuantizedTensors, kind: c_int, out: *mut *mut C_tensor) -> *mut c_char;
    fn pipe_quantized_linear(
        input: *mut C_tensor,
        bias: *mut C_tensor,
        weight: *const QuantizedTensors,
        out: *mut *mut C_tensor,
    ) -> *mut c_char;
    fn pipe_adamw_8bit(
        tensors: *const *mut C_tensor,
        count: usize,
        maps: *mut C_tensor,
        scale: *mut C_tensor,
        step: *const AdamWStep,
        seed: u64,
    ) -> *mut c_char;
}

/// The numbers that the codes of 4 bits stand for: as likely as each other where weights are spread normally.
pub fn nf4_numbers() -> [f32; 16] {
    let mut out = [0.0; 16];
    // SAFETY: the array has the places that are written.
    unsafe { pipe_nf4_numbers(out.as_mut_ptr()) };
    out
}

/// A matrix of few bits for each number.
pub struct QuantizedMatrix<'a> {
    /// 4 bits: two in a byte, the first in its upper half; 8 bits: [rows, columns].
    pub codes: &'a Tensor,
    /// 4 bits: a code for each block of 64; 8 bits: a number for each row.
    pub scales: &'a Tensor,
    /// 4 bits alone have them.
    pub outer: Option<OuterScales<'a>>,
    pub rows: i64,
    pub columns: i64,
}

/// The numbers that codes of scales stand for.
pub struct OuterScales<'a> {
    /// The scale of 256 of them.
    pub scales: &'a Tensor,
    /// The numbers of the 256 codes.
    pub map: &'a Tensor,
    /// Added to every scale.
    pub offset: f32,
}

impl QuantizedMatrix<'_> {
    /// The matrix in `kind`.
    pub fn wide(&self, kind: Kind) -> Result<Tensor, TchError> {
        let (tensors, kind) = (self.tensors(), scalar_type(kind)?);
        // SAFETY: the pointers are of living tensors, or null.
        returned(|out| unsafe { pipe_dequantize(&raw const tensors, kind, out) })
    }

    /// The product of `input` with it, in the kind of `input`: the matrix is wide as long as that takes, and again for the gradient.
    pub fn linear(&self, input: &Tensor, bias: Option<&Tensor>) -> Result<Tensor, TchError> {
        let tensors = self.tensors();
        // SAFETY: as above.
        returned(|out| unsafe { pipe_quantized_linear(pointer(input), optional(bias), &raw const tensors, out) })
    }

    fn tensors(&self) -> QuantizedTensors {
        QuantizedTensors {
            codes: pointer(self.codes),
            scales: pointer(self.scales),
            scales_of_scales: optional(self.outer.as_ref().map(|outer| outer.scales)),
            map: optional(self.outer.as_ref().map(|outer| outer.map)),
            offset: self.outer.as_ref().map_or(0.0, |outer| outer.offset.into()),
            rows: self.rows,
            columns: self.columns,
        }
    }
}

/// Parameters of one kind with their gradients, and moments of 8 bits: a code for each number, and the scale of each 256 of them.
#[derive(Default)]
pub struct NarrowGroup<'a> {
    pub parameters: Vec<&'a Tensor>,
    pub gradients: Vec<&'a Tensor>,
    pub averages: Vec<&'a Tensor>,
    pub squares: Vec<&'a Tensor>,
    pub average_scales: Vec<&'a Tensor>,
    pub square_scales: Vec<&'a Tensor>,
}

/// Updates a group in place. `scale` (fp32, on their device) multiplies the gradients; `maps` [2, 256] are the numbers that a code of an
/// average, and one of a square, stands for. Parameters in bf16 are rounded stochastically with noise of `seed`.
pub fn adamw_8bit(
    group: &NarrowGroup<'_>,
    maps: &Tensor,
    scale: &Tensor,
    step: &AdamWStep,
    seed: u64,
) -> Result<(), TchError> {
    let NarrowGroup { parameters, gradients, averages, squares, average_scales, square_scales } = group;
    let all = [parameters, gradients, averages, squares, average_scales, square_scales];
    let count = parameters.len();
    assert!(all.iter().all(|one| one.len() == count), "a group has one of each");
    let tensors: Vec<*mut C_tensor> = all.iter().flat_map(|one| pointers(one)).collect();
    // SAFETY: the pointers are of living tensors, and there are `count` of each.
    checked(unsafe { pipe_adamw_8bit(tensors.as_ptr(), count, pointer(maps), pointer(scale), step, seed) })
}

unsafe extern "C" {
    fn pipe_adamw(
        p: *const *mut C_tensor,
        g: *const *mut C_tensor,
        m: *const *mut C_tensor,
        v: *const *mut C_tensor,
        count: usize,
        scale: *mut C_tensor,
        step: *const AdamWStep,
        seed: *const u64,
    ) -> *mut c_char;
    fn pipe_round_to_bf16(into: *mut C_tensor, wide: *mut C_tensor, seed: u64) -> *mut c_char;
}

/// The numbers of one AdamW update, laid out as in the C++.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct AdamWStep {
    pub lr: f64,
    pub betas: [f64; 2],
    pub eps: f64,
    pub weight_decay: f64,
    /// Counted from 1.
    pub step: u64,
}

/// Parameters with their gradients and moments, all of one kind.
#[derive(Default)]
pub struct AdamWGroup<'a> {
    pub parameters: Vec<&'a Tensor>,
    pub gradients: Vec<&'a Tensor>,
    pub averages: Vec<&'a Tensor>,
    pub squares: Vec<&'a Tensor>,
}

/// Updates a group in place. `scale` (fp32, on their device) multiplies the gradients.
pub fn adamw(group: &AdamWGroup<'_>, scale: &Tensor, step: &AdamWStep) -> Result<(), TchError> {
    update(group, scale, step, None)
}

/// The same for a group in bf16, rounding stochastically with noise of `seed`.
pub fn adamw_bf16(group: &AdamWGroup<'_>, scale: &Tensor, step: &AdamWStep, seed: u64) -> Result<(), TchError> {
    update(group, scale, step, Some(&seed))
}

fn update(group: &AdamWGroup<'_>, scale: &Tensor, step: &AdamWStep, seed: Option<&u64>) -> Result<(), TchError> {
    let tensors = [&group.parameters, &group.gradients, &group.averages, &group.squares].map(|all| pointers(all));
    let count = tensors[0].len();
    assert!(tensors.iter().all(|all| all.len() == count), "a group has one of each");
    let [p, g, m, v] = tensors.each_ref().map(Vec::as_ptr);
    let seed = seed.map_or(ptr::null(), ptr::from_ref);
    // SAFETY: the pointers are of living tensors, and there are `count` of each.
    checked(unsafe { pipe_adamw(p, g, m, v, count, scale.as_ptr().cast_mut(), step, seed) })
}

/// Rounds fp32 values stochastically into a bf16 tensor of the same shape, with noise of `seed`.
pub fn round_to_bf16(into: &Tensor, wide: &Tensor, seed: u64) -> Result<(), TchError> {
    // SAFETY: as above.
    checked(unsafe { pipe_round_to_bf16(into.as_ptr().cast_mut(), wide.as_ptr().cast_mut(), seed) })
}

unsafe extern "C" {
    fn pipe_total_norm(tensors: *const *mut C_tensor, count: usize, out: *mut *mut C_tensor) -> *mut c_char;
    fn pipe_set_gradient(tensor: *mut C_tensor, gradient: *mut C_tensor) -> *mut c_char;
}

/// The norm over all tensors together: a number on their device, without waiting for it.
pub fn total_norm(tensors: &[Tensor]) -> Result<Tensor, TchError> {
    let all = pointers(&tensors.iter().collect::<Vec<_>>());
    // SAFETY: as above.
    returned(|out| unsafe { pipe_total_norm(all.as_ptr(), all.len(), out) })
}

/// Gives a parameter this gradient, to which a backward pass adds; or none, so that its memory is free until the next one.
pub fn set_gradient(tensor: &Tensor, gradient: Option<&Tensor>) -> Result<(), TchError> {
    // SAFETY: as above.
    checked(unsafe { pipe_set_gradient(pointer(tensor), optional(gradient)) })
}

#[cfg(test)]
mod gradients_tests {
    use super::*;
    use crate::error::TrainerError;

    #[test]
    fn memory_that_runs_out_on_the_other_side_is_an_error() {
        let mut out = std::ptr::null_mut();
        // SAFETY: a list of so many is never made, so that none of them is looked at.
        let error = checked(unsafe { pipe_total_norm(std::ptr::null(), 1 << 58, &raw mut out) });
        assert!(matches!(TrainerError::from(error.unwrap_err()), TrainerError::OutOfMemory { .. }));
        assert!(out.is_null());
        assert!(returned(|_| std::ptr::null_mut()).is_err(), "neither an error nor a tensor");
    }
}

//! Updates of many parameters in one call, and their gradients.

use std::ffi::c_char;
use std::ptr;

use tch::{TchError, Tensor};
use torch_sys::C_tensor;

use super::call::{checked, optional, pointer, pointers, returned};

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

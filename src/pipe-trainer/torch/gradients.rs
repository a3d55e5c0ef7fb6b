//! Gradients of all parameters: their norm, and their memory.

use std::ffi::c_char;

use tch::{TchError, Tensor};
use torch_sys::C_tensor;

use super::call::{checked, optional, pointer, pointers, returned};

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
mod tests {
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

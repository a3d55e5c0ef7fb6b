//! Updates of many parameters in one call.

use std::ffi::c_char;

use tch::{TchError, Tensor};
use torch_sys::C_tensor;

use super::call::{checked, pointers};

unsafe extern "C" {
    fn pipe_adamw(
        p: *const *mut C_tensor,
        g: *const *mut C_tensor,
        m: *const *mut C_tensor,
        v: *const *mut C_tensor,
        count: usize,
        scale: *mut C_tensor,
        lr: f64,
        beta1: f64,
        beta2: f64,
        eps: f64,
        decay: f64,
        step: u64,
    ) -> *mut c_char;
    fn pipe_adamw_bf16(
        p: *const *mut C_tensor,
        g: *const *mut C_tensor,
        m: *const *mut C_tensor,
        v: *const *mut C_tensor,
        count: usize,
        scale: *mut C_tensor,
        lr: f64,
        beta1: f64,
        beta2: f64,
        eps: f64,
        decay: f64,
        step: u64,
        seed: u64,
    ) -> *mut c_char;
    fn pipe_round_to_bf16(into: *mut C_tensor, wide: *mut C_tensor, seed: u64) -> *mut c_char;
}

/// The numbers of one AdamW update.
#[derive(Clone, Copy, Debug)]
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

impl AdamWGroup<'_> {
    fn pointers(&self) -> [Vec<*mut C_tensor>; 4] {
        let all = [&self.parameters, &self.gradients, &self.averages, &self.squares].map(|tensors| pointers(tensors));
        assert!(all.iter().all(|tensors| tensors.len() == all[0].len()), "a group has one of each");
        all
    }
}

/// Updates a group in place. `scale` (fp32, on their device) multiplies the gradients.
pub fn adamw(group: &AdamWGroup<'_>, scale: &Tensor, step: &AdamWStep) -> Result<(), TchError> {
    let [p, g, m, v] = group.pointers();
    let AdamWStep { lr, betas: [beta1, beta2], eps, weight_decay, step } = *step;
    // SAFETY: the pointers are of living tensors, and there are `count` of each.
    checked(unsafe {
        pipe_adamw(
            p.as_ptr(),
            g.as_ptr(),
            m.as_ptr(),
            v.as_ptr(),
            p.len(),
            scale.as_ptr().cast_mut(),
            lr,
            beta1,
            beta2,
            eps,
            weight_decay,
            step,
        )
    })
}

/// The same for a group in bf16, rounding stochastically with noise of `seed`.
pub fn adamw_bf16(group: &AdamWGroup<'_>, scale: &Tensor, step: &AdamWStep, seed: u64) -> Result<(), TchError> {
    let [p, g, m, v] = group.pointers();
    let AdamWStep { lr, betas: [beta1, beta2], eps, weight_decay, step } = *step;
    // SAFETY: as above.
    checked(unsafe {
        pipe_adamw_bf16(
            p.as_ptr(),
            g.as_ptr(),
            m.as_ptr(),
            v.as_ptr(),
            p.len(),
            scale.as_ptr().cast_mut(),
            lr,
            beta1,
            beta2,
            eps,
            weight_decay,
            step,
            seed,
        )
    })
}

/// Rounds fp32 values stochastically into a bf16 tensor of the same shape, with noise of `seed`.
pub fn round_to_bf16(into: &Tensor, wide: &Tensor, seed: u64) -> Result<(), TchError> {
    // SAFETY: as above.
    checked(unsafe { pipe_round_to_bf16(into.as_ptr().cast_mut(), wide.as_ptr().cast_mut(), seed) })
}

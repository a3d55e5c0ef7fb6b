//! What libtorch can do and tch cannot, behind a safe interface. `shim.cpp` is the other side.

mod checkpoint;
mod fused;

use std::ffi::{CStr, CString, c_char, c_void};
use std::path::Path;

use tch::{TchError, Tensor};
use torch_sys::C_tensor;

pub use checkpoint::checkpoint;
pub use fused::{AddNorm, Dropped, FeedForward, drop_add, linear, linears};

unsafe extern "C" {
    fn free(pointer: *mut c_void);
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
    fn pipe_total_norm(tensors: *const *mut C_tensor, count: usize, out: *mut *mut C_tensor) -> *mut c_char;
    fn pipe_forget_gradient(tensor: *mut C_tensor) -> *mut c_char;
    fn pipe_linear_cross_entropy(
        hidden: *mut C_tensor,
        weight: *mut C_tensor,
        labels: *mut C_tensor,
        ignored: i64,
        rows: i64,
        out: *mut *mut C_tensor,
    ) -> *mut c_char;
    fn pipe_kernels(text: *const c_char);
    fn pipe_trace_begin() -> *mut c_char;
    fn pipe_trace_end(path: *const c_char) -> *mut c_char;
    fn pipe_gelu_feed_forward(
        x: *mut C_tensor,
        w1: *mut C_tensor,
        b1: *mut C_tensor,
        w2: *mut C_tensor,
        b2: *mut C_tensor,
        rows: i64,
        out: *mut *mut C_tensor,
    ) -> *mut c_char;
    fn pipe_card_memory(out: *mut u64) -> *mut c_char;
    fn pipe_reset_peaks() -> *mut c_char;
    fn pipe_empty_cache() -> *mut c_char;
    fn pipe_flush_denormals();
    fn pipe_allow_tf32(allow: bool);
    fn pipe_deterministic(on: bool) -> *mut c_char;
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
    // SAFETY: the pointers are of living tensors, and there are as many of each as is said.
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

/// The norm over all tensors together: a number on their device, which nobody has waited for.
pub fn total_norm(tensors: &[Tensor]) -> Result<Tensor, TchError> {
    let all = pointers(&tensors.iter().collect::<Vec<_>>());
    // SAFETY: as above.
    returned(|out| unsafe { pipe_total_norm(all.as_ptr(), all.len(), out) })
}

/// Lets go of a parameter's gradient, so that its memory is free until the next backward pass.
pub fn forget_gradient(tensor: &Tensor) -> Result<(), TchError> {
    // SAFETY: as above.
    checked(unsafe { pipe_forget_gradient(tensor.as_ptr().cast_mut()) })
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
/// and is computed again for the gradient instead of being kept.
pub fn gelu_feed_forward(input: &Tensor, [w1, b1, w2, b2]: [&Tensor; 4], rows: i64) -> Result<Tensor, TchError> {
    let pointer = |tensor: &Tensor| tensor.as_ptr().cast_mut();
    // SAFETY: as above.
    returned(|out| unsafe {
        pipe_gelu_feed_forward(pointer(input), pointer(w1), pointer(b1), pointer(w2), pointer(b2), rows, out)
    })
}

/// What torch's allocator holds on the card, in bytes.
#[derive(Clone, Copy, Debug, Default)]
pub struct CardMemory {
    pub allocated: u64,
    pub reserved: u64,
    pub peak_allocated: u64,
    pub peak_reserved: u64,
    pub retries: u64,
}

pub fn card_memory() -> Result<CardMemory, TchError> {
    let mut out = [0; 5];
    // SAFETY: the array has the five places that are written.
    checked(unsafe { pipe_card_memory(out.as_mut_ptr()) })?;
    let [allocated, reserved, peak_allocated, peak_reserved, retries] = out;
    Ok(CardMemory { allocated, reserved, peak_allocated, peak_reserved, retries })
}

/// Hands over the text of the kernels, which are compiled when they are needed. Once, before the first is.
pub fn prepare_kernels() {
    let text = CString::new(include_str!("kernels.cu")).expect("the kernels hold no zero");
    // SAFETY: it is a C string, which the other side copies.
    unsafe { pipe_kernels(text.as_ptr()) }
}

/// Records what the card does until `trace_end`.
pub fn trace_begin() -> Result<(), TchError> {
    // SAFETY: it takes nothing.
    checked(unsafe { pipe_trace_begin() })
}

/// Writes what was recorded, for chrome://tracing and the like.
pub fn trace_end(path: &Path) -> Result<(), TchError> {
    let path = CString::new(path.as_os_str().as_encoded_bytes()).map_err(|error| TchError::Torch(error.to_string()))?;
    // SAFETY: it is a C string.
    checked(unsafe { pipe_trace_end(path.as_ptr()) })
}

/// The peaks of `card_memory` begin anew with what is held now.
pub fn reset_peaks() -> Result<(), TchError> {
    // SAFETY: it takes nothing.
    checked(unsafe { pipe_reset_peaks() })
}

/// Gives what the allocator holds and nobody uses back to the card.
pub fn empty_cache() -> Result<(), TchError> {
    // SAFETY: it takes nothing.
    checked(unsafe { pipe_empty_cache() })
}

/// Numbers too small for fp32's full precision count as 0 from now on, in this thread and those that it starts: the CPU takes
/// a hundred times longer for them, and the gradients of a fresh model are full of them.
pub fn flush_denormals() {
    // SAFETY: it only sets a flag.
    unsafe { pipe_flush_denormals() }
}

/// Whether fp32 matrix products, convolutions and recurrent layers may be computed in TF32.
pub fn allow_tf32(allow: bool) {
    // SAFETY: it only sets a flag.
    unsafe { pipe_allow_tf32(allow) }
}

/// Whether only kernels may be used that give the same bits every time.
pub fn deterministic(on: bool) -> Result<(), TchError> {
    // SAFETY: it only sets a flag.
    checked(unsafe { pipe_deterministic(on) })
}

fn pointers(tensors: &[&Tensor]) -> Vec<*mut C_tensor> {
    tensors.iter().map(|tensor| tensor.as_ptr().cast_mut()).collect()
}

/// A tensor that the other side makes.
fn returned(call: impl FnOnce(*mut *mut C_tensor) -> *mut c_char) -> Result<Tensor, TchError> {
    let mut out = std::ptr::null_mut();
    checked(call(&raw mut out))?;
    // SAFETY: without an error it is a new tensor that nobody else owns.
    Ok(unsafe { Tensor::from_ptr(out) })
}

/// The error that the other side returned, if any.
fn checked(error: *mut c_char) -> Result<(), TchError> {
    if error.is_null() {
        return Ok(());
    }
    // SAFETY: it is a C string made by strdup.
    let message = unsafe { CStr::from_ptr(error) }.to_string_lossy().into_owned();
    unsafe { free(error.cast()) };
    Err(TchError::Torch(message))
}

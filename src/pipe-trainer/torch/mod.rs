//! A safe interface to functions of libtorch that tch lacks: tensors in and out, and errors as results. `shim.cpp` is the other side.

mod card;
mod dropout;
mod fused;
mod quantized;
mod ranks;

use std::ffi::{CStr, c_char};

use tch::{TchError, Tensor};
use torch_sys::C_tensor;

pub use card::{
    CardMemory, Graph, allow_tf32, card_memory, deterministic, empty_cache, flush_denormals, prepare_kernels,
    reset_peaks, to_device, trace_begin, trace_end, use_card,
};
pub use dropout::{Dropped, chunked_attention, drop_add};
pub use fused::{
    AddNorm, Attention, FeedForward, checkpoint, gated_activation, gelu_feed_forward, has_attention, lay_together,
    linear, linear_cross_entropy, linears, linears_and_residual, linears_apart, rms_norm, select_rows, turn,
};
pub use quantized::{AdamWGroup, AdamWStep, adamw, adamw_bf16, round_to_bf16, set_gradient, total_norm};
pub use quantized::{NarrowGroup, OuterScales, QuantizedMatrix, adamw_8bit, nf4_numbers};
pub use ranks::{BucketSums, Link, Rendezvous, Waits, rendezvous};

unsafe extern "C" {
    fn pipe_free_message(message: *mut c_char);
}

pub fn pointers(tensors: &[&Tensor]) -> Vec<*mut C_tensor> {
    tensors.iter().map(|tensor| pointer(tensor)).collect()
}

pub fn pointer(tensor: &Tensor) -> *mut C_tensor {
    tensor.as_ptr().cast_mut()
}

/// Null where there is none.
pub fn optional(tensor: Option<&Tensor>) -> *mut C_tensor {
    tensor.map_or(std::ptr::null_mut(), pointer)
}

/// A tensor that the other side makes.
pub fn returned(call: impl FnOnce(*mut *mut C_tensor) -> *mut c_char) -> Result<Tensor, TchError> {
    let mut out = std::ptr::null_mut();
    checked(call(&raw mut out))?;
    if out.is_null() {
        return Err(TchError::Torch("libtorch returned no tensor".to_owned()));
    }
    // SAFETY: without an error it is a new tensor that no one else owns.
    Ok(unsafe { Tensor::from_ptr(out) })
}

/// The error that the other side returned, if any.
pub fn checked(error: *mut c_char) -> Result<(), TchError> {
    if error.is_null() {
        return Ok(());
    }
    // SAFETY: it is a C string of the other side, given back once.
    let message = unsafe { CStr::from_ptr(error) }.to_string_lossy().into_owned();
    unsafe { pipe_free_message(error) };
    Err(TchError::Torch(message))
}

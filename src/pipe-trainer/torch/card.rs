//! The card that torch uses: the memory that its allocator holds, our kernels, and a trace of what it does.

use std::ffi::{CString, c_char};
use std::path::Path;

use tch::TchError;

use super::call::checked;

unsafe extern "C" {
    fn pipe_use_card(index: i64) -> *mut c_char;
    fn pipe_card_memory(card: i64, out: *mut u64) -> *mut c_char;
    fn pipe_reset_peaks(card: i64) -> *mut c_char;
    fn pipe_empty_cache() -> *mut c_char;
    fn pipe_kernels(text: *const c_char) -> *mut c_char;
    fn pipe_trace_begin() -> *mut c_char;
    fn pipe_trace_end(path: *const c_char) -> *mut c_char;
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

/// Makes this thread use the card with this number for whatever names no other.
pub fn use_card(index: u32) -> Result<(), TchError> {
    // SAFETY: it takes a number.
    checked(unsafe { pipe_use_card(i64::from(index)) })
}

/// What is held on the card with this number.
pub fn card_memory(index: usize) -> Result<CardMemory, TchError> {
    let mut out = [0; 5];
    // SAFETY: the array has the five places that are written.
    checked(unsafe { pipe_card_memory(index as i64, out.as_mut_ptr()) })?;
    let [allocated, reserved, peak_allocated, peak_reserved, retries] = out;
    Ok(CardMemory { allocated, reserved, peak_allocated, peak_reserved, retries })
}

/// The peaks of `card_memory` count from what is held now.
pub fn reset_peaks(index: usize) -> Result<(), TchError> {
    // SAFETY: it takes a number.
    checked(unsafe { pipe_reset_peaks(index as i64) })
}

/// Gives unused memory of the allocator back to the card.
pub fn empty_cache() -> Result<(), TchError> {
    // SAFETY: it takes nothing.
    checked(unsafe { pipe_empty_cache() })
}

/// Hands over the text of the kernels, which are compiled when they are needed. Once, before the first is.
pub fn prepare_kernels() -> Result<(), TchError> {
    let text = CString::new(concat!(
        include_str!("kernels.cu"),
        include_str!("attention.cu"),
        include_str!("attention_forward.cu"),
        include_str!("attention_backward.cu"),
    ))
    .expect("the kernels hold no zero");
    // SAFETY: it is a C string, which the other side copies.
    checked(unsafe { pipe_kernels(text.as_ptr()) })
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

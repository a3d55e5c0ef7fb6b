//! The card that torch uses, and settings of the whole process: the memory of its allocator, our kernels, CUDA graphs, precision.

use std::ffi::{CString, c_char};
use std::path::Path;

use tch::{Device, TchError, Tensor};
use torch_sys::C_tensor;

use super::{checked, pointer, returned};

unsafe extern "C" {
    fn pipe_use_card(index: i64) -> *mut c_char;
    fn pipe_card_memory(card: i64, out: *mut u64) -> *mut c_char;
    fn pipe_reset_peaks(card: i64) -> *mut c_char;
    fn pipe_empty_cache() -> *mut c_char;
    fn pipe_kernels(text: *const c_char) -> *mut c_char;
    fn pipe_trace_begin() -> *mut c_char;
    fn pipe_trace_end(path: *const c_char) -> *mut c_char;
}

/// Bytes that torch's allocator holds on the card.
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

/// Bytes that are held on the card with this number.
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
        include_str!("quantized_numbers.hpp"),
        include_str!("quantized.cu"),
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

unsafe extern "C" {
    fn pipe_flush_denormals();
    fn pipe_allow_tf32(allow: bool) -> *mut c_char;
    fn pipe_deterministic(on: bool) -> *mut c_char;
}

/// Numbers too small for fp32's full precision count as 0 from now on, in this thread and those that it starts: the CPU takes
/// a hundred times longer for them, and the gradients of a fresh model are full of them.
pub fn flush_denormals() {
    // SAFETY: it only sets a flag.
    unsafe { pipe_flush_denormals() }
}

/// Whether fp32 matrix products, convolutions and recurrent layers may be computed in TF32.
pub fn allow_tf32(allow: bool) -> Result<(), TchError> {
    // SAFETY: it only sets a flag.
    checked(unsafe { pipe_allow_tf32(allow) })
}

/// Whether only kernels may be used that give the same bits every time.
pub fn deterministic(on: bool) -> Result<(), TchError> {
    // SAFETY: it only sets a flag.
    checked(unsafe { pipe_deterministic(on) })
}

/// `CudaGraph` of graph.hpp.
#[repr(C)]
struct Raw {
    _opaque: [u8; 0],
}

unsafe extern "C" {
    fn pipe_graph_begin(graph: *mut *mut Raw) -> *mut c_char;
    fn pipe_graph_end(graph: *mut Raw) -> *mut c_char;
    fn pipe_graph_replay(graph: *mut Raw) -> *mut c_char;
    fn pipe_graph_drop(graph: *mut Raw);
    fn pipe_to_card(tensor: *mut C_tensor, card: i64, out: *mut *mut C_tensor) -> *mut c_char;
}

/// A CUDA graph: everything that was launched while it was recorded. The memory that it works in stays taken as long as any graph
/// lives, and is shared by all.
pub struct Graph(*mut Raw);

impl Graph {
    /// Records what `work` launches, on this thread and in its backward passes, instead of computing it.
    pub fn record<T, E: From<TchError>>(work: impl FnOnce() -> Result<T, E>) -> Result<(Self, T), E> {
        let mut raw = std::ptr::null_mut();
        // SAFETY: it writes a pointer that is owned here, or returns an error.
        checked(unsafe { pipe_graph_begin(&raw mut raw) })?;
        let graph = Self(raw);
        let worked = work();
        // SAFETY: it was begun and not yet ended. It must end whether the work failed or not.
        let ended = checked(unsafe { pipe_graph_end(graph.0) });
        let worked = worked?;
        ended?;
        Ok((graph, worked))
    }

    /// Launches all of it. Returns before the card has computed it.
    pub fn replay(&self) -> Result<(), TchError> {
        // SAFETY: it was recorded to its end.
        checked(unsafe { pipe_graph_replay(self.0) })
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        // SAFETY: no one else owns it.
        unsafe { pipe_graph_drop(self.0) }
    }
}

/// A tensor of the CPU on `device`, without waiting for what a card still computes.
pub fn to_device(tensor: &Tensor, device: Device) -> Result<Tensor, TchError> {
    match device {
        // SAFETY: the pointer is of a living tensor.
        Device::Cuda(card) => returned(|out| unsafe { pipe_to_card(pointer(tensor), card as i64, out) }),
        _ => tensor.f_to_device(device),
    }
}

//! CUDA graphs: kernels that are recorded once and launched together.

use std::ffi::c_char;

use tch::{Device, TchError, Tensor};
use torch_sys::C_tensor;

use super::call::{checked, pointer, returned};

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

/// What was launched while it was recorded. The memory that it works in stays taken as long as any graph lives, and is shared by all.
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

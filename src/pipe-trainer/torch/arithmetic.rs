//! How torch computes: settings of the whole process.

use std::ffi::c_char;

use tch::TchError;

use super::call::checked;

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

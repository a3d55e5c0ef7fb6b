//! Gradient checkpointing (Chen et al., 2016): what a block computes inside is thrown away and recomputed when its
//! gradient is wanted.

use std::ffi::{CString, c_char, c_void};

use tch::{TchError, Tensor};
use torch_sys::C_tensor;

use super::call::{pointers, returned};
use crate::error::TrainerError;

/// Called on the thread of the backward pass, and dropped on any.
type Block = dyn Fn(&[&Tensor]) -> Result<Tensor, TrainerError> + Send + Sync;

unsafe extern "C" {
    fn strdup(text: *const c_char) -> *mut c_char;
    fn pipe_checkpoint(
        block: unsafe extern "C" fn(*mut c_void, *mut *mut C_tensor, usize, *mut *mut C_tensor) -> *mut c_char,
        data: *mut c_void,
        drop: unsafe extern "C" fn(*mut c_void),
        inputs: *const *mut C_tensor,
        count: usize,
        out: *mut *mut C_tensor,
    ) -> *mut c_char;
}

/// `block` of the inputs. It is called once now, and once more when the gradient is computed: it must do the same both
/// times, its random numbers included.
pub fn checkpoint(
    inputs: &[&Tensor],
    block: impl Fn(&[&Tensor]) -> Result<Tensor, TrainerError> + Send + Sync + 'static,
) -> Result<Tensor, TchError> {
    let block: Box<Box<Block>> = Box::new(Box::new(block));
    let inputs = pointers(inputs);
    // SAFETY: the other side owns the box from here on and gives it back to `drop_block` once.
    returned(|out| unsafe {
        pipe_checkpoint(call_block, Box::into_raw(block).cast(), drop_block, inputs.as_ptr(), inputs.len(), out)
    })
}

/// The other side calls this, on whichever thread the backward pass runs.
unsafe extern "C" fn call_block(
    data: *mut c_void,
    inputs: *mut *mut C_tensor,
    count: usize,
    output: *mut *mut C_tensor,
) -> *mut c_char {
    let work = || -> Result<Tensor, TrainerError> {
        // SAFETY: `data` is the box of `checkpoint`, and there are `count` inputs. They belong to the other side, so what is
        // made of them here is a second handle on each.
        let (block, inputs): (_, Vec<Tensor>) = unsafe {
            let inputs = std::slice::from_raw_parts(inputs, count);
            (&*data.cast::<Box<Block>>(), inputs.iter().map(|input| Tensor::clone_from_ptr(*input)).collect())
        };
        block(&inputs.iter().collect::<Vec<_>>())
    };
    match crate::boundary::guard(work) {
        Ok(tensor) => {
            // SAFETY: the other side deletes the handle; ours must not.
            unsafe { *output = tensor.as_ptr().cast_mut() };
            std::mem::forget(tensor);
            std::ptr::null_mut()
        }
        Err(error) => {
            let message = CString::new(error.to_string().replace('\0', " ")).unwrap_or_default();
            // Where there is no memory for the copy the other side sees neither an error nor a tensor, and knows why.
            // SAFETY: it is a C string; the other side frees the copy.
            unsafe { strdup(message.as_ptr()) }
        }
    }
}

unsafe extern "C" fn drop_block(data: *mut c_void) {
    // SAFETY: it is the box of `checkpoint`, given back once.
    drop(unsafe { Box::from_raw(data.cast::<Box<Block>>()) });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_without_an_answer_is_an_error() {
        let input = Tensor::from_slice(&[1.0f32]).set_requires_grad(true);
        let fails = |_: &[&Tensor]| Err(TrainerError::Panic { message: "on purpose".to_owned() });
        let error = checkpoint(&[&input], fails).unwrap_err().to_string();
        assert!(error.contains("on purpose"), "{error}");
    }
}

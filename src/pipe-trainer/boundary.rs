//! The one place where errors of torch and panics become outcomes.

use std::any::Any;
use std::io;
use std::panic::{self, AssertUnwindSafe};

use pipe_spec::event::Memory;
use tch::TchError;

use crate::error::TrainerError;
use crate::host_allocator;
use crate::host_memory::HostMemory;

/// Runs `work`; a panic inside it comes back as an error like any other.
pub fn guard<T>(work: impl FnOnce() -> Result<T, TrainerError>) -> Result<T, TrainerError> {
    panic::catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|payload| Err(from_panic(payload)))
}

/// An error when Rust's own allocations hit the limit since the last look; they were served beyond it, so that the
/// program could get here.
pub fn check_host_memory() -> Result<(), TrainerError> {
    if host_allocator::exhausted() {
        return Err(out_of(Memory::Host, "the memory limit was reached outside of tensors".to_owned()));
    }
    Ok(())
}

impl From<TchError> for TrainerError {
    fn from(error: TchError) -> Self {
        match error {
            TchError::Torch(message) => from_torch(&message),
            other => Self::Torch { message: other.to_string() },
        }
    }
}

/// Why a thread could not be started. The kernel asks to try again when there is no memory for its stack.
pub fn from_thread(name: &str, error: &io::Error) -> TrainerError {
    let message = format!("cannot start {name}: {error}");
    match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::OutOfMemory => out_of(Memory::Host, message),
        _ => TrainerError::Panic { message },
    }
}

/// Models convert errors where they arise, so the graph is still held and the numbers are those of the failure.
fn out_of(memory: Memory, message: String) -> TrainerError {
    TrainerError::OutOfMemory { memory, message, host: HostMemory::now() }
}

fn from_torch(message: &str) -> TrainerError {
    // Behind the first line torch puts a C++ stack.
    let first = message.lines().next().unwrap_or_default().to_owned();
    match whose_memory(message) {
        Some(memory) => out_of(memory, first),
        None => TrainerError::Torch { message: first },
    }
}

/// Whose memory ran out, if `message` says so. oneDNN reports failed allocations as primitives it could not create, and
/// torch has no words left when there is no memory for them.
fn whose_memory(message: &str) -> Option<Memory> {
    const DEVICE: [&str; 4] =
        ["CUDA out of memory", "CUDA error: out of memory", "CUBLAS_STATUS_ALLOC_FAILED", "CUDNN_STATUS_ALLOC_FAILED"];
    const HOST: [&str; 8] = [
        "DefaultCPUAllocator",
        "not enough memory",
        "std::bad_alloc",
        "bad allocation",
        "could not create a primitive",
        "could not create a memory",
        "Cannot allocate memory",
        "<Error computing Error::what()>",
    ];
    let says = |texts: &[&str]| texts.iter().any(|text| message.contains(text));
    if says(&DEVICE) {
        Some(Memory::Device)
    } else if says(&HOST) {
        Some(Memory::Host)
    } else {
        None
    }
}

fn from_panic(payload: Box<dyn Any + Send>) -> TrainerError {
    let message = payload
        .downcast_ref::<String>()
        .map(String::as_str)
        .or_else(|| payload.downcast_ref::<&str>().copied())
        .unwrap_or("a panic without a message");
    match whose_memory(message) {
        Some(memory) => out_of(memory, message.to_owned()),
        None => TrainerError::Panic { message: message.to_owned() },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_told_from_other_errors() {
        let cases = [
            ("CUDA out of memory. Tried to allocate 2.00 GiB.", Some(Memory::Device)),
            (
                "[enforce fail at alloc_cpu.cpp:124] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to \
                 allocate 4096 bytes.",
                Some(Memory::Host),
            ),
            ("std::bad_alloc", Some(Memory::Host)),
            ("could not create a primitive", Some(Memory::Host)),
            ("The size of tensor a (3) must match the size of tensor b (4)", None),
        ];
        for (message, want) in cases {
            assert_eq!(whose_memory(message), want, "{message}");
        }
    }

    #[test]
    fn a_panic_is_an_error() {
        let ended = guard(|| -> Result<(), TrainerError> { panic!("Torch(\"std::bad_alloc\")") });
        assert!(matches!(ended, Err(TrainerError::OutOfMemory { memory: Memory::Host, .. })));
    }
}

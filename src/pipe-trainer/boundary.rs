//! The one place where errors of torch and panics become outcomes.

use std::any::Any;
use std::io;
use std::panic::{self, AssertUnwindSafe};

use pipe_spec::event::MemoryKind;
use pipe_spec::trainer::WHILE_READING;
use tch::TchError;

use crate::error::TrainerError;
use crate::host::{self, HostMemory};

/// Runs `work`; a panic inside it comes back as an error like any other.
pub fn guard<T>(work: impl FnOnce() -> Result<T, TrainerError>) -> Result<T, TrainerError> {
    panic::catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|payload| Err(from_panic(payload)))
}

/// An error when Rust's own allocations have hit the limit; they were served from the reserve, so that the
/// program can report it.
pub fn check_host_memory() -> Result<(), TrainerError> {
    let Some(activity) = host::exhausted() else { return Ok(()) };
    let during = activity.text().map_or(" outside of tensors".to_owned(), |what| format!("{WHILE_READING}{what}"));
    Err(out_of(MemoryKind::Host, format!("the memory limit was reached{during}")))
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
        io::ErrorKind::WouldBlock | io::ErrorKind::OutOfMemory => out_of(MemoryKind::Host, message),
        _ => TrainerError::Panic { message },
    }
}

/// Models convert errors where they arise, so the graph is still held and the numbers are those of the failure.
fn out_of(memory: MemoryKind, message: String) -> TrainerError {
    TrainerError::OutOfMemory { memory, message, host: HostMemory::now() }
}

fn from_torch(message: &str) -> TrainerError {
    // After the first line comes a C++ stack trace.
    let first = message.lines().next().unwrap_or_default().to_owned();
    match exhausted_memory(message) {
        Some(memory) => out_of(memory, first),
        None => TrainerError::Torch { message: first },
    }
}

/// Which memory ran out, if `message` says so. oneDNN reports failed allocations as primitives it could not create, and
/// torch gives no message when there is no memory for one.
fn exhausted_memory(message: &str) -> Option<MemoryKind> {
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
        Some(MemoryKind::Device)
    } else if says(&HOST) {
        Some(MemoryKind::Host)
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
    match exhausted_memory(message) {
        Some(memory) => out_of(memory, message.to_owned()),
        None => TrainerError::Panic { message: message.to_owned() },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn out_of_memory_is_distinguished_from_other_errors() {
        let cases = [
            ("CUDA out of memory. Tried to allocate 2.00 GiB.", Some(MemoryKind::Device)),
            (
                "[enforce fail at alloc_cpu.cpp:124] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to \
                 allocate 4096 bytes.",
                Some(MemoryKind::Host),
            ),
            ("std::bad_alloc", Some(MemoryKind::Host)),
            ("could not create a primitive", Some(MemoryKind::Host)),
            ("The size of tensor a (3) must match the size of tensor b (4)", None),
        ];
        for (message, want) in cases {
            assert_eq!(exhausted_memory(message), want, "{message}");
        }
    }

    #[test]
    fn a_panic_is_an_error() {
        let ended = guard(|| -> Result<(), TrainerError> { panic!("Torch(\"std::bad_alloc\")") });
        assert!(matches!(ended, Err(TrainerError::OutOfMemory { memory: MemoryKind::Host, .. })));
    }
}

//! What the thread that prepares data and the one that reports it share.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::error::Error;

/// How far the preparation is, and whether it is to go on.
#[derive(Debug, Default)]
pub struct Watch {
    cancelled: AtomicBool,
    /// Bytes of source files that are done.
    done: AtomicU64,
}

impl Watch {
    pub fn cancel(&self) {
        self.cancelled.store(true, Ordering::Relaxed);
    }

    pub fn check(&self) -> Result<(), Error> {
        if self.cancelled.load(Ordering::Relaxed) { Err(Error::Interrupted) } else { Ok(()) }
    }

    pub fn done(&self) -> u64 {
        self.done.load(Ordering::Relaxed)
    }

    pub fn set_done(&self, bytes: u64) {
        self.done.store(bytes, Ordering::Relaxed);
    }
}

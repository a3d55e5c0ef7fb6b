//! Rust's allocations under the memory limit. Rust ends the process when an allocation fails; here the limit is lifted
//! once instead and the fact kept, so that the training loop can end in order.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicBool, Ordering};

use crate::host_limit;

static EXHAUSTED: AtomicBool = AtomicBool::new(false);

/// Whether an allocation has hit the limit.
pub fn exhausted() -> bool {
    EXHAUSTED.load(Ordering::Relaxed)
}

pub struct HostAllocator;

impl HostAllocator {
    fn or_beyond_the_limit(first: *mut u8, again: impl FnOnce() -> *mut u8) -> *mut u8 {
        if !first.is_null() || !host_limit::lift() {
            return first;
        }
        EXHAUSTED.store(true, Ordering::Relaxed);
        again()
    }
}

// SAFETY: every call is passed on to the system's allocator, at most twice and the second time only after a null.
unsafe impl GlobalAlloc for HostAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        Self::or_beyond_the_limit(unsafe { System.alloc(layout) }, || unsafe { System.alloc(layout) })
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        Self::or_beyond_the_limit(unsafe { System.alloc_zeroed(layout) }, || unsafe { System.alloc_zeroed(layout) })
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        Self::or_beyond_the_limit(unsafe { System.realloc(pointer, layout, size) }, || unsafe {
            System.realloc(pointer, layout, size)
        })
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        unsafe { System.dealloc(pointer, layout) }
    }
}

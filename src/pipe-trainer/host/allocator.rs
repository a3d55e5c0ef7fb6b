//! Rust's allocations under the memory limit. Rust ends the process when an allocation fails; here it is served from a
//! reserve instead and the event is recorded, so that the training can save and report. When the reserve is used up too, the
//! process exits with the exit code for it.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicU8, Ordering};

use pipe_spec::TrainerExit;
use pipe_spec::trainer::WHILE_READING;

use super::activity::{self, Activity};
use super::limit;

/// The activity when the limit was first reached.
struct First {
    state: AtomicU8,
    activity: UnsafeCell<Activity>,
}

const NOT_YET: u8 = 0;
const BEING_WRITTEN: u8 = 1;
const WRITTEN: u8 = 2;

// SAFETY: `activity` is written by the one thread that takes `state` from NOT_YET, and read once it is WRITTEN.
unsafe impl Sync for First {}

static FIRST: First = First { state: AtomicU8::new(NOT_YET), activity: UnsafeCell::new(Activity::NONE) };

impl First {
    fn note(&self) {
        if self.state.compare_exchange(NOT_YET, BEING_WRITTEN, Ordering::Acquire, Ordering::Relaxed).is_ok() {
            // SAFETY: no other thread writes or reads yet.
            unsafe { *self.activity.get() = activity::current() };
            self.state.store(WRITTEN, Ordering::Release);
        }
    }
}

/// The activity when an allocation hit the limit, if one has.
pub fn exhausted() -> Option<Activity> {
    match FIRST.state.load(Ordering::Acquire) {
        NOT_YET => None,
        // SAFETY: it is not written any more.
        WRITTEN => Some(unsafe { *FIRST.activity.get() }),
        _ => Some(Activity::NONE),
    }
}

pub struct HostAllocator;

impl HostAllocator {
    fn or_from_reserve(first: *mut u8, again: impl FnOnce() -> *mut u8) -> *mut u8 {
        if !first.is_null() || !limit::is_set() {
            return first;
        }
        FIRST.note();
        limit::lift();
        let second = again();
        if second.is_null() {
            exit_now();
        }
        second
    }
}

/// Says where memory ran out and ends the process, without allocating anything.
fn exit_now() -> ! {
    let write = |bytes: &[u8]| {
        // SAFETY: the bytes are there for as long as the call takes. Stderr may be closed; the exit code is still set.
        unsafe { libc::write(libc::STDERR_FILENO, bytes.as_ptr().cast(), bytes.len()) };
    };
    write(b"error: out of host memory: the memory limit and its reserve are used up");
    let activity = activity::current();
    if !activity.as_bytes().is_empty() {
        write(WHILE_READING.as_bytes());
        write(activity.as_bytes());
    }
    write(b"\n");
    // SAFETY: it ends the process, and runs nothing of ours.
    unsafe { libc::_exit(TrainerExit::HostOutOfMemory.code()) }
}

// SAFETY: every call is passed on to the system's allocator, at most twice and the second time only after a null.
unsafe impl GlobalAlloc for HostAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        Self::or_from_reserve(unsafe { System.alloc(layout) }, || unsafe { System.alloc(layout) })
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        Self::or_from_reserve(unsafe { System.alloc_zeroed(layout) }, || unsafe { System.alloc_zeroed(layout) })
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        Self::or_from_reserve(unsafe { System.realloc(pointer, layout, size) }, || unsafe {
            System.realloc(pointer, layout, size)
        })
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        unsafe { System.dealloc(pointer, layout) }
    }
}

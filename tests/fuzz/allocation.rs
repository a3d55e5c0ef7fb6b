//! An allocator that knows the most that a thread held at once, for tests of bounds.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

pub struct Counting;

thread_local! {
    static HELD: Cell<isize> = const { Cell::new(0) };
    static PEAK: Cell<isize> = const { Cell::new(0) };
}

impl Counting {
    /// The most bytes that this thread held while `act` ran, beyond what it held before.
    pub fn peak_of(act: impl FnOnce()) -> usize {
        let before = HELD.get();
        PEAK.set(before);
        act();
        (PEAK.get() - before).max(0) as usize
    }

    fn count(bytes: isize) {
        let held = HELD.get() + bytes;
        HELD.set(held);
        PEAK.set(PEAK.get().max(held));
    }
}

// SAFETY: every call is passed on to the system's allocator; the counters are plain numbers of the thread.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        Self::count(layout.size() as isize);
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        Self::count(-(layout.size() as isize));
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        Self::count(size as isize - layout.size() as isize);
        unsafe { System.realloc(pointer, layout, size) }
    }
}

//! The limit on this process' own memory: the kernel's soft limit on private writable memory. What is allocated beyond it
//! fails as it would on a smaller machine; the hard limit stays, so that there is room to end in order.

use std::io;
use std::mem::MaybeUninit;

/// Makes allocations beyond `bytes` fail. Threads that exist already keep their stacks.
pub fn set(bytes: u64) -> io::Result<()> {
    let mut limit = current()?;
    limit.rlim_cur = bytes.min(limit.rlim_max);
    apply(&limit)
}

/// Takes the limit away as far as the hard limit allows; whether that gave any room. Allocates nothing.
pub fn lift() -> bool {
    let Ok(mut limit) = current() else { return false };
    if limit.rlim_cur == limit.rlim_max {
        return false;
    }
    limit.rlim_cur = limit.rlim_max;
    apply(&limit).is_ok()
}

fn current() -> io::Result<libc::rlimit> {
    let mut limit = MaybeUninit::uninit();
    // SAFETY: the pointer is valid for a write, and a zero says that it was written.
    match unsafe { libc::getrlimit(libc::RLIMIT_DATA, limit.as_mut_ptr()) } {
        0 => Ok(unsafe { limit.assume_init() }),
        _ => Err(io::Error::last_os_error()),
    }
}

fn apply(limit: &libc::rlimit) -> io::Result<()> {
    // SAFETY: `limit` is a valid rlimit.
    match unsafe { libc::setrlimit(libc::RLIMIT_DATA, limit) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

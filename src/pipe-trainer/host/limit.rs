//! The limit on this process' own memory: the kernel's soft limit on private writable memory (`RLIMIT_DATA`). What is allocated
//! beyond it fails as it would on a smaller machine. Program code, libraries and files that are mapped are not counted.
//!
//! Rust cannot continue after a failed allocation, so there is a reserve beyond the limit for saving and reporting. It is given
//! once; when it is used up too, the process exits.

use std::io;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicU64, Ordering};

/// Of the limit, and this much at most: enough for an error, a record and a checkpoint, which is written tensor by tensor.
const RESERVE_SHARE: u64 = 8;
const LARGEST_RESERVE: u64 = 256 << 20;

/// The limit that was set; 0 while there is none.
static LIMIT: AtomicU64 = AtomicU64::new(0);

/// Blocks of at least this many bytes are given back to the kernel when they are freed. Smaller ones are too many for that: each costs its pages anew.
const GIVEN_BACK: libc::c_int = 1 << 20;

/// Makes allocations beyond `bytes` fail. Threads that exist already keep their stacks.
pub fn set(bytes: u64) -> io::Result<()> {
    give_blocks_back();
    let mut limit = current()?;
    limit.rlim_cur = bytes.min(limit.rlim_max);
    apply(&limit)?;
    LIMIT.store(limit.rlim_cur, Ordering::Relaxed);
    Ok(())
}

/// By default glibc comes to keep freed blocks of up to 32 MiB, and pieces of them that fit nothing else count against the limit:
/// how much a step holds would then depend on the steps before it.
fn give_blocks_back() {
    // SAFETY: it sets a number of the allocator's. Where that is refused, more is held.
    unsafe { libc::mallopt(libc::M_MMAP_THRESHOLD, GIVEN_BACK) };
}

/// Whether this process is held to a limit.
pub fn is_set() -> bool {
    LIMIT.load(Ordering::Relaxed) > 0
}

/// Bytes beyond a limit that are there to end in order.
fn reserve(limit: u64) -> u64 {
    (limit / RESERVE_SHARE).min(LARGEST_RESERVE)
}

/// Gives the reserve, as far as the hard limit allows. Given once, it is there for all. Allocates nothing.
pub fn lift() {
    let bytes = LIMIT.load(Ordering::Relaxed);
    let Ok(mut limit) = current() else { return };
    let lifted = bytes.saturating_add(reserve(bytes)).min(limit.rlim_max);
    if bytes > 0 && limit.rlim_cur < lifted {
        limit.rlim_cur = lifted;
        // Where it cannot be given the next allocation fails too.
        let _ = apply(&limit);
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reserve_is_an_eighth_and_256_mib_at_most() {
        assert_eq!(reserve(400 << 20), 50 << 20);
        assert_eq!(reserve(2 << 30), 256 << 20);
        assert_eq!(reserve(u64::MAX), 256 << 20);
    }
}

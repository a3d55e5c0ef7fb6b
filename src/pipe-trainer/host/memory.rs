//! The memory of this process and of the machine, and the limit on it: the kernel's soft limit on private writable memory
//! (`RLIMIT_DATA`). What is allocated beyond it fails as it would on a smaller machine. Program code, libraries and files that are
//! mapped are not counted.
//!
//! Rust ends the process when an allocation fails. Here it is served from a reserve beyond the limit instead and the event is
//! recorded, so that the training can save and report. The reserve is given once; when it is used up too, the process exits with the
//! exit code for it.
//!
//! The activity of a thread in words, such as the row that it reads, so that an error about memory can say where it ran out. Allocates
//! nothing: the allocator itself asks for it.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::{Cell, UnsafeCell};
use std::fmt::{self, Write};
use std::mem::MaybeUninit;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::{fs, io};

use pipe_spec::TrainerExit;
use pipe_spec::trainer::WHILE_READING;

/// Bytes, as `/proc/self/status` counts them.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct HostMemory {
    /// VmRSS: pages in memory now.
    pub resident: u64,
    /// VmData: private writable memory, what the limit counts.
    pub data: u64,
    /// VmHWM: the most pages that were in memory at once.
    pub peak: u64,
}

impl HostMemory {
    pub fn now() -> Self {
        Self::parse(&fs::read_to_string("/proc/self/status").unwrap_or_default())
    }

    fn parse(status: &str) -> Self {
        let bytes = |name| kilobytes(status, name).unwrap_or(0);
        Self { resident: bytes("VmRSS:"), data: bytes("VmData:"), peak: bytes("VmHWM:") }
    }
}

/// The memory that this process can have: the machine's, or less where its control group says so.
pub fn total_memory() -> Option<u64> {
    let machine = kilobytes(&fs::read_to_string("/proc/meminfo").ok()?, "MemTotal:")?;
    Some(group_limit().map_or(machine, |limit| limit.min(machine)))
}

/// The least that the control group of this process, or one above it, may have.
fn group_limit() -> Option<u64> {
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    limit_files(&groups).iter().filter_map(|file| fs::read_to_string(file).ok()?.trim().parse().ok()).min()
}

/// Where the limits of these groups are, in both versions of control groups. In a container the group of this process is the root.
fn limit_files(groups: &str) -> Vec<PathBuf> {
    let of = |line: &str| {
        let mut parts = line.splitn(3, ':').skip(1);
        let (controllers, group) = (parts.next()?, parts.next()?);
        let (root, file) = match controllers {
            "" => ("/sys/fs/cgroup", "memory.max"),
            _ if controllers.split(',').any(|one| one == "memory") => {
                ("/sys/fs/cgroup/memory", "memory.limit_in_bytes")
            }
            _ => return None,
        };
        let all = Path::new(group.trim_start_matches('/')).ancestors();
        Some(all.map(move |group| Path::new(root).join(group).join(file)).collect::<Vec<_>>())
    };
    groups.lines().filter_map(of).flatten().collect()
}

fn kilobytes(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    let number: u64 = line.split_whitespace().next()?.parse().ok()?;
    Some(number * 1024)
}

/// The reserve is this share of the limit, and 256 MiB at most: enough for an error, a record and a checkpoint, which is written tensor
/// by tensor.
const RESERVE_SHARE: u64 = 8;
const LARGEST_RESERVE: u64 = 256 << 20;

/// The limit that was set; 0 while there is none.
static LIMIT: AtomicU64 = AtomicU64::new(0);

/// Blocks of at least this many bytes are given back to the kernel when they are freed. Smaller ones are too many for that: each costs
/// its pages anew.
const GIVEN_BACK: libc::c_int = 1 << 20;

/// Makes allocations beyond `bytes` fail. Threads that exist already keep their stacks.
pub fn set_limit(bytes: u64) -> io::Result<()> {
    give_blocks_back();
    let mut limit = current_limit()?;
    limit.rlim_cur = bytes.min(limit.rlim_max);
    apply_limit(&limit)?;
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
pub fn is_limited() -> bool {
    LIMIT.load(Ordering::Relaxed) > 0
}

/// Bytes beyond a limit that are there to end in order.
fn reserve(limit: u64) -> u64 {
    (limit / RESERVE_SHARE).min(LARGEST_RESERVE)
}

/// Gives the reserve, as far as the hard limit allows. Given once, it is there for all. Allocates nothing.
pub fn lift_limit() {
    let bytes = LIMIT.load(Ordering::Relaxed);
    let Ok(mut limit) = current_limit() else { return };
    let lifted = bytes.saturating_add(reserve(bytes)).min(limit.rlim_max);
    if bytes > 0 && limit.rlim_cur < lifted {
        limit.rlim_cur = lifted;
        // Where it cannot be given the next allocation fails too.
        let _ = apply_limit(&limit);
    }
}

fn current_limit() -> io::Result<libc::rlimit> {
    let mut limit = MaybeUninit::uninit();
    // SAFETY: the pointer is valid for a write, and a zero says that it was written.
    match unsafe { libc::getrlimit(libc::RLIMIT_DATA, limit.as_mut_ptr()) } {
        0 => Ok(unsafe { limit.assume_init() }),
        _ => Err(io::Error::last_os_error()),
    }
}

fn apply_limit(limit: &libc::rlimit) -> io::Result<()> {
    // SAFETY: `limit` is a valid rlimit.
    match unsafe { libc::setrlimit(libc::RLIMIT_DATA, limit) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

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
            unsafe { *self.activity.get() = current_activity() };
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

const UNBOUNDED: usize = usize::MAX;

thread_local! {
    /// Bytes that this thread may allocate, and the error where it wants more.
    static ALLOWANCE: Cell<(usize, &'static str)> = const { Cell::new((UNBOUNDED, "")) };
}

/// Does `work` whose allocations a file from elsewhere decides about. Where they come to more than `bytes` at a time the process ends,
/// with `error`: an allocator can do nothing else, and without a bound they would take all memory of the machine.
pub fn bounded<T>(bytes: usize, error: &'static str, work: impl FnOnce() -> T) -> T {
    struct Lift;
    impl Drop for Lift {
        fn drop(&mut self) {
            ALLOWANCE.set((UNBOUNDED, ""));
        }
    }
    ALLOWANCE.set((bytes, error));
    let _lift = Lift;
    work()
}

/// Counts what a thread allocates and gives back, where that is bounded.
fn count(allocated: usize, given_back: usize) {
    let (left, error) = ALLOWANCE.get();
    if left == UNBOUNDED {
        return;
    }
    match left.saturating_add(given_back).min(UNBOUNDED - 1).checked_sub(allocated) {
        Some(left) => ALLOWANCE.set((left, error)),
        None => exit_now(error, TrainerExit::BadInput),
    }
}

pub struct HostAllocator;

impl HostAllocator {
    fn or_from_reserve(first: *mut u8, again: impl FnOnce() -> *mut u8) -> *mut u8 {
        if !first.is_null() || !is_limited() {
            return first;
        }
        FIRST.note();
        lift_limit();
        let second = again();
        if second.is_null() {
            exit_now("out of host memory: the memory limit and its reserve are used up", TrainerExit::HostOutOfMemory);
        }
        second
    }
}

/// Says where memory ran out and ends the process, without allocating anything.
fn exit_now(error: &str, exit: TrainerExit) -> ! {
    let write = |bytes: &[u8]| {
        // SAFETY: the bytes are there for as long as the call takes. Stderr may be closed; the exit code is still set.
        unsafe { libc::write(libc::STDERR_FILENO, bytes.as_ptr().cast(), bytes.len()) };
    };
    write(b"error: ");
    write(error.as_bytes());
    let activity = current_activity();
    if !activity.as_bytes().is_empty() {
        write(WHILE_READING.as_bytes());
        write(activity.as_bytes());
    }
    write(b"\n");
    // SAFETY: it ends the process, and runs nothing of ours.
    unsafe { libc::_exit(exit.code()) }
}

// SAFETY: every call is passed on to the system's allocator, at most twice and the second time only after a null.
unsafe impl GlobalAlloc for HostAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size(), 0);
        Self::or_from_reserve(unsafe { System.alloc(layout) }, || unsafe { System.alloc(layout) })
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size(), 0);
        Self::or_from_reserve(unsafe { System.alloc_zeroed(layout) }, || unsafe { System.alloc_zeroed(layout) })
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size, layout.size());
        Self::or_from_reserve(unsafe { System.realloc(pointer, layout, size) }, || unsafe {
            System.realloc(pointer, layout, size)
        })
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(0, layout.size());
        unsafe { System.dealloc(pointer, layout) }
    }
}

const MAX_BYTES: usize = 240;

/// A short text of its own. What does not fit is cut.
#[derive(Clone, Copy)]
pub struct Activity {
    bytes: [u8; MAX_BYTES],
    length: usize,
}

impl Activity {
    pub const NONE: Self = Self { bytes: [0; MAX_BYTES], length: 0 };

    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }

    /// Absent where no activity is set.
    pub fn text(&self) -> Option<&str> {
        std::str::from_utf8(self.as_bytes()).ok().filter(|text| !text.is_empty())
    }
}

impl Write for Activity {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let mut count = text.len().min(MAX_BYTES - self.length);
        while !text.is_char_boundary(count) {
            count -= 1;
        }
        self.bytes[self.length..self.length + count].copy_from_slice(&text.as_bytes()[..count]);
        self.length += count;
        Ok(())
    }
}

thread_local! {
    static CURRENT: Cell<Activity> = const { Cell::new(Activity::NONE) };
}

/// Restores the previous activity, also where the work panics.
struct Restore(Activity);

impl Drop for Restore {
    fn drop(&mut self) {
        CURRENT.set(self.0);
    }
}

/// Does `work`; `current` is `what` meanwhile: "row 3 of train.jsonl".
pub fn during<T>(what: fmt::Arguments<'_>, work: impl FnOnce() -> T) -> T {
    let mut activity = Activity::NONE;
    let _ = activity.write_fmt(what);
    let _restore = Restore(CURRENT.replace(activity));
    work()
}

/// The activity of this thread.
fn current_activity() -> Activity {
    CURRENT.try_with(Cell::get).unwrap_or(Activity::NONE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_of_all_groups_above() {
        let files = limit_files("5:cpu,cpuacct:/a\n4:memory:/slurm/job_7/step_0\n0::/user\n");
        let files: Vec<&str> = files.iter().filter_map(|file| file.to_str()).collect();
        let want = [
            "/sys/fs/cgroup/memory/slurm/job_7/step_0/memory.limit_in_bytes",
            "/sys/fs/cgroup/memory/slurm/job_7/memory.limit_in_bytes",
            "/sys/fs/cgroup/memory/slurm/memory.limit_in_bytes",
            "/sys/fs/cgroup/memory/memory.limit_in_bytes",
            "/sys/fs/cgroup/user/memory.max",
            "/sys/fs/cgroup/memory.max",
        ];
        assert_eq!(files, want);
    }

    #[test]
    fn reads_the_kernels_table() {
        let status = "Name:\tx\nVmHWM:\t  30 kB\nVmRSS:\t  20 kB\nVmData:\t  10 kB\n";
        assert_eq!(HostMemory::parse(status), HostMemory { resident: 20 << 10, data: 10 << 10, peak: 30 << 10 });
        assert!(HostMemory::now().resident > 0);
    }
}

#[cfg(test)]
mod limit_tests {
    use super::*;

    #[test]
    fn the_reserve_is_an_eighth_and_256_mib_at_most() {
        assert_eq!(reserve(400 << 20), 50 << 20);
        assert_eq!(reserve(2 << 30), 256 << 20);
        assert_eq!(reserve(u64::MAX), 256 << 20);
    }
}

#[cfg(test)]
mod activity_tests {
    use super::*;

    #[test]
    fn the_innermost_activity_is_current_and_the_previous_one_is_restored() {
        let now = || current_activity().text().map(str::to_owned);
        during(format_args!("row {}", 1), || {
            during(format_args!("{}", "ä".repeat(MAX_BYTES)), || {
                assert_eq!(now().unwrap(), "ä".repeat(MAX_BYTES / 2));
            });
            assert_eq!(now().as_deref(), Some("row 1"));
        });
        assert_eq!(now(), None);
    }
}

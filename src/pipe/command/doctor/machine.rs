//! The machine: memory, disks, and the files that `pipe` keeps for itself.

use std::ffi::CString;
use std::path::Path;

use pipe_spec::text::human_bytes;

use super::check::{Check, Status};
use crate::data_cache;
use crate::digests;
use crate::disk::{Space, nearest};
use crate::engine::docker::Info;
use crate::ledger::Ledger;
use crate::run::{absolute, runs_folder};

const GIB: u64 = 1 << 30;
/// Below so much a run does not get far.
const LITTLE: u64 = 2 * GIB;
/// The trainer image with libtorch's CUDA part.
const IMAGE: u64 = 8 * GIB;
/// What Docker gives a container of shared memory, unless told otherwise.
const SHM: u64 = 64 << 20;

pub fn memory() -> Check {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let kib = |key: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(key))?;
        line.trim().trim_end_matches(" kB").parse::<u64>().ok()
    };
    let (Some(free), Some(total)) = (kib("MemAvailable:"), kib("MemTotal:")) else {
        return Check::note("memory", "unknown");
    };
    let (free, total) = (free << 10, total << 10);
    let found = format!("{} free of {}", human_bytes(free), human_bytes(total));
    match free < GIB {
        true => Check::note("memory", found).hint("little: end something, or keep runs small with container.memory"),
        false => Check::ok("memory", found),
    }
}

pub fn shared_memory() -> Check {
    let Some(space) = Space::of(Path::new("/dev/shm")) else {
        return Check::note("shm", "no /dev/shm").hint("mount a tmpfs there; images of your own may want it");
    };
    let found = format!("/dev/shm of {}; a container has {} of its own", human_bytes(space.total), human_bytes(SHM));
    Check::ok("shm", found)
        .hint("enough for the trainer of pipe; for one that shares batches among processes set container.shm: 2g")
}

pub fn disk() -> Check {
    let runs = absolute(&runs_folder());
    let found = |free| format!("{} free for {}", human_bytes(free), runs.display());
    if !writable(&runs) {
        return Check::missing("disk", format!("{} cannot be written to", runs.display()))
            .hint("make it writable, or choose another folder with PIPE_RUNS");
    }
    match Space::of(nearest(&runs)).map(|space| space.free) {
        Some(free) if free < LITTLE => {
            Check::missing("disk", found(free)).hint("free some space, or choose another folder with PIPE_RUNS")
        }
        Some(free) => Check::ok("disk", found(free)),
        None => Check::note("disk", format!("cannot tell for {}", runs.display())),
    }
}

/// Where the engine keeps its images, if that is on this machine.
pub fn engine_disk(info: Option<&Info>) -> Option<Check> {
    let root = info?.data_root.as_deref().filter(|root| !root.is_empty())?;
    let Some(space) = Space::of(nearest(Path::new(root))) else {
        return Some(Check::note("images", format!("cannot tell for {root}")));
    };
    let found = format!("{} free for images in {root}", human_bytes(space.free));
    Some(match space.free < IMAGE {
        true => Check::note("images", found)
            .hint("the trainer image can need 8 GiB: docker system prune, or another data-root in daemon.json"),
        false => Check::ok("images", found),
    })
}

/// What is remembered of earlier runs. That it cannot be is no reason not to run.
pub fn ledger() -> Check {
    let Some(ledger) = Ledger::find() else {
        return Check::note("ledger", "no place for it").hint("name a file with PIPE_LEDGER");
    };
    let path = ledger.path();
    match ledger.entries() {
        Err(error) => Check::failed("ledger", Status::Note, &error),
        Ok(_) if !writable(path) => Check::note("ledger", format!("{} cannot be written to", path.display()))
            .hint("name another with PIPE_LEDGER"),
        Ok(entries) => Check::ok("ledger", format!("{}, {} entries", path.display(), entries.len())),
    }
}

/// Hashes of files, without which libtorch is read for every run, and data files that were prepared for the trainer.
pub fn cache() -> Check {
    match digests::cache_folder() {
        None => Check::note("cache", "no place for it").hint("name a folder with PIPE_CACHE"),
        Some(folder) if !writable(&folder) => {
            Check::note("cache", format!("{} cannot be written to", folder.display()))
                .hint("name another with PIPE_CACHE")
        }
        Some(folder) => {
            let data = match data_cache::size() {
                (0, _) => String::new(),
                (files, bytes) => format!(", {} of prepared data ({files} files)", human_bytes(bytes)),
            };
            Check::ok("cache", format!("{}{data}", folder.display()))
        }
    }
}

/// Whether it, or what has to be made for it, can be written.
fn writable(path: &Path) -> bool {
    let place = nearest(path);
    if place != path && !place.is_dir() {
        return false;
    }
    let Ok(path) = CString::new(place.as_os_str().as_encoded_bytes()) else { return false };
    // SAFETY: the path ends in a zero byte and is only read.
    unsafe { libc::access(path.as_ptr(), libc::W_OK) == 0 }
}

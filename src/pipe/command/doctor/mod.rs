//! `pipe doctor`: is everything there that a run needs, and what to do where it is not.

mod program;

use std::path::Path;

use pipe_spec::text::{count, human_bytes};

use crate::engine::{Check, CheckStatus, Host, registry};
use crate::error::Error;
use crate::execute::launch::template::RANKS_SHM;
use crate::fit::ledger::Ledger;
use crate::input::data_cache;
use crate::report::{print, print_json, stdout_columns, wrap};
use crate::run::runs_folder;
use crate::system::digests;
use crate::system::files::{Space, absolute, nearest};

const GIB: u64 = 1 << 30;
/// Runs need more free disk space than this.
const MIN_FREE_DISK: u64 = 2 * GIB;
/// The default shared memory of a Docker container.
const SHM: u64 = 64 << 20;

pub fn run(engine: Option<&str>, json: bool) -> Result<(), Error> {
    let checks = checks(engine)?;
    if json {
        print_json(&checks);
    } else {
        checks.iter().for_each(show);
    }
    let missing: Vec<String> =
        checks.iter().filter(|check| check.status == CheckStatus::Missing).map(|check| check.name.to_owned()).collect();
    if missing.is_empty() { Ok(()) } else { Err(Error::DoctorFailed { missing }) }
}

fn checks(engine: Option<&str>) -> Result<Vec<Check>, Error> {
    let host = Host::look(absolute(&runs_folder()));
    let mut checks = super::runtime()?.block_on(registry::doctor(&host, engine));
    let Host { trainer, cards, .. } = &host;
    match cards.as_slice() {
        [] | [_] => checks.push(program::card(host.card())),
        several => checks.extend(several.iter().map(|card| program::card(Some(card)))),
    }
    checks.push(program::trainer(trainer));
    if trainer.is_ok() {
        checks.extend([program::libtorch(host.card()), program::image()]);
    }
    if cards.len() > 1 {
        checks.push(program::links(cards.len()));
        checks.extend(trainer.as_ref().ok().map(|_| program::nccl()));
    }
    checks.extend([memory(), shared_memory(cards.len()), disk(), ledger(), cache()]);
    Ok(checks)
}

/// The text begins in this column.
const MARGIN: usize = 18;

fn show(check: &Check) {
    let columns = stdout_columns();
    let indented = |text: &str| {
        let lines = match columns {
            Some(columns) => wrap(text, columns.saturating_sub(MARGIN)),
            None => text.lines().map(str::to_owned).collect(),
        };
        lines.join(&format!("\n{}", " ".repeat(MARGIN)))
    };
    print(&format!("{:<8} {:<8} {}", check.status.name(), check.name, indented(&check.found)));
    if let Some(hint) = &check.hint {
        print(&format!("{}{}", " ".repeat(MARGIN), indented(&format!("hint: {hint}"))));
    }
}

fn memory() -> Check {
    let Some(Space { free, total }) = Space::of_memory() else { return Check::note("memory", "unknown") };
    let found = format!("{} free of {}", human_bytes(free), human_bytes(total));
    match free < GIB {
        true => Check::note("memory", found).hint("low: end other programs, or limit runs with container.memory"),
        false => Check::ok("memory", found),
    }
}

/// Ranks of a training without containers exchange gradients through it, on a machine with several cards.
fn shared_memory(cards: usize) -> Check {
    let Some(space) = Space::at(Path::new("/dev/shm")) else {
        return Check::note("shm", "no /dev/shm").hint("mount a tmpfs there; images of your own may want it");
    };
    if cards > 1 {
        let (size, needed) = (human_bytes(space.total), human_bytes(RANKS_SHM));
        let found = format!("/dev/shm of {size}; a training on several cards has {needed} of its own in a container");
        return match space.total < RANKS_SHM {
            true => Check::note("shm", found)
                .hint(format!("too small for one without a container: mount a tmpfs of {needed} or more there")),
            false => Check::ok("shm", found),
        };
    }
    let found = format!("/dev/shm of {}; a container has {} of its own", human_bytes(space.total), human_bytes(SHM));
    Check::ok("shm", found)
        .hint("enough for the trainer of pipe; for one that shares batches among processes set container.shm: 2g")
}

fn disk() -> Check {
    let runs = absolute(&runs_folder());
    let found = |free| format!("{} free for {}", human_bytes(free), runs.display());
    if !writable(&runs) {
        return Check::missing("disk", format!("{} cannot be written to", runs.display()))
            .hint("make it writable, or choose another folder with PIPE_RUNS");
    }
    match Space::at(nearest(&runs)).map(|space| space.free) {
        Some(free) if free < MIN_FREE_DISK => {
            Check::missing("disk", found(free)).hint("free some space, or choose another folder with PIPE_RUNS")
        }
        Some(free) => Check::ok("disk", found(free)),
        None => Check::note("disk", format!("unknown for {}", runs.display())),
    }
}

/// The ledger. Runs also work without it.
fn ledger() -> Check {
    let Some(ledger) = Ledger::find() else {
        return Check::note("ledger", "no folder for it").hint("choose a file with PIPE_LEDGER");
    };
    let path = ledger.path();
    let entries = ledger.entries();
    if let [warning, ..] = ledger.take_warnings().as_slice() {
        return Check::note("ledger", warning);
    }
    match entries {
        Err(error) => Check::failed("ledger", CheckStatus::Note, &error),
        Ok(_) if !writable(path) => Check::note("ledger", format!("{} cannot be written to", path.display()))
            .hint("choose another file with PIPE_LEDGER"),
        Ok(entries) => Check::ok("ledger", format!("{}, {}", path.display(), count(entries.len(), "entry"))),
    }
}

/// Hashes of files, without which libtorch is read for every run, and data files that were prepared for the trainer.
fn cache() -> Check {
    match digests::cache_folder() {
        None => Check::note("cache", "no folder for it").hint("choose a folder with PIPE_CACHE"),
        Some(folder) if !writable(&folder) => {
            Check::note("cache", format!("{} cannot be written to", folder.display()))
                .hint("choose another folder with PIPE_CACHE")
        }
        Some(folder) => {
            let entries = data_cache::entries();
            let bytes = human_bytes(entries.iter().map(|entry| entry.bytes).sum());
            let data = match entries.len() {
                0 => String::new(),
                files => format!(", {bytes} of prepared data ({})", count(files, "file")),
            };
            Check::ok("cache", format!("{}{data}", folder.display()))
        }
    }
}

/// Whether it, or what has to be made for it, can be written.
fn writable(path: &Path) -> bool {
    let existing = nearest(path);
    if existing != path && !existing.is_dir() {
        return false;
    }
    rustix::fs::access(existing, rustix::fs::Access::WRITE_OK).is_ok()
}

//! This process and its host: the memory it holds and the limit on it, requests to stop, the lease of the runner, and processes that the
//! trainer starts itself.

mod memory;

use std::io::{self, Read};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use std::{fs, thread};

use pipe_spec::TrainerExit;
use pipe_spec::trainer::{LEASE_ON_STDIN, LEASE_VARIABLE};
use signal_hook::consts::{SIGINT, SIGTERM};

pub use memory::{HostAllocator, HostMemory, bounded, during, exhausted, lift_limit, set_limit, total_memory};

/// How long a training whose `pipe` is gone may take to save and exit. A step, an evaluation or an export that takes longer is
/// aborted: the last checkpoint stays.
const SAVE_TIMEOUT: Duration = Duration::from_secs(120);

/// Little: the thread only waits.
const STACK_BYTES: usize = 128 << 10;

/// Whether the training loop looks at requests to stop.
static TRAINING: AtomicBool = AtomicBool::new(false);

/// Watches stdin where the runner asks for it. The thread never reads the environment, which may be changed later.
pub fn watch_lease() -> io::Result<()> {
    if std::env::var_os(LEASE_VARIABLE).is_none_or(|value| value != LEASE_ON_STDIN) {
        return Ok(());
    }
    thread::Builder::new().name("lease".to_owned()).stack_size(STACK_BYTES).spawn(wait_for_stdin_to_close).map(drop)
}

/// The requests to stop that end a training which still opens its data.
static OPENING: OnceLock<Stop> = OnceLock::new();

/// From now on such a request ends the reading of rows, until the training starts. For a process that no other rank waits for.
pub fn stops_while_opening(stop: &Stop) {
    let _ = OPENING.set(stop.clone());
}

/// Whether there is one.
pub fn stopped_while_opening() -> bool {
    !TRAINING.load(Ordering::Relaxed) && OPENING.get().is_some_and(Stop::requested)
}

/// From now on a request to stop is seen within a part of a step.
pub fn training_started() {
    TRAINING.store(true, Ordering::Relaxed);
}

fn wait_for_stdin_to_close() {
    let mut buffer = [0; 64];
    loop {
        match io::stdin().lock().read(&mut buffer) {
            Ok(0) => break,
            Err(error) if error.kind() != io::ErrorKind::Interrupted => break,
            _ => {}
        }
    }
    if TRAINING.load(Ordering::Relaxed) {
        // SAFETY: kill takes two integers. The same signal as a request to stop; the handler only sets a flag.
        unsafe { libc::kill(libc::getpid(), libc::SIGTERM) };
        thread::sleep(SAVE_TIMEOUT);
    }
    // SAFETY: it ends the process, and runs nothing of ours.
    unsafe { libc::_exit(TrainerExit::Unexpected.code()) }
}

#[derive(Clone, Default)]
pub struct Stop(Arc<AtomicBool>);

impl Stop {
    /// Set by either signal from now on.
    pub fn on_signals() -> io::Result<Self> {
        let stop = Self::default();
        for signal in [SIGTERM, SIGINT] {
            signal_hook::flag::register(signal, Arc::clone(&stop.0))?;
        }
        Ok(stop)
    }

    pub fn request(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    pub fn requested(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// Asks the kernel to kill this process before any other where memory runs out. Where that cannot be asked, the largest one is killed.
pub fn offer_to_be_killed() {
    std::fs::write("/proc/self/oom_score_adj", "1000")
        .unwrap_or_else(|error| tracing::debug!("oom_score_adj: {error}"));
}

/// The kernel kills the other process when this one dies.
pub fn die_with_this_process(command: &mut Command) {
    let parent = std::process::id();
    // SAFETY: prctl and getppid are async-signal-safe and touch nothing of ours.
    unsafe {
        command.pre_exec(move || {
            if libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) != 0 {
                return Err(io::Error::last_os_error());
            }
            // This process may have died before the call.
            if libc::getppid().cast_unsigned() != parent {
                return Err(io::ErrorKind::BrokenPipe.into());
            }
            Ok(())
        });
    }
}

/// Clock ticks that all threads of a process have computed for; fields 14 and 15 of proc(5).
pub fn cpu_time(process: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // The name of the program may have spaces and parentheses.
    let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace().skip(11);
    let (user, system): (u64, u64) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
    Some(user + system)
}

/// Bytes that a process has read and written, files and sockets alike.
pub fn bytes_moved(process: u32) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{process}/io")).ok()?;
    let number = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse::<u64>().ok());
    Some(number("rchar:")? + number("wchar:")?)
}

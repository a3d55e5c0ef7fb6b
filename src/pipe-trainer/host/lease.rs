//! Ends the trainer when the `pipe` that started it is gone. Only the engine that starts it as a child process asks for this: it
//! holds the other end of the trainer's stdin, which closes when `pipe` ends, however it ends.

use std::io::{self, Read};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use pipe_spec::TrainerExit;
use pipe_spec::trainer::{LEASE_ON_STDIN, LEASE_VARIABLE};

/// How long a training whose `pipe` is gone may take to save and exit. A step, an evaluation or an export that takes longer is
/// aborted: the last checkpoint stays.
const SAVE_TIMEOUT: Duration = Duration::from_secs(120);

/// Little: the thread only waits.
const STACK_BYTES: usize = 128 << 10;

/// Whether the training loop looks at requests to stop.
static TRAINING: AtomicBool = AtomicBool::new(false);

/// Watches stdin where the runner asks for it. The thread never reads the environment, which may be changed later.
pub fn watch() -> io::Result<()> {
    if std::env::var_os(LEASE_VARIABLE).is_none_or(|value| value != LEASE_ON_STDIN) {
        return Ok(());
    }
    thread::Builder::new().name("lease".to_owned()).stack_size(STACK_BYTES).spawn(wait_for_stdin_to_close).map(drop)
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

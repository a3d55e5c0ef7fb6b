//! `pipe-trainer`: the process around a command of the trainer.

use std::io::{self, Write};

use pipe_spec::TrainerExit;
use pipe_trainer::cli::{Cli, Command};
use pipe_trainer::host::{self, HostAllocator, Stop};
use pipe_trainer::{Console, TrainerError};
use tracing_subscriber::EnvFilter;

#[global_allocator]
static ALLOCATOR: HostAllocator = HostAllocator;

fn main() {
    let watched = host::watch_lease();
    let cli = Cli::read();
    let rank = if let Command::Train { rank, .. } = &cli.command { rank.rank } else { None };
    log_to_stderr(rank.unwrap_or(0));
    let _rank = rank.filter(|rank| *rank > 0).map(|rank| tracing::warn_span!("rank", number = rank).entered());
    if let Err(error) = watched {
        tracing::warn!("cannot watch whether pipe is still there: {error}");
    }
    let status = match run(&cli.command) {
        Ok(()) => TrainerExit::Done.code(),
        Err(error) => {
            // The process that started a rank reports for it. Stderr may be closed; the exit code is still set.
            if rank.is_none() {
                let _ = io::stderr().write_all(error.report().as_bytes());
            }
            error.status()
        }
    };
    end(status)
}

/// Ends the process without the destructors of libtorch, which take half as long as its start and free what the kernel frees anyway.
fn end(status: i32) -> ! {
    let _ = io::stdout().flush();
    // SAFETY: nothing of this process runs afterwards, and what it wrote is flushed.
    unsafe { libc::_exit(status) }
}

fn run(command: &Command) -> Result<(), TrainerError> {
    let stop =
        if command.saves_when_stopped() { Stop::on_signals().map_err(TrainerError::signals)? } else { Stop::default() };
    pipe_trainer::run(command, Console { stop, events: Box::new(io::stdout()) })
}

/// The other ranks have little to say that the first does not say too.
fn log_to_stderr(rank: u32) {
    let level = if rank == 0 { "info" } else { "warn" };
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(level));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(io::stderr)
        .with_target(false)
        .with_ansi(false)
        .without_time()
        .init();
}

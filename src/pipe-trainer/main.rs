//! The trainer of pipe: runs inside the container, knows tensors and never Docker.

mod bench;
mod boundary;
mod checkpoint;
mod cli;
mod data;
mod device;
mod error;
mod events;
mod generate;
mod host;
mod inspect;
mod metrics;
mod model;
mod node;
mod oom;
mod optim;
mod parity;
mod precision;
mod predict;
mod progress;
mod random;
mod ranks;
mod spec;
mod storage;
mod synthetic;
mod tokenizer;
mod torch;
mod train;
mod train_tokenizer;

use std::io::{self, Write};

use pipe_spec::TrainerExit;
use tracing_subscriber::EnvFilter;

use crate::cli::{Cli, Command, DataCommand, TokenizerCommand};
use crate::error::TrainerError;
use crate::host::allocator::HostAllocator;
use crate::host::lease;

#[global_allocator]
static ALLOCATOR: HostAllocator = HostAllocator;

fn main() {
    let watched = lease::watch();
    let cli = Cli::read();
    let rank = if let Command::Train { rank, .. } = &cli.command { rank.rank.unwrap_or(0) } else { 0 };
    log_to_stderr(rank);
    let _rank = (rank > 0).then(|| tracing::warn_span!("rank", number = rank).entered());
    if let Err(error) = watched {
        tracing::warn!("cannot watch whether pipe is still there: {error}");
    }
    let ended = match &cli.command {
        Command::Train { spec, rank } => train::train(spec, rank),
        Command::Fit { spec } => boundary::guard(|| train::fit(spec)),
        Command::Inspect { spec } => boundary::guard(|| inspect::inspect(spec)),
        Command::Predict { spec } => boundary::guard(|| predict::predict(spec)),
        Command::Measure { spec } => train::measure(spec),
        Command::Parity(args) => boundary::guard(|| parity::parity(args)),
        Command::DropoutMasks(args) => boundary::guard(|| parity::dropout_masks(args)),
        Command::Bench(args) => boundary::guard(|| bench::bench(args)),
        Command::Generate(args) => boundary::guard(|| generate::generate(args)),
        Command::Tokenizer(TokenizerCommand::Train(args)) => boundary::guard(|| train_tokenizer::train(args)),
        Command::Data(DataCommand::Recipes(args)) => synthetic::RECIPES.generate(args),
        Command::Data(DataCommand::Texts(args)) => synthetic::DISHES.generate(args),
        Command::Data(DataCommand::Pictures(args)) => synthetic::cars::generate(args),
        Command::Data(DataCommand::Stories(args)) => synthetic::stories::generate(args),
        Command::Data(DataCommand::Series(args)) => synthetic::series::generate(args),
    };
    std::process::exit(report(ended));
}

fn report(ended: Result<(), TrainerError>) -> i32 {
    let Err(error) = ended else { return TrainerExit::Done.code() };
    let mut stderr = io::stderr().lock();
    // Stderr may be closed; the exit code is still set.
    let _ = match error {
        TrainerError::Stopped { .. } => writeln!(stderr, "{error}"),
        _ => writeln!(stderr, "error: {error}"),
    };
    if let Some(hint) = error.hint() {
        let _ = writeln!(stderr, "hint: {hint}");
    }
    error.status()
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

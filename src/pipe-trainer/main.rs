//! The trainer of pipe: runs inside the container, knows tensors and never Docker.

mod adafactor;
mod adamw;
mod bench;
mod boundary;
mod cars;
mod checkpoint;
mod cli;
mod data;
mod device;
mod dishes;
mod durable;
mod error;
mod events;
mod generate;
mod host_allocator;
mod host_limit;
mod host_memory;
mod loss_scale;
mod made;
mod metrics;
mod model;
mod oom;
mod optimizer;
mod parity;
mod pickle;
mod precision;
mod random;
mod recipes;
mod schedule;
mod series;
mod situation;
mod spec;
mod staged_folder;
mod stop;
mod stories;
mod tensor_files;
mod tensor_writer;
mod tokenizer;
mod torch;
mod train;
mod unigram;
mod weights;

use std::io::{self, Write};

use clap::Parser;
use pipe_spec::TrainerExit;
use tracing_subscriber::EnvFilter;

use crate::cli::{Cli, Command, DataCommand};
use crate::error::TrainerError;
use crate::host_allocator::HostAllocator;

#[global_allocator]
static ALLOCATOR: HostAllocator = HostAllocator;

fn main() {
    let cli = Cli::parse();
    log_to_stderr();
    let ended = match &cli.command {
        Command::Train { spec } => train::train(spec),
        Command::Fit { spec } => boundary::guard(|| train::fit(spec)),
        Command::Measure { spec } => boundary::guard(|| train::measure(spec)),
        Command::Parity(args) => boundary::guard(|| parity::parity(args)),
        Command::Bench(args) => boundary::guard(|| bench::bench(args)),
        Command::Generate(args) => boundary::guard(|| generate::generate(args)),
        Command::Data(DataCommand::Recipes(args)) => recipes::RECIPES.generate(args),
        Command::Data(DataCommand::Texts(args)) => dishes::DISHES.generate(args),
        Command::Data(DataCommand::Pictures(args)) => cars::generate(args),
        Command::Data(DataCommand::Stories(args)) => stories::generate(args),
        Command::Data(DataCommand::Series(args)) => series::generate(args),
    };
    std::process::exit(report(ended).code());
}

fn report(ended: Result<(), TrainerError>) -> TrainerExit {
    let Err(error) = ended else { return TrainerExit::Done };
    let mut stderr = io::stderr().lock();
    // Nobody may be listening; the exit code still speaks.
    let _ = match error {
        TrainerError::Stopped { .. } => writeln!(stderr, "{error}"),
        _ => writeln!(stderr, "error: {error}"),
    };
    if let Some(hint) = error.hint() {
        let _ = writeln!(stderr, "hint: {hint}");
    }
    error.exit_code()
}

fn log_to_stderr() {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(io::stderr)
        .with_target(false)
        .with_ansi(false)
        .without_time()
        .init();
}

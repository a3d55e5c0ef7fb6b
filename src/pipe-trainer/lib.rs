//! The trainer of pipe: runs inside the container, knows tensors and never Docker.
//!
//! A library, so that a test can train in its own process. What belongs to a process stays in `main.rs`: the allocator, signals, the
//! lease of the runner, the log and the exit code.

pub mod bench;
mod boundary;
mod chat;
mod checkpoint;
pub mod cli;
mod data;
mod device;
mod dynamic_map;
mod error;
pub mod host;
mod inspect;
mod metrics;
mod model;
mod optim;
mod predict;
mod random;
mod ranks;
mod session;
mod storage;
mod synthetic;
mod tokenizer;
mod torch;
mod train;
mod train_tokenizer;

use crate::cli::{Command, DataCommand, TokenizerCommand};
pub use crate::error::TrainerError;
pub use crate::session::events::Console;

/// Runs one command to its end.
///
/// Several trainings may run in one process, each on a thread of its own, where they agree on what libtorch has once in a process:
/// `threads` and `train.deterministic` of their specs, and no limit on the memory of the process.
pub fn run(command: &Command, console: Console) -> Result<(), TrainerError> {
    match command {
        Command::Train { spec, rank } => train::train(spec, rank, console),
        Command::Fit { spec } => boundary::guard(|| train::fit(spec, console)),
        Command::Inspect { spec } => boundary::guard(|| inspect::inspect(spec)),
        Command::Predict { spec } => boundary::guard(|| predict::predict(spec, console.stop)),
        Command::Measure { spec } => train::measure(spec, console),
        Command::Generate(args) => boundary::guard(|| predict::generate(args)),
        Command::Tokenizer(TokenizerCommand::Train(args)) => boundary::guard(|| train_tokenizer::train(args)),
        Command::Data(DataCommand::Recipes(args)) => synthetic::RECIPES.generate(args),
        Command::Data(DataCommand::Texts(args)) => synthetic::DISHES.generate(args),
        Command::Data(DataCommand::Pictures(args)) => synthetic::cars::generate(args),
        Command::Data(DataCommand::Stories(args)) => synthetic::stories::generate(args),
        Command::Data(DataCommand::Talks(args)) => synthetic::TALKS.generate(args),
        Command::Data(DataCommand::Series(args)) => synthetic::tables::generate_series(args),
        Command::Data(DataCommand::Table(args)) => synthetic::tables::generate_table(args),
    }
}

//! `pipe`: runs training pipelines in containers and brings them through out-of-memory.

mod cli;
mod command;
mod engine;
mod error;
mod hub;
mod image;
mod interrupt;
mod outcome;
mod plan;
mod preflight;
mod report;
mod retry;
mod run;
mod supervise;

use std::process::ExitCode;

fn main() -> ExitCode {
    cli::main()
}

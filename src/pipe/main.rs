//! `pipe`: runs training pipelines in containers and brings them through out-of-memory.

mod capability;
mod card;
mod cli;
mod command;
mod compare;
mod data_cache;
mod detach;
mod digests;
mod disk;
mod drive;
mod engine;
mod error;
mod forecast;
mod hub;
mod image;
mod interrupt;
mod ledger;
mod load;
mod lock;
mod model_files;
mod outcome;
mod plan;
mod preflight;
mod queue;
mod report;
mod retry;
mod run;
mod supervise;
mod track;

use std::process::ExitCode;

fn main() -> ExitCode {
    cli::main()
}

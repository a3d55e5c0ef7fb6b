//! `pipe`: runs training pipelines in containers and brings them through out-of-memory.

// Text for people goes through `report`, which makes control characters visible.
#![deny(clippy::print_stderr, clippy::print_stdout)]

mod attempt;
mod background;
mod cli;
mod clock;
mod command;
mod compare;
mod detach;
mod drive;
mod engine;
mod error;
mod files;
mod forecast;
mod gpu;
mod graph;
mod html_report;
mod http;
mod hub;
mod image;
mod input;
mod inspect;
mod interrupt;
mod ledger;
mod lock;
mod part;
mod predict;
mod queue;
mod report;
mod run;
mod supervise;
mod track;
mod tune;
mod watcher;

use std::process::ExitCode;

fn main() -> ExitCode {
    cli::main()
}

//! `pipe`: runs training pipelines in containers and brings them through out-of-memory.

// Text for people goes through `report`, which makes control characters visible.
#![deny(clippy::print_stderr, clippy::print_stdout)]

mod bucket;
mod cli;
mod command;
mod engine;
mod error;
mod execute;
mod fit;
mod gpu;
mod image;
mod input;
mod report;
mod run;
mod system;
mod track;
mod ui;

use std::process::ExitCode;

fn main() -> ExitCode {
    system::interrupt::set_signals();
    cli::main()
}

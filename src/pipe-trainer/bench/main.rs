//! `pipe-trainer-bench`: measures the trainer and compares it with others, for developers.

use std::io;

use pipe_spec::TrainerExit;
use pipe_trainer::cli::BenchCli;

fn main() {
    let cli = BenchCli::read();
    tracing_subscriber::fmt().with_writer(io::stderr).with_target(false).with_ansi(false).without_time().init();
    let status = match pipe_trainer::bench::run(&cli.command) {
        Ok(()) => TrainerExit::Done.code(),
        Err(error) => {
            eprint!("{}", error.report());
            error.status()
        }
    };
    std::process::exit(status);
}

//! `pipe logs`: what the trainer wrote.

use std::io::{BufRead, BufReader};
use std::path::Path;

use crate::error::Error;
use crate::report::print;
use crate::run;

pub fn run(wanted: &str, attempt: Option<u32>, events: bool) -> Result<(), Error> {
    let found = run::find(wanted)?;
    if events {
        return print_file(&found.folder().events());
    }
    let last = found.state.attempts.last().map_or(1, |attempt| attempt.number);
    print_file(&found.folder().attempt(attempt.unwrap_or(last)).log())
}

/// Line by line, so that a log of any size is printed in little memory.
fn print_file(path: &Path) -> Result<(), Error> {
    let read_error = |source| Error::Read { path: path.to_owned(), source };
    let file = std::fs::File::open(path).map_err(read_error)?;
    for line in BufReader::new(file).split(b'\n') {
        print(&String::from_utf8_lossy(&line.map_err(read_error)?));
    }
    Ok(())
}

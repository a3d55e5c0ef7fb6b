//! `pipe logs`: prints the log of an attempt, and follows it.

use std::time::Duration;

use pipe_spec::Status;

use crate::error::Error;
use crate::report::{print_data, say};
use crate::run::{self, Follow, Listed};

/// How often the file is read.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

pub struct Options {
    pub run: String,
    pub attempt: Option<u32>,
    /// The events instead of the log.
    pub events: bool,
    /// Until the run has ended.
    pub follow: bool,
}

pub fn run(options: &Options) -> Result<(), Error> {
    let found = run::find(&options.run)?;
    let folder = found.folder();
    let last = found.state.attempts.last().map_or(1, |attempt| attempt.number);
    let mut number = options.attempt.unwrap_or(last);
    let path = |number: u32| if options.events { folder.events() } else { folder.attempt(number).log() };
    if !options.follow && !path(number).is_file() {
        let source = std::io::Error::from(std::io::ErrorKind::NotFound);
        return Err(Error::Read { path: path(number), source });
    }
    let mut file = Follow::new(path(number));
    let mut rest = Vec::new();
    loop {
        // Asked before the file is read: what was written before its end is then all there.
        let now = Listed::read(folder.path());
        let bytes = file.bytes()?;
        if !bytes.is_empty() {
            rest.extend(bytes);
            // A character whose end is not there yet is printed with what comes.
            let whole = match std::str::from_utf8(&rest) {
                Err(error) if error.error_len().is_none() => error.valid_up_to(),
                _ => rest.len(),
            };
            print_data(&rest[..whole]);
            rest.drain(..whole);
            continue;
        }
        let Some(now) = now.filter(|_| options.follow) else {
            print_data(&rest);
            return Ok(());
        };
        let more = now.state.attempts.iter().any(|attempt| attempt.number > number);
        if more && !options.events && options.attempt.is_none() {
            number += 1;
            file = Follow::new(path(number));
            continue;
        }
        match now.state.status {
            Status::Running if options.attempt.is_none() || !has_ended(&now, number) => {
                std::thread::sleep(POLL_INTERVAL)
            }
            Status::Orphaned => {
                say(&format!("no pipe process is running this run: `pipe attach {}` continues it", now.state.id));
                return Ok(());
            }
            _ => return Ok(()),
        }
    }
}

fn has_ended(found: &Listed, number: u32) -> bool {
    found.state.attempts.iter().any(|attempt| attempt.number == number && attempt.outcome.is_some())
}

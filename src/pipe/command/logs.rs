//! `pipe logs`: what the trainer wrote, and what it goes on to write.

use std::time::Duration;

use pipe_spec::Status;

use crate::error::Error;
use crate::report::print_bytes;
use crate::run::{self, Follow, Listed};

/// How often is looked for more.
const LOOK: Duration = Duration::from_millis(100);

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
    loop {
        // Asked before the file is read: what was written before its end is then all there.
        let now = Listed::read(folder.path());
        let bytes = file.bytes()?;
        if !bytes.is_empty() {
            print_bytes(&bytes);
            continue;
        }
        let Some(now) = now.filter(|_| options.follow) else { return Ok(()) };
        let more = now.state.attempts.iter().any(|attempt| attempt.number > number);
        if more && !options.events && options.attempt.is_none() {
            number += 1;
            file = Follow::new(path(number));
            continue;
        }
        match now.state.status {
            Status::Running if options.attempt.is_none() || !has_ended(&now, number) => std::thread::sleep(LOOK),
            Status::Orphaned => {
                eprintln!("nobody drives this run any more: `pipe attach {}` takes it over", now.state.id);
                return Ok(());
            }
            _ => return Ok(()),
        }
    }
}

fn has_ended(found: &Listed, number: u32) -> bool {
    found.state.attempts.iter().any(|attempt| attempt.number == number && attempt.outcome.is_some())
}

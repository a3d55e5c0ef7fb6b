//! `log.txt` of an attempt: everything that its job wrote, each line once.
//!
//! The events of a job, from two sources: the file of events in its folder, and the lines of its output. Both have the same numbered
//! events, so that each fills the gaps of the other.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use pipe_spec::Event;
use pipe_spec::run::{AttemptFolder, LogPosition};
use pipe_spec::text::human_bytes;

use crate::engine::Line;
use crate::error::Error;
use crate::run::Follow;

pub struct JobLog {
    path: PathBuf,
    file: File,
    /// Lines that were written after the position that was kept, and that the engine gives again, with their bytes.
    known: VecDeque<(String, u64)>,
    /// The part of the log that is certain: with all of `known` it is the whole of it.
    position: LogPosition,
    length: u64,
    /// Bytes that there may be.
    limit: u64,
}

/// A job that writes without end does not fill the disk with it.
const LIMIT: u64 = 4 << 30;

/// Bytes after the position that was kept which are compared with what the engine gives again.
const COMPARED: u64 = 64 << 20;

impl JobLog {
    /// The log with what it holds already; `kept` is how far it had come when that was last written down.
    pub fn open(path: &Path, kept: Option<LogPosition>) -> Result<Self, Error> {
        let open = || {
            let mut file = File::options().create(true).read(true).append(true).open(path)?;
            let mut position = kept.unwrap_or_default();
            let length = file.metadata()?.len();
            position.bytes = position.bytes.min(length);
            file.seek(SeekFrom::Start(position.bytes))?;
            let mut after = Vec::new();
            (&file).take(COMPARED).read_to_end(&mut after)?;
            // Half a line is all that a killed `pipe` can have left; it comes again.
            let whole = after.iter().rposition(|byte| *byte == b'\n').map_or(0, |last| last + 1);
            after.truncate(whole);
            let mut end = length;
            if position.bytes + COMPARED > length {
                end = position.bytes + whole as u64;
                file.set_len(end)?;
            }
            let line = |bytes: &[u8]| {
                let text = String::from_utf8_lossy(bytes);
                (text.trim_end_matches(['\n', '\r']).to_owned(), bytes.len() as u64)
            };
            let known = after.split_inclusive(|byte| *byte == b'\n').map(line).collect();
            io::Result::Ok(Self { path: path.to_owned(), file, known, position, length: end, limit: LIMIT })
        };
        open().map_err(|source| Error::Write { path: path.to_owned(), source })
    }

    /// How far it has come.
    pub fn position(&self) -> LogPosition {
        self.position
    }

    /// Waits until all of it is on the disk.
    pub fn sync(&self) -> Result<(), Error> {
        self.file.sync_data().map_err(|source| Error::Write { path: self.path.clone(), source })
    }

    pub fn write(&mut self, line: &Line) -> Result<(), Error> {
        self.append(&line.text, line.bytes())?;
        self.position.output = line.end.unwrap_or(self.position.output);
        Ok(())
    }

    /// The number of the next event that is read from these lines: the same where they are read again.
    pub fn next_event(&mut self) -> u64 {
        self.position.metrics += 1;
        self.position.metrics
    }

    fn append(&mut self, text: &str, bytes: &[u8]) -> Result<(), Error> {
        // Where the engine has lost lines, those before the one that it gives are not waited for.
        if let Some(at) = self.known.iter().position(|(known, _)| known == text) {
            self.position.bytes += self.known.drain(..=at).map(|(_, bytes)| bytes).sum::<u64>();
            return Ok(());
        }
        if self.length >= self.limit {
            return Ok(());
        }
        self.length += bytes.len() as u64 + 1;
        self.position.bytes = self.length;
        let end = match self.length < self.limit {
            true => String::new(),
            false => format!("the log is longer than {}: what follows is left out\n", human_bytes(self.limit)),
        };
        let line = [bytes, b"\n", end.as_bytes()].concat();
        self.file.write_all(&line).map_err(|source| Error::Write { path: self.path.clone(), source })
    }
}

/// Pieces of the file without an event after which a look at it ends, so that the caller is not held up.
const MAX_PIECES: usize = 64;

pub struct JobEvents {
    file: Follow,
    /// Whether a warning was given that the file cannot be read.
    unreadable: bool,
}

impl JobEvents {
    pub fn open(attempt: &AttemptFolder) -> Self {
        Self { file: Follow::of_job(attempt.job().events()), unreadable: false }
    }

    /// Events that were added to the file, some at a time; none where no more are there. A file that cannot be read is
    /// reported once; the output still has the events.
    pub fn next(&mut self) -> (Vec<Event>, Option<Error>) {
        for _ in 0..MAX_PIECES {
            match self.file.lines() {
                Ok(lines) if lines.is_empty() => return (Vec::new(), None),
                Ok(lines) => {
                    let events: Vec<Event> = lines.iter().filter_map(|line| Event::parse(line)).collect();
                    if !events.is_empty() {
                        return (events, None);
                    }
                }
                Err(_) if self.unreadable => return (Vec::new(), None),
                Err(error) => {
                    self.unreadable = true;
                    return (Vec::new(), Some(error));
                }
            }
        }
        (Vec::new(), None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::Source;

    fn write(log: &mut JobLog, lines: &[&str]) {
        for text in lines {
            log.write(&Line::new(Source::Job, *text)).unwrap();
        }
    }

    #[test]
    fn what_is_read_again_is_written_once() {
        let path = std::env::temp_dir().join(format!("pipe-joblog-{}", std::process::id()));
        std::fs::write(&path, "one\ntwo\nthr").unwrap();
        let mut log = JobLog::open(&path, None).unwrap();
        write(&mut log, &["one", "two", "three", "four"]);
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "one\ntwo\nthree\nfour\n");
        assert_eq!(log.position().bytes, 19);

        // From the position that was kept on, and where the engine has lost `three`.
        let kept = LogPosition { bytes: 4, metrics: 7, ..LogPosition::default() };
        let mut log = JobLog::open(&path, Some(kept)).unwrap();
        assert_eq!(log.next_event(), 8);
        write(&mut log, &["two", "four", "one"]);
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "one\ntwo\nthree\nfour\none\n");

        // Where the second reading ends early, the third one knows the rest of the lines too.
        let kept = LogPosition { bytes: 4, ..LogPosition::default() };
        let mut log = JobLog::open(&path, Some(kept)).unwrap();
        write(&mut log, &["two"]);
        assert_eq!(log.position().bytes, 8);
        let mut log = JobLog::open(&path, Some(log.position())).unwrap();
        write(&mut log, &["three", "four", "one"]);
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "one\ntwo\nthree\nfour\none\n");

        log.limit = 34;
        write(&mut log, &["five", "six", "seven", "eight"]);
        let end = "five\nsix\nseven\nthe log is longer than 34 B: what follows is left out\n";
        assert!(std::fs::read_to_string(&path).unwrap().ends_with(end));
        std::fs::remove_file(&path).unwrap();
    }
}

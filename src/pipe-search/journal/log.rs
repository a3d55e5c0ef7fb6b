//! The journal as a file of lines: new lines are read, added to its end, and repaired after a writer was killed.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::Value;

use super::lock::{self, Lock};
use super::python;
use crate::trial::{Direction, TrialState};

/// How every line begins, of Optuna's and of ours.
const LINE_START: &[u8] = b"{\"op_code\":";

#[derive(Debug)]
pub struct Log {
    path: PathBuf,
    grace: Duration,
    /// Where the first line begins that was not read, and its number from 1.
    offset: u64,
    line: u64,
    /// Which file it is: one that was removed and made again is another.
    file: Option<(u64, u64)>,
    /// Where the end of a writer that was killed stands before the line of another, and how long it is.
    torn: Vec<(u64, usize)>,
}

/// A line has no more bytes.
const LONGEST_LINE: u64 = 64 << 20;

/// Reads the new part of the file line by line.
pub struct News {
    /// The file is another one, or shorter than it was: all of it is new.
    pub restarted: bool,
    file: Option<BufReader<File>>,
    /// Number and offset of the next line.
    number: u64,
    start: u64,
}

pub struct Line {
    pub number: u64,
    pub value: Value,
    end: u64,
    torn: usize,
}

impl Log {
    pub fn new(path: &Path) -> Self {
        Self { path: path.into(), grace: lock::GRACE, offset: 0, line: 1, file: None, torn: Vec::new() }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Makes the file where there is none.
    pub fn create(&self) -> Result<(), JournalError> {
        if self.path.exists() {
            return Ok(());
        }
        let made = OpenOptions::new().create(true).append(true).open(&self.path);
        made.map_err(|source| self.failed("create", source))?;
        // So that the name survives a loss of power too. Not every file system can.
        let folder = self.path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let _ = File::open(folder).and_then(|folder| folder.sync_all());
        Ok(())
    }

    pub fn lock(&self) -> Result<Lock, JournalError> {
        Lock::acquire(&self.path, self.grace).map_err(|source| self.failed("lock", source))
    }

    /// The lines that were added since. A last line without its end is not read: it is being written, or its writer was killed.
    /// They count as read once `done` is told of them.
    pub fn read(&mut self) -> Result<News, JournalError> {
        let found = fs::metadata(&self.path).map_err(|source| self.failed("read", source))?;
        let file = Some((found.dev(), found.ino()));
        let restarted = self.file.is_some() && (self.file != file || found.len() < self.offset);
        self.file = file;
        if restarted {
            (self.offset, self.line) = (0, 1);
            self.torn.clear();
        }
        let open = || -> io::Result<BufReader<File>> {
            let mut file = File::open(&self.path)?;
            file.seek(SeekFrom::Start(self.offset))?;
            Ok(BufReader::with_capacity(1 << 16, file))
        };
        let file = (found.len() > self.offset).then(open).transpose();
        let file = file.map_err(|source| self.failed("read", source))?;
        Ok(News { restarted, file, number: self.line, start: self.offset })
    }

    /// The next line of what is new.
    pub fn next(&self, news: &mut News) -> Result<Option<Line>, JournalError> {
        let Some(file) = &mut news.file else { return Ok(None) };
        let (number, mut line) = (news.number, Vec::new());
        let read = file.by_ref().take(LONGEST_LINE).read_until(b'\n', &mut line);
        let length = read.map_err(|source| self.failed("read", source))? as u64;
        if !line.ends_with(b"\n") {
            let message = || format!("it has more than {} MiB", LONGEST_LINE >> 20);
            return if length < LONGEST_LINE { Ok(None) } else { Err(self.unreadable(number, message())) };
        }
        let (torn, value) = parse(&line).map_err(|reason| self.unreadable(number, reason))?;
        (news.number, news.start) = (number + 1, news.start + length);
        Ok(Some(Line { number, value, end: news.start, torn }))
    }

    /// Takes note that a line was understood.
    pub fn done(&mut self, number: u64, end: u64, torn: usize) {
        if torn > 0 {
            self.torn.push((self.offset, torn));
        }
        (self.line, self.offset) = (number + 1, end);
    }

    pub fn unreadable(&self, line: u64, reason: String) -> JournalError {
        JournalError::Line { path: self.path.clone(), line, reason }
    }

    /// Fails where there is no line in the file, and what there is is not the beginning of one: it is somebody's, and no journal.
    pub fn check_beginning(&self) -> Result<(), JournalError> {
        let read = || -> io::Result<Vec<u8>> {
            let mut beginning = Vec::new();
            std::fs::File::open(&self.path)?.take(LINE_START.len() as u64).read_to_end(&mut beginning)?;
            Ok(beginning)
        };
        let beginning = read().map_err(|source| self.failed("read", source))?;
        match self.offset > 0 || LINE_START.starts_with(&beginning) {
            true => Ok(()),
            false => Err(self.unreadable(1, "the file is not a journal of Optuna".into())),
        }
    }

    /// Makes good what a writer that was killed has left. A last line without its end goes: nobody has read it, and what Optuna
    /// appended to it could not be read either. Where that has happened already, what is before the later line becomes spaces, so
    /// that Optuna can read the file again. All lines must have been read, with the lock held.
    pub fn repair(&mut self, _lock: &Lock) -> Result<(), JournalError> {
        let repair = |torn: &[(u64, usize)], end: u64| -> io::Result<()> {
            let file = OpenOptions::new().write(true).open(&self.path)?;
            let too_long = file.metadata()?.len() > end;
            for (offset, length) in torn {
                file.write_all_at(&vec![b' '; *length], *offset)?;
            }
            if too_long {
                file.set_len(end)?;
            }
            if too_long || !torn.is_empty() { file.sync_data() } else { Ok(()) }
        };
        repair(&self.torn, self.offset).map_err(|source| self.failed("repair", source))?;
        self.torn.clear();
        Ok(())
    }

    /// Adds lines in one write. The file is as it was where that fails.
    pub fn append(&self, _lock: &Lock, lines: &str) -> Result<(), JournalError> {
        let append = || {
            let mut file = OpenOptions::new().append(true).open(&self.path)?;
            let before = file.metadata()?.len();
            let written = write_whole(&mut file, lines.as_bytes()).and_then(|()| file.sync_data());
            if written.is_err() {
                file.set_len(before)?;
            }
            written
        };
        append().map_err(|source| self.failed("write", source))
    }

    fn failed(&self, action: &'static str, source: io::Error) -> JournalError {
        JournalError::Io { action, path: self.path.clone(), source }
    }
}

impl Line {
    /// The arguments of `Log::done`.
    pub fn position(&self) -> (u64, u64, usize) {
        (self.number, self.end, self.torn)
    }
}

/// One write, and what is left of it where the system took only a part.
fn write_whole(file: &mut File, bytes: &[u8]) -> io::Result<()> {
    match file.write(bytes) {
        Ok(written) if written == bytes.len() => Ok(()),
        Ok(written) => file.write_all(&bytes[written..]),
        Err(error) if error.kind() == io::ErrorKind::Interrupted => file.write_all(bytes),
        Err(error) => Err(error),
    }
}

/// The value of a line, and how many bytes before it are what a writer that was killed left.
fn parse(line: &[u8]) -> Result<(usize, Value), String> {
    let failed = match python::parse(line) {
        Ok(value) => return Ok((0, value)),
        Err(failed) => failed,
    };
    let last = line.windows(LINE_START.len()).rposition(|window| window == LINE_START);
    let last = last.filter(|at| *at > 0).ok_or_else(|| failed.clone())?;
    python::parse(&line[last..]).map(|value| (last, value)).map_err(|_| failed)
}

#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    #[error("cannot {action} {}: {source}", path.display())]
    Io { action: &'static str, path: PathBuf, source: io::Error },
    #[error("{}: line {line} cannot be read: {reason}", path.display())]
    Line { path: PathBuf, line: u64, reason: String },
    #[error("{} has no study \"{study}\"{}", path.display(), list(others))]
    NoStudy { path: PathBuf, study: String, others: Vec<String> },
    #[error("study \"{study}\" of {} was deleted", path.display())]
    Deleted { path: PathBuf, study: String },
    #[error("study \"{study}\" of {} has the directions {} and not {}", path.display(), names(found), names(wanted))]
    Directions { path: PathBuf, study: String, found: Vec<Direction>, wanted: Vec<Direction> },
    #[error("{} was opened for reading only", path.display())]
    ReadOnly { path: PathBuf },
    #[error("there is no trial {number}")]
    NoTrial { number: u64 },
    #[error("parameter {name}: {reason}")]
    Parameter { name: String, reason: String },
    #[error("a trial cannot be {state:?} with the values {values:?}: {reason}")]
    Values { state: TrialState, values: Vec<f64>, reason: String },
}

fn list(others: &[String]) -> String {
    if others.is_empty() { ", and no other".into() } else { format!(", but {}", others.join(", ")) }
}

fn names(directions: &[Direction]) -> String {
    let name = |direction: &Direction| match direction {
        Direction::Minimize => "minimize",
        Direction::Maximize => "maximize",
    };
    directions.iter().map(name).collect::<Vec<_>>().join(", ")
}

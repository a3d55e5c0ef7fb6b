//! The journal as a file of lines: new lines are read, added to its end, and repaired after a writer was killed.
//!
//! The lock that Optuna takes by default before it writes: a symbolic link beside the journal, named after it with
//! `.lock`. A link that stays the same for longer than the grace period was left by a process that died, and is
//! removed.
//!
//! We also hold a `flock` on the journal meanwhile, and our links are told from those of Optuna by a `/./`. So a link
//! of ours that is found while its `flock` is free was left by a process that died, and nobody waits for the grace
//! period.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::hash::{BuildHasher, RandomState};
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use std::{process, thread};

use serde_json::Value;

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
        Self { path: path.into(), grace: GRACE, offset: 0, line: 1, file: None, torn: Vec::new() }
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

/// How long Optuna waits for a lock before it takes it away.
pub const GRACE: Duration = Duration::from_secs(30);
const FIRST_WAIT: Duration = Duration::from_millis(1);
const LONGEST_WAIT: Duration = Duration::from_millis(20);

/// The lock, held until it is dropped.
#[derive(Debug)]
pub struct Lock {
    link: PathBuf,
    identity: Option<Identity>,
    /// Holds the `flock`.
    _journal: File,
}

/// Which link it is: one that was removed and made again is another.
type Identity = (u64, i64, i64);

impl Lock {
    pub fn acquire(path: &Path, grace: Duration) -> io::Result<Self> {
        let journal = File::open(path)?;
        let link = with_suffix(path, ".lock");
        let (theirs, ours) = targets(path)?;
        let mut seen = None;
        let mut since = Instant::now();
        let mut wait = FIRST_WAIT;
        // Some file systems have no `flock`: then only the link counts.
        let mut flocked = false;
        loop {
            let tried = if flocked { Ok(()) } else { journal.try_lock() };
            flocked = tried.is_ok();
            if matches!(tried, Err(TryLockError::WouldBlock)) && since.elapsed() <= grace {
                thread::sleep(wait);
                wait = (wait * 2).min(LONGEST_WAIT);
                continue;
            }
            match symlink(if flocked { &ours } else { &theirs }, &link) {
                Ok(()) => {
                    let identity = identity(&link);
                    return Ok(Self { link, identity, _journal: journal });
                }
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
            }
            let found = identity(&link);
            if found != seen {
                seen = found;
                since = Instant::now();
            }
            let is_ours = || fs::read_link(&link).is_ok_and(|target| target.as_os_str() == ours.as_os_str());
            if found.is_some() && ((flocked && is_ours()) || since.elapsed() > grace) && identity(&link) == found {
                remove(&link);
                continue;
            }
            thread::sleep(wait);
            wait = (wait * 2).min(LONGEST_WAIT);
        }
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // Another took it away from us if it is not the same.
        if identity(&self.link) == self.identity {
            remove(&self.link);
        }
    }
}

/// Renamed first, as Optuna does: of two that remove it one succeeds.
fn remove(link: &Path) {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let name = with_suffix(link, &format!("{}-{count}-{}.rename", process::id(), random()));
    if fs::rename(link, &name).is_ok() {
        let _ = fs::remove_file(&name);
    }
}

fn identity(link: &Path) -> Option<Identity> {
    fs::symlink_metadata(link).ok().map(|found| (found.ino(), found.ctime(), found.ctime_nsec()))
}

/// The target of the link: the journal, where Optuna looks for the time of the last change. The second is how we write it.
fn targets(path: &Path) -> io::Result<(PathBuf, PathBuf)> {
    let absolute = std::path::absolute(path)?;
    let (Some(folder), Some(name)) = (absolute.parent(), absolute.file_name()) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    let mut ours = OsString::from(folder);
    ours.push("/./");
    ours.push(name);
    Ok((absolute.clone(), ours.into()))
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(suffix);
    name.into()
}

/// A number that no other process has.
pub fn random() -> u64 {
    RandomState::new().hash_one(std::process::id())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn journal() -> (tempfile::TempDir, PathBuf, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("study.journal");
        fs::write(&path, "").unwrap();
        let link = folder.path().join("study.journal.lock");
        (folder, path, link)
    }

    #[test]
    fn is_a_link_to_the_journal_and_gone_afterwards() {
        let (folder, path, link) = journal();
        let lock = Lock::acquire(&path, GRACE).unwrap();
        assert_eq!(fs::canonicalize(&link).unwrap(), fs::canonicalize(&path).unwrap());
        drop(lock);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn one_of_optuna_is_taken_away_after_the_grace_period() {
        let (_folder, path, link) = journal();
        symlink(&path, &link).unwrap();
        let grace = Duration::from_millis(300);
        let began = Instant::now();
        let lock = Lock::acquire(&path, grace).unwrap();
        assert!(began.elapsed() >= grace);
        drop(lock);
        assert!(fs::symlink_metadata(&link).is_err());
    }

    #[test]
    fn one_of_optuna_whose_link_points_nowhere_is_taken_away_too() {
        let (_folder, path, link) = journal();
        symlink("a/folder/that/is/not/there", &link).unwrap();
        Lock::acquire(&path, Duration::from_millis(100)).unwrap();
    }

    #[test]
    fn one_of_ours_that_was_left_is_taken_away_at_once() {
        let (_folder, path, link) = journal();
        let lock = Lock::acquire(&path, GRACE).unwrap();
        let target = fs::read_link(&link).unwrap();
        drop(lock);
        symlink(target, &link).unwrap();
        let began = Instant::now();
        Lock::acquire(&path, GRACE).unwrap();
        assert!(began.elapsed() < GRACE / 2);
    }

    #[test]
    fn one_that_is_held_is_waited_for() {
        let (_folder, path, _link) = journal();
        let lock = Lock::acquire(&path, GRACE).unwrap();
        let (sender, receiver) = std::sync::mpsc::channel();
        thread::scope(|scope| {
            scope.spawn(|| {
                let _lock = Lock::acquire(&path, GRACE).unwrap();
                sender.send(()).unwrap();
            });
            assert!(receiver.recv_timeout(Duration::from_millis(200)).is_err());
            drop(lock);
            receiver.recv_timeout(Duration::from_secs(10)).unwrap();
        });
    }

    #[test]
    fn one_that_another_took_away_is_left_to_it() {
        let (_folder, path, link) = journal();
        let lock = Lock::acquire(&path, GRACE).unwrap();
        fs::remove_file(&link).unwrap();
        thread::sleep(Duration::from_millis(20));
        symlink(&path, &link).unwrap();
        drop(lock);
        assert!(fs::symlink_metadata(&link).is_ok());
    }
}

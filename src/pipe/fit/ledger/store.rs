//! The ledger on disk: one file, written whole under a lock and read without one, so that many runs can share it.
//!
//! The ledger never stops a run: a damaged file is reported or set aside, and never causes a panic.
//!
//! The ledger's file: JSON lines, each with a checksum of its own, so that damage costs the lines that it hits and no others.
//!
//! A line is `{"check":"<16 hex digits>","entry":{...}}` or the same with `longest`. The checksum is the BLAKE3 hash of what
//! follows it in the line.

use std::collections::BTreeMap;
use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use pipe_spec::text::count;
use serde::{Deserialize, Serialize};

use super::{Fact, Key, LedgerEntry};
use crate::error::Error;
use crate::system::clock::{iso, now};
use crate::system::files::{self, Stranger, open_lock, stranger, write_whole};

/// How long to wait for another process that writes it.
const LOCK_TIMEOUT: Duration = Duration::from_secs(10);
const POLL_INTERVAL: Duration = Duration::from_millis(5);
/// More than this is not read.
const MAX_BYTES: u64 = 256 << 20;

#[derive(Clone)]
pub struct Ledger {
    path: PathBuf,
    warnings: Arc<Mutex<Vec<String>>>,
}

impl Ledger {
    /// `PIPE_LEDGER`, or a file in the user's data folder; nothing where there is neither.
    pub fn find() -> Option<Self> {
        let var = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let path = var("PIPE_LEDGER")
            .or_else(|| var("XDG_DATA_HOME").map(|home| home.join("pipe/ledger.jsonl")))
            .or_else(|| var("HOME").map(|home| home.join(".local/share/pipe/ledger.jsonl")))?;
        Some(Self::at(path))
    }

    fn at(path: PathBuf) -> Self {
        // The file that a link names is written, and the link stays.
        let path = if path.is_symlink() { path.canonicalize().unwrap_or(path) } else { path };
        Self { path, warnings: Arc::default() }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The warnings since the last call.
    pub fn take_warnings(&self) -> Vec<String> {
        std::mem::take(&mut self.warnings.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Every entry, by name.
    pub fn entries(&self) -> Result<Vec<LedgerEntry>, Error> {
        Ok(self.read()?.entries.into_values().collect())
    }

    pub fn longest(&self, data: &str) -> Result<Option<String>, Error> {
        Ok(self.read()?.longest.remove(data))
    }

    /// Adds what a run has shown: the longest row of `data`, and facts about `key`.
    pub fn record(&self, data: &str, longest: &str, key: &Key, facts: Vec<Fact>) -> Result<(), Error> {
        self.change(|lines| {
            lines.longest.insert(data.to_owned(), longest.to_owned());
            if facts.is_empty() {
                return;
            }
            let new = || LedgerEntry { key: key.clone(), facts: Vec::new() };
            let entry = lines.entries.entry(key.id()).or_insert_with(new);
            facts.into_iter().for_each(|fact| entry.add(fact));
        })
    }

    /// Removes the entries of these names.
    pub fn forget(&self, ids: &[String]) -> Result<(), Error> {
        self.change(|lines| lines.entries.retain(|id, _| !ids.contains(id)))
    }

    /// The intact lines. A damaged file is set aside; where it cannot be, there is a warning and it stays.
    fn read(&self) -> Result<Lines, Error> {
        let found = self.load()?;
        if found.damaged == 0 {
            return Ok(found);
        }
        match self.change(|_| {}) {
            Ok(()) => self.load(),
            Err(error) => {
                self.warn(format!(
                    "the ledger {} is damaged ({} kept) and cannot be set aside: {error}",
                    self.path.display(),
                    of_all(&found)
                ));
                Ok(found)
            }
        }
    }

    fn load(&self) -> Result<Lines, Error> {
        match files::read(&self.path, MAX_BYTES) {
            Ok(bytes) => Ok(Lines::parse(&bytes)),
            Err(Error::TooLarge { .. }) => Ok(Lines { damaged: 1, ..Lines::default() }),
            Err(Error::NotAFile { .. }) => Err(self.fail("it is not a file")),
            Err(Error::Read { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => Ok(Lines::default()),
            Err(Error::Read { source, .. }) => Err(self.fail(source)),
            Err(other) => Err(self.fail(other)),
        }
    }

    /// Reads, changes and writes it, while no other process does.
    fn change(&self, change: impl FnOnce(&mut Lines)) -> Result<(), Error> {
        if let Some(folder) = self.path.parent() {
            std::fs::create_dir_all(folder).map_err(|error| self.fail(error))?;
        }
        let _lock = self.lock()?;
        let before = self.load()?;
        let mut after = Lines { damaged: 0, ..before.clone() };
        change(&mut after);
        if before == after {
            return Ok(());
        }
        let aside = match before.damaged {
            0 => None,
            _ => Some(self.set_aside()?),
        };
        let written = write_whole(&self.path, after.to_text().as_bytes());
        match (&aside, &written) {
            (Some(aside), Ok(())) => self.warn(format!(
                "the ledger {} is damaged: it is kept as {}, and {} went into a new one",
                self.path.display(),
                aside.display(),
                of_all(&before)
            )),
            // The damaged file is still the ledger.
            (Some(aside), Err(_)) => drop(std::fs::remove_file(aside)),
            (None, _) => {}
        }
        written.map_err(|error| match error {
            Error::Write { source, .. } => self.fail(source),
            other => self.fail(other),
        })
    }

    /// Gives the file a second name, beside its own.
    fn set_aside(&self) -> Result<PathBuf, Error> {
        let name = self.path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let when = iso(now()).replace(['-', ':'], "");
        for number in 1..1000 {
            let more = if number == 1 { String::new() } else { format!("-{number}") };
            let aside = self.path.with_file_name(format!("{name}.damaged-{when}{more}"));
            match std::fs::hard_link(&self.path, &aside) {
                Ok(()) => return Ok(aside),
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(self.fail(format!("{}: {error}", aside.display()))),
            }
        }
        Err(self.fail("there are a thousand damaged copies beside it"))
    }

    /// The lock of the writer. The kernel releases it when the process ends.
    fn lock(&self) -> Result<File, Error> {
        let name = self.path.file_name().unwrap_or_default().to_string_lossy();
        let path = self.path.with_file_name(format!(".{name}.lock"));
        let fail = |error: std::io::Error| self.fail(format!("{}: {error}", path.display()));
        let file = open_lock(&path).map_err(fail)?;
        let began = Instant::now();
        loop {
            match file.try_lock() {
                Ok(()) => return Ok(file),
                Err(TryLockError::WouldBlock) if began.elapsed() < LOCK_TIMEOUT => std::thread::sleep(POLL_INTERVAL),
                Err(TryLockError::WouldBlock) => {
                    let seconds = LOCK_TIMEOUT.as_secs();
                    let who = stranger(&file).map_or_else(
                        || "another process".to_owned(),
                        |Stranger { pid, user }| format!("process {pid} of {user}"),
                    );
                    return Err(self.fail(format!("{who} has held {} for {seconds} s", path.display())));
                }
                Err(TryLockError::Error(error)) => return Err(fail(error)),
            }
        }
    }

    fn fail(&self, reason: impl ToString) -> Error {
        Error::Ledger { path: self.path.clone(), reason: reason.to_string() }
    }

    fn warn(&self, warning: String) {
        self.warnings.lock().unwrap_or_else(PoisonError::into_inner).push(warning);
    }
}

fn of_all(lines: &Lines) -> String {
    format!("{} of {}", lines.count(), count(lines.count() + lines.damaged, "entry"))
}

const HEAD: &str = "{\"check\":\"";
const DIGITS: usize = 16;

/// The content of the file.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Lines {
    /// By the names of their keys.
    pub entries: BTreeMap<String, LedgerEntry>,
    /// The longest row of data that was read, by a hash of what it was read from.
    pub longest: BTreeMap<String, String>,
    /// Intact lines that another version of pipe wrote, as they are.
    pub unknown: Vec<String>,
    pub damaged: usize,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Line {
    Entry(LedgerEntry),
    Longest { data: String, tokens: String },
}

impl Lines {
    pub fn parse(bytes: &[u8]) -> Self {
        let mut lines = Self::default();
        for line in bytes.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
            match intact(line) {
                Some(line) => lines.add(line),
                None => lines.damaged += 1,
            }
        }
        lines
    }

    fn add(&mut self, line: &str) {
        // `check` is none of the keys of a line.
        let json = format!("{{{}", &line[HEAD.len() + DIGITS + "\",".len()..]);
        match serde_json::from_str(&json) {
            Ok(Line::Entry(entry)) => drop(self.entries.insert(entry.key.id(), entry)),
            Ok(Line::Longest { data, tokens }) => drop(self.longest.insert(data, tokens)),
            Err(_) => self.unknown.push(line.to_owned()),
        }
    }

    /// Intact lines.
    pub fn count(&self) -> usize {
        self.entries.len() + self.longest.len() + self.unknown.len()
    }

    pub fn to_text(&self) -> String {
        let entries = self.entries.values().map(|entry| Line::Entry(entry.clone()));
        let longest =
            self.longest.iter().map(|(data, tokens)| Line::Longest { data: data.clone(), tokens: tokens.clone() });
        let known = entries.chain(longest).map(|line| checked(&line));
        known.chain(self.unknown.iter().cloned()).map(|line| line + "\n").collect()
    }
}

fn checked(line: &Line) -> String {
    let json = serde_json::to_string(line).expect("a line is plain data");
    let rest = &json[1..];
    format!("{HEAD}{}\",{rest}", digest(rest))
}

fn digest(rest: &str) -> String {
    blake3::hash(rest.as_bytes()).to_hex()[..DIGITS].to_owned()
}

/// The line, if its checksum is right.
fn intact(line: &[u8]) -> Option<&str> {
    let line = std::str::from_utf8(line).ok()?;
    let (check, rest) = line.strip_prefix(HEAD)?.split_at_checked(DIGITS)?;
    (digest(rest.strip_prefix("\",")?) == check).then_some(line)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fit::ledger::tests::{entry, fact};

    fn in_folder(name: &str) -> (PathBuf, Ledger) {
        let folder = std::env::temp_dir().join(format!("pipe-ledger-{name}-{}", std::process::id()));
        std::fs::remove_dir_all(&folder).ok();
        let ledger = Ledger::at(folder.join("ledger.jsonl"));
        for batch in 1..5 {
            let mut key = entry(&[]).key;
            key.longest = batch.to_string();
            ledger.record(&format!("data-{batch}"), "64", &key, vec![fact(batch, true, 12)]).unwrap();
        }
        (folder, ledger)
    }

    fn names(folder: &Path) -> Vec<String> {
        let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<String> = entries.filter(|name| !name.starts_with('.')).collect();
        names.sort();
        names
    }

    #[test]
    fn what_is_recorded_is_known() {
        let (folder, ledger) = in_folder("recorded");
        assert_eq!(ledger.entries().unwrap().len(), 4);
        assert_eq!(ledger.longest("data-2").unwrap().as_deref(), Some("64"));
        let ids: Vec<String> = ledger.entries().unwrap()[..3].iter().map(|entry| entry.key.id()).collect();
        ledger.forget(&ids).unwrap();
        assert_eq!(ledger.entries().unwrap().len(), 1);
        assert!(ledger.take_warnings().is_empty());
        assert_eq!(names(&folder), ["ledger.jsonl"]);
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_damaged_one_is_set_aside_with_what_is_intact_kept() {
        let (folder, ledger) = in_folder("damaged");
        let text = std::fs::read(ledger.path()).unwrap();
        for round in 1..=3 {
            std::fs::write(ledger.path(), &text[..text.len() - 10]).unwrap();
            assert_eq!(ledger.entries().unwrap().len(), 4);
            let warnings = ledger.take_warnings();
            assert!(warnings[0].contains("7 of 8 entries went into a new one"), "{warnings:?}");
            let names = names(&folder);
            assert_eq!(names.len(), 1 + round);
            assert!(names[1..].iter().all(|name| name.starts_with("ledger.jsonl.damaged-")), "{names:?}");
            assert_eq!(std::fs::read(folder.join(&names[round])).unwrap(), &text[..text.len() - 10]);
        }
        assert_eq!(ledger.longest("data-1").unwrap().as_deref(), Some("64"));
        assert!(ledger.take_warnings().is_empty());
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn one_that_is_no_ledger_or_too_large() {
        let (folder, ledger) = in_folder("foreign");
        std::fs::write(ledger.path(), b"redb\x1a\n\xa9\r\n\0\0\xff\xfe").unwrap();
        assert!(ledger.entries().unwrap().is_empty());
        assert_eq!(ledger.take_warnings().len(), 1);
        File::options().write(true).open(ledger.path()).unwrap().set_len(MAX_BYTES + 1).unwrap();
        assert!(ledger.longest("data-1").unwrap().is_none());
        assert!(ledger.take_warnings()[0].contains("0 of 1 entry"));
        std::fs::remove_file(ledger.path()).unwrap();
        std::fs::create_dir(ledger.path()).unwrap();
        assert!(ledger.entries().unwrap_err().to_string().contains("it is not a file"));
        assert!(ledger.forget(&["x".to_owned()]).is_err());
        std::fs::remove_dir_all(folder).unwrap();
    }
}

#[cfg(test)]
mod lines_tests {
    use super::*;
    use crate::fit::ledger::tests::{entry, fact};

    fn some() -> Lines {
        let mut lines = Lines::default();
        for batch in 1..20 {
            let mut entry = entry(&[fact(batch, true, 12), fact(batch * 2, false, 12)]);
            entry.key.longest = batch.to_string();
            lines.entries.insert(entry.key.id(), entry);
            lines.longest.insert(format!("data-{batch}"), format!("{batch}+7"));
        }
        lines
    }

    #[test]
    fn what_is_written_is_read() {
        let lines = some();
        assert_eq!(Lines::parse(lines.to_text().as_bytes()), lines);
        assert!(lines.to_text().lines().all(|line| serde_json::from_str::<serde_json::Value>(line).is_ok()));
        assert_eq!(Lines::parse(b""), Lines::default());
        let keys =
            lines.to_text().lines().filter(|line| line[HEAD.len() + DIGITS..].starts_with("\",\"entry\":{")).count();
        assert_eq!(keys, lines.entries.len());
    }

    #[test]
    fn lines_of_another_version_are_kept() {
        let rest = "\"graph\":{\"a\":1}}";
        let line = format!("{HEAD}{}\",{rest}", digest(rest));
        let lines = Lines::parse(line.as_bytes());
        assert_eq!((lines.unknown.as_slice(), lines.damaged), ([line.clone()].as_slice(), 0));
        assert_eq!(lines.to_text(), line + "\n");
    }

    #[test]
    fn no_damage_is_read_as_truth() {
        let (whole, text) = (some(), some().to_text());
        let held = |lines: &Lines| {
            lines.entries.iter().all(|(id, entry)| whole.entries.get(id) == Some(entry))
                && lines.longest.iter().all(|(data, tokens)| whole.longest.get(data) == Some(tokens))
        };
        let mut seed = 7u64;
        let mut random = |below: usize| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) as usize % below
        };
        for _ in 0..2000 {
            let mut bytes = text.clone().into_bytes();
            for _ in 0..4 {
                let at = random(bytes.len());
                bytes[at] ^= 1 << random(8);
            }
            let lines = Lines::parse(&bytes);
            assert!(held(&lines) && lines.count() >= whole.count() - 8, "{} of {}", lines.count(), whole.count());
        }
        for length in 0..text.len() {
            let lines = Lines::parse(&text.as_bytes()[..length]);
            assert!(held(&lines) && lines.damaged <= 1);
        }
    }
}

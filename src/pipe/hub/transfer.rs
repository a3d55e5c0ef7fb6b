//! One content on its way from the hub to the cache: resumed where it broke, checked against the hub's hash, and under its
//! name in the cache only when it is whole.

use std::fs::File;
use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use super::cache::{Cache, cannot_write, make_parent};
use super::client::{Client, RequestError, Retries};
use super::content::{ContentHash, Hasher};
use super::fetch::MissingFile;
use super::listing::resolve_path;
use super::refusal::{Failure, failure, no_space};
use crate::error::Error;
use crate::files::disk::Space;
use crate::report::FetchProgress;

const PIECE: usize = 256 << 10;

pub struct Transfer<'a> {
    pub client: &'a Client,
    pub cache: &'a Cache,
    pub missing: &'a MissingFile,
    pub progress: &'a FetchProgress,
    /// Which of the files that are fetched together it is.
    pub index: usize,
    /// Set where another of them failed.
    pub stop: &'a AtomicBool,
}

/// What has come so far.
struct Partial {
    file: File,
    path: PathBuf,
    size: u64,
    hasher: Hasher,
    /// Whether an earlier process left some of it.
    is_resumed: bool,
}

impl Transfer<'_> {
    pub fn run(&self) -> Result<(), Failure> {
        let MissingFile { address, commit, file } = self.missing;
        let waits = || self.progress.note(&format!("waiting: another process fetches {} of {address}", file.name));
        let _lock = self.cache.lock(address, &file.hash, waits)?;
        let blob = self.cache.blob(address, &file.hash);
        if !is_whole(&blob, file.size) {
            self.fetch(&blob)?;
        }
        self.progress.at(self.index, file.size);
        Ok(self.cache.link(address, commit, &file.name, &file.hash)?)
    }

    fn fetch(&self, blob: &Path) -> Result<(), Failure> {
        let file = &self.missing.file;
        make_parent(blob)?;
        loop {
            let mut partial = Partial::open(incomplete(blob), &file.hash, file.size)?;
            let is_resumed = partial.is_resumed;
            self.progress.at(self.index, partial.size);
            self.receive(&mut partial)?;
            let path = partial.path.clone();
            let found = partial.finish()?;
            if found == file.hash {
                return Ok(std::fs::rename(&path, blob).map_err(|source| cannot_write(&path, source))?);
            }
            std::fs::remove_file(&path).map_err(|source| cannot_write(&path, source))?;
            if !is_resumed {
                return Err(self.wrong(found.as_str()).into());
            }
            // What an earlier process left may have been damaged since.
            self.progress.note(&format!("{} did not match its hash; fetching it again from its beginning", file.name));
        }
    }

    /// Receives what is missing. A break is followed by another try, from where it broke.
    fn receive(&self, partial: &mut Partial) -> Result<(), Failure> {
        let MissingFile { address, commit, file } = self.missing;
        let path = resolve_path(address, commit, &file.name);
        let mut retries = Retries::of_transfers();
        while partial.size < file.size {
            let before = partial.size;
            let Err(broken) = self.receive_some(&path, partial) else { continue };
            let error = match broken {
                TransferError::Request(error) => error,
                TransferError::Error(error) => return Err(error.into()),
            };
            if partial.size > before {
                retries.reset();
            }
            let Some(wait) = retries.wait(&error) else {
                return Err(failure(error, self.client, address, Some(&file.name)));
            };
            if let RequestError::Transient { reason, .. } = &error {
                let (name, seconds) = (&file.name, wait.as_secs_f64());
                self.progress.note(&format!("{name}: {reason}; trying again in {seconds:.1} s"));
            }
            std::thread::sleep(wait);
        }
        Ok(())
    }

    fn receive_some(&self, path: &str, partial: &mut Partial) -> Result<(), TransferError> {
        let whole = self.missing.file.size;
        let (continues, mut body) = self.client.open(path, partial.size).map_err(TransferError::Request)?;
        if !continues {
            partial.clear(&self.missing.file.hash, whole)?;
        }
        let mut piece = vec![0; PIECE];
        while partial.size < whole {
            if self.stop.load(Ordering::Relaxed) {
                return Err(TransferError::Error(Error::Interrupted));
            }
            let broken = |reason: String| TransferError::Request(RequestError::Transient { reason, after: None });
            let count = match body.read(&mut piece) {
                Ok(0) => return Err(broken("the connection ended too early".to_owned())),
                Ok(count) => count,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) if error.kind() == ErrorKind::TimedOut => {
                    return Err(broken("nothing came for too long".to_owned()));
                }
                Err(_) => return Err(broken("the connection broke".to_owned())),
            };
            if partial.size + count as u64 > whole {
                partial.remove();
                return Err(TransferError::Error(self.wrong("a longer content")));
            }
            partial.append(&piece[..count], whole)?;
            self.progress.at(self.index, partial.size);
        }
        Ok(())
    }

    fn wrong(&self, found: &str) -> Error {
        let MissingFile { address, file, .. } = self.missing;
        Error::WrongContent {
            file: file.name.clone(),
            repository: address.to_string(),
            expected: file.hash.as_str().to_owned(),
            found: found.to_owned(),
        }
    }
}

/// Why the receiving ended.
enum TransferError {
    Request(RequestError),
    /// Another try would not help.
    Error(Error),
}

impl From<Error> for TransferError {
    fn from(error: Error) -> Self {
        Self::Error(error)
    }
}

impl Partial {
    fn open(path: PathBuf, hash: &ContentHash, whole: u64) -> Result<Self, Error> {
        let fail = |source| cannot_write(&path, source);
        let mut file = File::options().read(true).write(true).create(true).truncate(false).open(&path).map_err(fail)?;
        let length = file.metadata().map_err(fail)?.len();
        if length > whole {
            file.set_len(0).map_err(fail)?;
        }
        let mut hasher = hash.hasher(whole);
        let mut size = 0;
        let mut piece = vec![0; PIECE];
        loop {
            let count = file.read(&mut piece).map_err(fail)?;
            if count == 0 {
                return Ok(Self { file, path, size, hasher, is_resumed: size > 0 });
            }
            hasher.update(&piece[..count]);
            size += count as u64;
        }
    }

    fn append(&mut self, bytes: &[u8], whole: u64) -> Result<(), Error> {
        self.file.write_all(bytes).map_err(|source| match source.kind() {
            ErrorKind::StorageFull | ErrorKind::QuotaExceeded => {
                let folder = self.path.parent().unwrap_or(&self.path);
                no_space(folder, whole - self.size, Space::at(folder).map_or(0, |space| space.free))
            }
            _ => cannot_write(&self.path, source),
        })?;
        self.hasher.update(bytes);
        self.size += bytes.len() as u64;
        Ok(())
    }

    /// From the beginning: the answer is the whole file.
    fn clear(&mut self, hash: &ContentHash, whole: u64) -> Result<(), Error> {
        let cleared = self.file.set_len(0).and_then(|()| self.file.seek(SeekFrom::Start(0)));
        cleared.map_err(|source| cannot_write(&self.path, source))?;
        (self.size, self.hasher, self.is_resumed) = (0, hash.hasher(whole), false);
        Ok(())
    }

    fn remove(&self) {
        std::fs::remove_file(&self.path).ok();
    }

    fn finish(self) -> Result<ContentHash, Error> {
        self.file.sync_all().map_err(|source| cannot_write(&self.path, source))?;
        Ok(self.hasher.finish())
    }
}

/// Whether a blob is there with its whole size. Its name is given only to what was checked.
pub fn is_whole(blob: &Path, size: u64) -> bool {
    std::fs::metadata(blob).is_ok_and(|meta| meta.is_file() && meta.len() == size)
}

/// Where a content lies while it is fetched; an earlier process may have left a part of it there.
pub fn incomplete(blob: &Path) -> PathBuf {
    let mut name = blob.as_os_str().to_owned();
    name.push(".incomplete");
    name.into()
}

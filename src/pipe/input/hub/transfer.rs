//! One content on its way from the hub or a bucket to the cache: resumed where it broke, checked against the hash that is known,
//! and under its name in the cache only when it is whole.
//!
//! Several files on their way to the cache.

use std::fs::File;
use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use pipe_spec::text::human_bytes;

use super::cache::{Cache, ContentHash, Hasher, Listing, RemoteFile, cannot_write, make_parent, resolve_path};
use super::client::{Failure, Opened, Remote, RequestError, Retries, failure, no_space};
use super::{Address, Hub};
use crate::error::Error;
use crate::report::FetchProgress;
use crate::system::files::{Space, nearest};

const PIECE: usize = 256 << 10;

/// A content without a hash is written to the disk after so many bytes. What lies before the last such mark of a part survives a
/// power cut.
const SYNCED: u64 = 64 << 20;

/// Bytes of a file that decides what else is needed.
const LARGEST_SMALL_FILE: u64 = 64 << 20;

pub struct Transfer<'a> {
    pub missing: &'a MissingFile,
    pub progress: &'a FetchProgress,
    /// Which of the files that are fetched together it is.
    pub index: usize,
    /// Set where another of them failed.
    pub stop: &'a AtomicBool,
}

/// The part of a file that has been downloaded so far.
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
        let MissingFile { cache, address, commit, file, .. } = self.missing;
        let waits = || self.progress.note(&format!("waiting: another process fetches {} of {address}", file.name));
        let _lock = cache.lock(address, &file.hash, waits)?;
        let blob = cache.blob(address, &file.hash);
        if !is_whole(&blob, file.size) {
            self.fetch(&blob)?;
        }
        self.progress.at(self.index, file.size);
        Ok(cache.link(address, commit, &file.name, &file.hash)?)
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
            if file.hash.is(found.as_deref()) {
                return Ok(std::fs::rename(&path, blob).map_err(|source| cannot_write(&path, source))?);
            }
            std::fs::remove_file(&path).map_err(|source| cannot_write(&path, source))?;
            if !is_resumed {
                return Err(self.wrong(&found.unwrap_or_default()).into());
            }
            // A part that an earlier process left may have been damaged since.
            self.progress.note(&format!("{} did not match its hash; fetching it again from its beginning", file.name));
        }
    }

    /// Receives what is missing. A break is followed by another try, from where it broke.
    fn receive(&self, partial: &mut Partial) -> Result<(), Failure> {
        let MissingFile { remote, address, commit, file, .. } = self.missing;
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
                return Err(failure(error, remote, address, Some(&file.name)));
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
        let MissingFile { remote, file, .. } = self.missing;
        let opened = remote.open(path, file.hash.etag(), partial.size).map_err(TransferError::Request)?;
        let Opened { continues, is_unhashed, mut body } = opened;
        if is_unhashed {
            partial.hasher = Hasher::None;
        }
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
        let MissingFile { remote, address, file, .. } = self.missing;
        let of = if matches!(**remote, Remote::Hub(_)) { "the hub" } else { "the bucket" };
        Error::WrongContent {
            of,
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
        if hasher.is_none() && length <= whole {
            file.set_len(length.saturating_sub(1) / SYNCED * SYNCED).map_err(fail)?;
        }
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
        let before = self.size;
        self.size += bytes.len() as u64;
        if self.hasher.is_none() && before / SYNCED != self.size / SYNCED {
            self.file.sync_data().map_err(|source| cannot_write(&self.path, source))?;
        }
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

    fn finish(self) -> Result<Option<String>, Error> {
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

/// Files that are fetched at the same time.
const WORKERS: usize = 4;

/// A file that is to be fetched.
#[derive(Clone, Debug)]
pub struct MissingFile {
    pub(super) remote: Arc<Remote>,
    pub(super) cache: Cache,
    pub(super) address: Address,
    pub(super) commit: String,
    pub(super) file: RemoteFile,
}

/// Why a file was not fetched, and whether it belongs to a data set.
pub struct FetchError {
    pub is_data: bool,
    pub failure: Failure,
}

impl Hub {
    /// Fetches files, several at a time. After a failure the next call continues.
    pub fn fetch(&self, missing: &[MissingFile]) -> Result<(), FetchError> {
        if missing.is_empty() {
            return Ok(());
        }
        let done = |one: &MissingFile| {
            let blob = one.cache.blob(&one.address, &one.file.hash);
            let length = |path: &Path| std::fs::metadata(path).map_or(0, |meta| meta.len());
            length(&blob).max(length(&incomplete(&blob))).min(one.file.size)
        };
        let sizes: Vec<(u64, u64)> = missing.iter().map(|one| (done(one), one.file.size)).collect();
        for (cache, is_data) in [(&self.cache, false), (&self.buckets, true)] {
            let own = missing.iter().zip(&sizes).filter(|(one, _)| one.cache == *cache);
            let needed = own.map(|(_, (done, size))| size - done).sum();
            check_space(cache, needed).map_err(|error| FetchError { is_data, failure: error.into() })?;
        }
        let mut names: Vec<String> = missing.iter().map(|one| one.address.to_string()).collect();
        names.dedup();
        self.progress.begin(&names.join(", "), sizes);
        let fetched = fetch_together(missing, &self.progress);
        self.progress.end(fetched.is_ok());
        fetched
    }

    /// A small file that decides what else is needed.
    pub(super) fn fetch_now(
        &self,
        remote: &Arc<Remote>,
        address: &Address,
        listing: &Listing,
        name: &str,
    ) -> Result<(), Failure> {
        let missing = self.missing(remote, address, listing, &[name.to_owned()])?;
        if let Some(large) = missing.iter().find(|missing| missing.file.size > LARGEST_SMALL_FILE) {
            let (name, size) = (format!("{name} of {address}"), human_bytes(large.file.size));
            return Err(Error::HubFileTooLarge { name, size, most: human_bytes(LARGEST_SMALL_FILE) }.into());
        }
        fetch_together(&missing, &self.progress).map_err(|error| error.failure)
    }

    /// Those of the files that the cache does not have.
    pub(super) fn missing(
        &self,
        remote: &Arc<Remote>,
        address: &Address,
        listing: &Listing,
        names: &[String],
    ) -> Result<Vec<MissingFile>, Failure> {
        let cache = self.cache_of(address);
        let folder = cache.snapshot(address, &listing.commit);
        let absent = names.iter().filter(|name| !folder.join(name).is_file());
        let missing = |name: &String| {
            let file = listing.file(remote, address, name)?;
            let (remote, cache, commit) = (remote.clone(), cache.clone(), listing.commit.clone());
            Ok(MissingFile { remote, cache, address: address.clone(), commit, file })
        };
        absent.map(missing).collect()
    }
}

fn check_space(cache: &Cache, needed: u64) -> Result<(), Error> {
    match Space::at(nearest(&cache.folder)) {
        Some(space) if space.free < needed => Err(no_space(&cache.folder, needed, space.free)),
        _ => Ok(()),
    }
}

/// The first failure ends the others, too.
fn fetch_together(missing: &[MissingFile], progress: &FetchProgress) -> Result<(), FetchError> {
    let (next, stop, failed) = (AtomicUsize::new(0), AtomicBool::new(false), Mutex::new(None));
    let work = || {
        while !stop.load(Ordering::Relaxed) {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some(missing) = missing.get(index) else { return };
            if let Err(failure) = (Transfer { missing, progress, index, stop: &stop }).run() {
                // Stop the others after this failure is stored, so that it stays the first.
                let is_data = missing.address.is_data;
                failed.lock().expect("no worker panics with it").get_or_insert(FetchError { is_data, failure });
                stop.store(true, Ordering::SeqCst);
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..WORKERS.min(missing.len()) {
            scope.spawn(work);
        }
    });
    failed.into_inner().expect("no worker panics with it").map_or(Ok(()), Err)
}

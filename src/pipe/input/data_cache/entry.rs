//! The cache on disk: a folder for each prepared file, whole or absent.
//!
//! `<key>/` is an entry, `<key>.tmp/` one that is being written, `<key>.lock` is locked for writing by who writes it and for
//! reading by who uses it. Everything may be deleted at any time: what is missing is
//! made again.

use std::ffi::OsStr;
use std::fs::{File, TryLockError};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::system::digests::cache_folder;
use crate::system::files;
use crate::system::interrupt::Watch;

/// Entries that were unused for this long are removed.
const MAX_UNUSED: Duration = Duration::from_secs(30 * 24 * 3600);
/// Between two tries of a lock that another process holds.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// The record of an entry, which is written last of all.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// The sources of the entry, for people.
    pub source: String,
    /// The name of the file with the rows.
    pub file: String,
    /// Bytes of that file.
    pub size: u64,
    /// Bytes of all files.
    pub bytes: u64,
}

const MANIFEST: &str = "entry.json";

pub struct Cache {
    folder: PathBuf,
}

/// An entry that stays as long as this is held.
#[derive(Debug)]
pub struct EntryGuard {
    pub folder: PathBuf,
    pub manifest: Manifest,
    _locked: File,
}

impl Cache {
    pub fn find() -> Result<Self, Error> {
        let folder = cache_folder().ok_or(Error::NoCache)?;
        files::check_utf8("the cache folder", &folder)?;
        let cache = Self { folder: files::absolute(&folder.join("data")) };
        std::fs::create_dir_all(&cache.folder).map_err(|source| cache.fail(source))?;
        Ok(cache)
    }

    /// Where there is one already.
    fn existing() -> Option<Self> {
        let folder = files::absolute(&cache_folder()?.join("data"));
        folder.is_dir().then_some(Self { folder })
    }

    #[cfg(test)]
    pub fn at(folder: &Path) -> Self {
        std::fs::create_dir_all(folder).unwrap();
        Self { folder: folder.to_owned() }
    }

    pub fn folder(&self) -> &Path {
        &self.folder
    }

    pub fn has(&self, key: &str) -> bool {
        read(&self.folder.join(key)).is_some()
    }

    /// The entry of `key`, made by `make` in a temporary folder if it is not there. `wait` is called once if another process
    /// is at it.
    pub fn get(
        &self,
        key: &str,
        watch: &Watch,
        wait: impl Fn(),
        make: impl Fn(&Path) -> Result<Manifest, Error>,
    ) -> Result<EntryGuard, Error> {
        let mut waited = false;
        loop {
            watch.check()?;
            if let Some(held) = self.hold(key)? {
                return Ok(held);
            }
            match self.lock(key)? {
                Some(_writer) if self.has(key) => {}
                Some(_writer) => {
                    self.sweep(key);
                    self.write(key, &make).inspect_err(|_| {
                        std::fs::remove_file(self.lock_path(key)).ok();
                    })?;
                }
                None => {
                    if !waited {
                        wait();
                        waited = true;
                    }
                    std::thread::sleep(POLL_INTERVAL);
                }
            }
        }
    }

    /// The entry, if it exists, locked against removal.
    fn hold(&self, key: &str) -> Result<Option<EntryGuard>, Error> {
        let folder = self.folder.join(key);
        if read(&folder).is_none() {
            return Ok(None);
        }
        let locked = self.open_lock(key)?;
        if locked.try_lock_shared().is_err() || !self.is_current(key, &locked) {
            return Ok(None);
        }
        let Some(manifest) = read(&folder) else { return Ok(None) };
        // Its age counts from its last use. On a disk that takes no times it is made again some day.
        File::open(folder.join(MANIFEST)).and_then(|file| file.set_modified(SystemTime::now())).ok();
        Ok(Some(EntryGuard { folder, manifest, _locked: locked }))
    }

    /// The lock for writing; nothing if another process has it.
    fn lock(&self, key: &str) -> Result<Option<File>, Error> {
        let file = self.open_lock(key)?;
        match file.try_lock() {
            Ok(()) => Ok(self.is_current(key, &file).then_some(file)),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(source)) => Err(self.fail(source)),
        }
    }

    fn open_lock(&self, key: &str) -> Result<File, Error> {
        let path = self.lock_path(key);
        files::open_lock(&path).map_err(|source| Error::DataCache { path, source })
    }

    fn lock_path(&self, key: &str) -> PathBuf {
        self.folder.join(format!("{key}.lock"))
    }

    /// Whether a lock file is still the one that others find, and was not removed before it was locked.
    fn is_current(&self, key: &str, locked: &File) -> bool {
        let inode = |meta: std::io::Result<std::fs::Metadata>| meta.ok().map(|meta| (meta.dev(), meta.ino()));
        let there = inode(std::fs::metadata(self.lock_path(key)));
        there.is_some() && there == inode(locked.metadata())
    }

    /// Writes an entry: whole under its name, or nothing of it. The lock is held.
    fn write(&self, key: &str, make: &impl Fn(&Path) -> Result<Manifest, Error>) -> Result<(), Error> {
        let (entry, temporary) = (self.folder.join(key), Temporary(self.folder.join(format!("{key}.tmp"))));
        remove(&temporary.0, &temporary.0).map_err(|source| self.fail(source))?;
        remove(&entry, &temporary.0).map_err(|source| self.fail(source))?;
        std::fs::create_dir(&temporary.0).map_err(|source| self.fail(source))?;
        let manifest = make(&temporary.0)?;
        files::write_json(&temporary.0.join(MANIFEST), &manifest)?;
        let finished = File::open(&temporary.0)
            .and_then(|folder| folder.sync_all())
            .and_then(|()| std::fs::rename(&temporary.0, &entry))
            .and_then(|()| File::open(&self.folder)?.sync_all());
        finished.map_err(|source| self.fail(source))
    }

    /// Removes leftovers of killed processes and entries that were unused for long, except `keep`.
    fn sweep(&self, keep: &str) {
        for key in self.keys().iter().filter(|key| *key != keep) {
            // Who cannot be locked is in use.
            let Ok(Some(_writer)) = self.lock(key) else { continue };
            let (entry, temporary) = (self.folder.join(key), self.folder.join(format!("{key}.tmp")));
            let removed = if is_old(&entry) { self.remove(key) } else { remove(&temporary, &temporary) };
            if let Err(error) = removed {
                tracing::debug!("cannot remove {}: {error}", entry.display());
            }
        }
    }

    /// Removes all of an entry. Its lock is held.
    fn remove(&self, key: &str) -> std::io::Result<()> {
        let (entry, temporary) = (self.folder.join(key), self.folder.join(format!("{key}.tmp")));
        remove(&temporary, &temporary)?;
        remove(&entry, &temporary)?;
        std::fs::remove_file(self.lock_path(key))
    }

    /// Keys of which there is something.
    fn keys(&self) -> Vec<String> {
        let names = std::fs::read_dir(&self.folder).into_iter().flatten().flatten();
        let mut keys: Vec<String> = names
            .filter_map(|entry| entry.file_name().into_string().ok())
            .map(|name| name.trim_end_matches(".lock").trim_end_matches(".tmp").to_owned())
            .filter(|key| key.len() == KEY_LENGTH && key.bytes().all(|byte| byte.is_ascii_hexdigit()))
            .collect();
        keys.sort_unstable();
        keys.dedup();
        keys
    }

    fn fail(&self, source: std::io::Error) -> Error {
        Error::DataCache { path: self.folder.clone(), source }
    }
}

pub const KEY_LENGTH: usize = 32;

/// An entry as it lies on disk.
pub struct CachedEntry {
    pub key: String,
    /// The sources of the entry, for people.
    pub source: String,
    pub bytes: u64,
    pub used: SystemTime,
}

/// The complete entries.
pub fn entries() -> Vec<CachedEntry> {
    let Some(cache) = Cache::existing() else { return Vec::new() };
    let entry = |key: String| {
        let folder = cache.folder.join(&key);
        let Manifest { source, bytes, .. } = read(&folder)?;
        let used = std::fs::metadata(folder.join(MANIFEST)).and_then(|meta| meta.modified()).ok()?;
        Some(CachedEntry { key, source, bytes, used })
    };
    cache.keys().into_iter().filter_map(entry).collect()
}

/// Whether a process reads or writes an entry now.
pub fn is_used(key: &str) -> bool {
    Cache::existing().is_some_and(|cache| !matches!(cache.lock(key), Ok(Some(_))))
}

/// Removes an entry. False where a process uses it.
pub fn remove_entry(key: &str) -> Result<bool, Error> {
    let Some(cache) = Cache::existing() else { return Ok(true) };
    let Some(_writer) = cache.lock(key)? else { return Ok(false) };
    cache.remove(key).map_err(|source| cache.fail(source))?;
    Ok(true)
}

/// A folder that is removed unless it was renamed.
struct Temporary(PathBuf);

impl Drop for Temporary {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).ok();
    }
}

/// The manifest of a complete entry: its rows may have been deleted.
fn read(folder: &Path) -> Option<Manifest> {
    let manifest: Manifest = serde_json::from_slice(&files::read_own(&folder.join(MANIFEST)).ok()?).ok()?;
    // The rows lie beside it.
    if Path::new(&manifest.file).file_name() != Some(OsStr::new(&manifest.file)) {
        return None;
    }
    let size = std::fs::metadata(folder.join(&manifest.file)).ok()?.len();
    (size == manifest.size).then_some(manifest)
}

/// Removes a folder under the name `temporary`, so that half of it never looks whole.
fn remove(folder: &Path, temporary: &Path) -> std::io::Result<()> {
    if !folder.exists() {
        return Ok(());
    }
    if folder != temporary {
        std::fs::rename(folder, temporary)?;
    }
    std::fs::remove_dir_all(temporary)
}

fn is_old(entry: &Path) -> bool {
    let Ok(used) = std::fs::metadata(entry.join(MANIFEST)).and_then(|meta| meta.modified()) else { return true };
    used.elapsed().is_ok_and(|age| age > MAX_UNUSED)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    fn cache(name: &str) -> Cache {
        Cache::at(&std::env::temp_dir().join(format!("pipe-cache-{name}-{}", std::process::id())))
    }

    fn key(number: u8) -> String {
        format!("{number:032x}")
    }

    fn fill(folder: &Path) -> Result<Manifest, Error> {
        std::fs::write(folder.join("data.jsonl"), "{}\n").unwrap();
        Ok(Manifest { source: "a".into(), file: "data.jsonl".into(), size: 3, bytes: 3 })
    }

    #[test]
    fn an_entry_is_made_once_and_again_where_it_is_damaged() {
        let cache = cache("once");
        let made = AtomicU32::new(0);
        let get = || {
            let make = |folder: &Path| {
                made.fetch_add(1, Ordering::Relaxed);
                fill(folder)
            };
            cache.get(&key(1), &Watch::default(), || {}, make).unwrap()
        };
        drop(get());
        let held = get();
        assert_eq!(made.load(Ordering::Relaxed), 1);
        drop(held);
        std::fs::write(cache.folder.join(key(1)).join("data.jsonl"), "").unwrap();
        get();
        assert_eq!(made.load(Ordering::Relaxed), 2);
        std::fs::remove_dir_all(&cache.folder).unwrap();
    }

    #[test]
    fn what_fails_or_panics_leaves_nothing() {
        let cache = cache("fails");
        let get = |make: fn(&Path) -> Result<Manifest, Error>| cache.get(&key(1), &Watch::default(), || {}, make);
        let fails = |folder: &Path| {
            fill(folder)?;
            Err(Error::Interrupted)
        };
        assert!(get(fails).is_err());
        let panics = |folder: &Path| {
            fill(folder)?;
            panic!("no")
        };
        assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| get(panics))).is_err());
        let names =
            std::fs::read_dir(&cache.folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        // The lock file stays after a panic, unlocked.
        assert!(names.eq([format!("{}.lock", key(1))]));
        std::fs::remove_dir_all(&cache.folder).unwrap();
    }

    #[test]
    fn many_at_once_make_one_entry() {
        let cache = cache("many");
        let made = AtomicU32::new(0);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    let make = |folder: &Path| {
                        made.fetch_add(1, Ordering::Relaxed);
                        std::thread::sleep(Duration::from_millis(20));
                        fill(folder)
                    };
                    let held = cache.get(&key(1), &Watch::default(), || {}, make).unwrap();
                    assert_eq!(std::fs::read_to_string(held.folder.join("data.jsonl")).unwrap(), "{}\n");
                });
            }
        });
        assert_eq!(made.load(Ordering::Relaxed), 1);
        std::fs::remove_dir_all(&cache.folder).unwrap();
    }

    #[test]
    fn old_entries_and_leftovers_go_and_those_in_use_stay() {
        let cache = cache("old");
        let get = |number: u8| cache.get(&key(number), &Watch::default(), || {}, fill).unwrap();
        let age = |number: u8| {
            let file = File::options().write(true).open(cache.folder.join(key(number)).join(MANIFEST)).unwrap();
            file.set_modified(SystemTime::now() - MAX_UNUSED - Duration::from_secs(60)).unwrap();
        };
        (1..=3).for_each(|number| drop(get(number)));
        let used = get(2);
        [1, 2].into_iter().for_each(age);
        std::fs::create_dir(cache.folder.join(format!("{}.tmp", key(7)))).unwrap();
        drop(get(4));
        let there = |number: u8| cache.folder.join(key(number)).exists();
        assert_eq!([1, 2, 3, 4].map(there), [false, true, true, true]);
        assert!(!cache.folder.join(format!("{}.tmp", key(7))).exists());
        drop(used);
        std::fs::remove_dir_all(&cache.folder).unwrap();
    }
}

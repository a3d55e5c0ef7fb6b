//! Content hashes of files, remembered by path, size and time, so that an unchanged gigabyte is not read again.

use std::collections::BTreeMap;
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::error::Error;

#[derive(Default)]
pub struct Digests {
    file: Option<PathBuf>,
    known: BTreeMap<String, KnownDigest>,
    changed: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct KnownDigest {
    size: u64,
    modified: i128,
    inode: u64,
    digest: String,
}

/// Nanoseconds since the last write before a digest is cached.
const MIN_AGE: i128 = 100_000_000;

impl Digests {
    /// What is remembered under `PIPE_CACHE`, or the user's cache folder. A file that cannot be read is no loss.
    pub fn load() -> Self {
        let file = cache_folder().map(|folder| folder.join("digests.json"));
        let known = file
            .as_ref()
            .and_then(|file| std::fs::read(file).ok())
            .and_then(|bytes| serde_json::from_slice(&bytes).ok())
            .unwrap_or_default();
        Self { file, known, changed: false }
    }

    pub fn hash(&mut self, path: &Path) -> Result<String, Error> {
        let read_error = |source| Error::Read { path: path.to_owned(), source };
        let path = path.canonicalize().map_err(read_error)?;
        let meta = std::fs::metadata(&path).map_err(read_error)?;
        if let Some(known) = self.cached(&path, &meta) {
            return Ok(known.digest.clone());
        }
        let mut hasher = blake3::Hasher::new();
        hasher.update_mmap_rayon(&path).map_err(read_error)?;
        let digest = hasher.finalize().to_hex().to_string();
        // A file that was just written may be written again within the resolution of its time stamp.
        if modified(&meta) + MIN_AGE < (crate::clock::now() * 1e9) as i128 {
            let known =
                KnownDigest { size: meta.len(), modified: modified(&meta), inode: meta.ino(), digest: digest.clone() };
            self.known.insert(path.to_string_lossy().into_owned(), known);
            self.changed = true;
        }
        Ok(digest)
    }

    /// Bytes that have to be read for the hash of a file: none where it is remembered.
    pub fn to_read(&self, path: &Path) -> u64 {
        let Ok(path) = path.canonicalize() else { return 0 };
        let Ok(meta) = std::fs::metadata(&path) else { return 0 };
        if self.cached(&path, &meta).is_some() { 0 } else { meta.len() }
    }

    fn cached(&self, path: &Path, meta: &Metadata) -> Option<&KnownDigest> {
        let known = self.known.get(path.to_string_lossy().as_ref())?;
        ((known.size, known.modified, known.inode) == (meta.len(), modified(meta), meta.ino())).then_some(known)
    }

    /// Remembers what was learned. Not being able to is no error: the next time takes longer.
    pub fn save(&self) {
        let Some(file) = self.file.as_ref().filter(|_| self.changed) else { return };
        let saved = file.parent().map(std::fs::create_dir_all).transpose().is_ok()
            && serde_json::to_vec(&self.known).is_ok_and(|bytes| crate::files::write_whole(file, &bytes).is_ok());
        if !saved {
            tracing::debug!("cannot remember file hashes in {}", file.display());
        }
    }
}

/// Nanoseconds.
fn modified(meta: &Metadata) -> i128 {
    i128::from(meta.mtime()) * 1_000_000_000 + i128::from(meta.mtime_nsec())
}

pub fn cache_folder() -> Option<PathBuf> {
    let var = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    var("PIPE_CACHE")
        .or_else(|| var("XDG_CACHE_HOME").map(|home| home.join("pipe")))
        .or_else(|| var("HOME").map(|home| home.join(".cache/pipe")))
}

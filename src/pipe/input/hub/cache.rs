//! The hub's cache on this machine, in the layout of `huggingface_hub`, so that each finds what the other fetched:
//! ```text
//! models--owner--name/
//!   refs/main                        the commit that the branch named when it was fetched
//!   blobs/<hash>                     contents, named by the hub's hash of them; <hash>.incomplete while they are fetched
//!   snapshots/<commit>/config.json   a link to a blob
//! .locks/models--owner--name/<hash>.lock   held (flock) by the process that fetches this content
//! ```

use std::fs::{File, TryLockError};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::Duration;

use hf_hub::CacheRepo;

use super::address::{Address, is_commit};
use super::listing::ContentHash;
use crate::error::Error;
use crate::system::files::write_whole;

/// How often to try a lock that another process holds.
const LOCK_POLL: Duration = Duration::from_millis(100);

#[derive(Clone)]
pub struct Cache {
    pub folder: PathBuf,
}

impl Cache {
    /// The folder of a repository.
    pub fn repository(&self, address: &Address) -> PathBuf {
        self.folder.join(address.repo("main").folder_name())
    }

    /// The folder of one commit of it.
    pub fn snapshot(&self, address: &Address, commit: &str) -> PathBuf {
        self.repo(address).pointer_path(commit)
    }

    pub fn blob(&self, address: &Address, hash: &ContentHash) -> PathBuf {
        self.repo(address).blob_path(hash.as_str())
    }

    fn repo(&self, address: &Address) -> CacheRepo {
        hf_hub::Cache::new(self.folder.clone()).repo(address.repo("main"))
    }

    /// The commit that a revision named when it was fetched.
    pub fn commit(&self, address: &Address) -> Option<String> {
        if is_commit(&address.revision) {
            return Some(address.revision.clone());
        }
        let commit = std::fs::read_to_string(self.reference(address)).ok()?;
        Some(commit.trim().to_owned()).filter(|commit| is_commit(commit))
    }

    /// Writes down which commit a branch or tag names.
    pub fn set_commit(&self, address: &Address, commit: &str) -> Result<(), Error> {
        if address.revision == commit || self.commit(address).as_deref() == Some(commit) {
            return Ok(());
        }
        let path = self.reference(address);
        make_parent(&path)?;
        write_whole(&path, commit.as_bytes()).map_err(|error| match error {
            Error::Write { path, source } => cannot_write(&path, source),
            other => other,
        })
    }

    fn reference(&self, address: &Address) -> PathBuf {
        self.repository(address).join("refs").join(&address.revision)
    }

    /// Makes a blob that is whole a file of a commit.
    pub fn link(&self, address: &Address, commit: &str, name: &str, hash: &ContentHash) -> Result<(), Error> {
        let path = self.snapshot(address, commit).join(name);
        let depth = 2 + name.matches('/').count();
        let target = PathBuf::from("../".repeat(depth)).join("blobs").join(hash.as_str());
        if path.is_file() && std::fs::read_link(&path).is_ok_and(|there| there == target) {
            return Ok(());
        }
        make_parent(&path)?;
        // A link cannot be written over; another takes its place in one step.
        let temporary = path.with_file_name(format!(".{}.{}.tmp", hash.as_str(), std::process::id()));
        std::fs::remove_file(&temporary).ok();
        let made = symlink(&target, &temporary).and_then(|()| std::fs::rename(&temporary, &path));
        made.map_err(|source| cannot_write(&path, source))
    }

    /// Waits until no other process fetches this content. `waits` is called once where one does.
    pub fn lock(&self, address: &Address, hash: &ContentHash, mut waits: impl FnMut()) -> Result<Lock, Error> {
        let name = address.repo("main").folder_name();
        let path = self.folder.join(".locks").join(name).join(format!("{}.lock", hash.as_str()));
        make_parent(&path)?;
        let fail = |source| cannot_write(&path, source);
        let mut reported = false;
        loop {
            // Others of the same group may wait on it as well.
            let file = File::options().create(true).append(true).mode(0o664).open(&path).map_err(fail)?;
            match file.try_lock() {
                // The hub's own tools remove a lock that they have done with: one that has no name locks nothing.
                Ok(()) if file.metadata().is_ok_and(|meta| meta.nlink() > 0) => return Ok(Lock(Some(file))),
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => {
                    if !reported {
                        waits();
                        reported = true;
                    }
                    std::thread::sleep(LOCK_POLL);
                }
                // A file system without locks: contents are written under names of their own all the same.
                Err(TryLockError::Error(error)) if error.kind() == std::io::ErrorKind::Unsupported => {
                    return Ok(Lock(None));
                }
                Err(TryLockError::Error(source)) => return Err(fail(source)),
            }
        }
    }
}

/// Held while a content is fetched.
pub struct Lock(#[expect(dead_code, reason = "closing the file gives the lock back")] Option<File>);

pub fn make_parent(path: &Path) -> Result<(), Error> {
    let Some(folder) = path.parent() else { return Ok(()) };
    std::fs::create_dir_all(folder).map_err(|source| cannot_write(folder, source))
}

pub fn cannot_write(path: &Path, source: std::io::Error) -> Error {
    Error::HubCache { path: path.to_owned(), source }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_cache(name: &str, test: impl FnOnce(&Cache, &Address)) {
        let folder = std::env::temp_dir().join(format!("pipe-hub-{name}-{}", std::process::id()));
        let cache = Cache { folder: folder.clone() };
        test(&cache, &Address::of_model("some-org/tiny").unwrap());
        std::fs::remove_dir_all(folder).ok();
    }

    #[test]
    fn a_branch_names_a_commit() {
        with_cache("refs", |cache, address| {
            let (first, second) = ("1".repeat(40), "2".repeat(40));
            assert_eq!(cache.commit(address), None);
            cache.set_commit(address, &first).unwrap();
            cache.set_commit(address, &second).unwrap();
            assert_eq!(cache.commit(address).as_deref(), Some(second.as_str()));
            let pinned = Address { revision: first.clone(), ..address.clone() };
            assert_eq!(cache.commit(&pinned), Some(first));
            for broken in ["", "0abc", "../.."] {
                std::fs::write(cache.reference(address), broken).unwrap();
                assert_eq!(cache.commit(address), None, "{broken}");
            }
        });
    }

    #[test]
    fn links_lead_to_their_blob_from_any_depth() {
        with_cache("links", |cache, address| {
            let hash = ContentHash::parse(&"a".repeat(40)).unwrap();
            let blob = cache.blob(address, &hash);
            make_parent(&blob).unwrap();
            std::fs::write(&blob, "x").unwrap();
            for name in ["config.json", "a/b/c.json"] {
                cache.link(address, "commit", name, &hash).unwrap();
                cache.link(address, "commit", name, &hash).unwrap();
                assert_eq!(std::fs::read(cache.snapshot(address, "commit").join(name)).unwrap(), b"x");
            }
            let left = std::fs::read_dir(cache.snapshot(address, "commit")).unwrap().count();
            assert_eq!(left, 2);
        });
    }

    #[test]
    fn one_at_a_time() {
        with_cache("locks", |cache, address| {
            let hash = ContentHash::parse(&"b".repeat(64)).unwrap();
            let held = cache.lock(address, &hash, || panic!("the lock is free")).unwrap();
            let (said, says) = std::sync::mpsc::channel();
            let (other, there, content) = (cache.clone(), address.clone(), hash.clone());
            let waiting =
                std::thread::spawn(move || drop(other.lock(&there, &content, || said.send(()).unwrap()).unwrap()));
            says.recv().unwrap();
            drop(held);
            waiting.join().unwrap();
        });
    }
}

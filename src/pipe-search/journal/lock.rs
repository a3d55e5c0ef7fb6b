//! The lock that Optuna takes by default before it writes: a symbolic link beside the journal, named after it with
//! `.lock`. A link that stays the same for longer than the grace period was left by a process that died, and is
//! removed.
//!
//! We also hold a `flock` on the journal meanwhile, and our links are told from those of Optuna by a `/./`. So a link
//! of ours that is found while its `flock` is free was left by a process that died, and nobody waits for the grace
//! period.

use std::ffi::OsString;
use std::fs::{self, File, TryLockError};
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::process;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

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

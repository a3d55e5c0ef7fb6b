//! Who drives a run: a lock of the kernel's, which dies with its owner.

use std::fs::{File, TryLockError};
use std::io::Write;
use std::time::Duration;

use pipe_spec::RunFolder;

use crate::error::Error;

/// How often the lock is tried, and how long is waited in between.
const TRIES: u32 = 20;
const PAUSE: Duration = Duration::from_millis(10);

pub struct Owner {
    _locked: File,
}

impl Owner {
    pub fn take(folder: &RunFolder, id: &str) -> Result<Self, Error> {
        let path = folder.owner();
        let write_error = |source| Error::Write { path: path.clone(), source };
        let mut file = File::options().create(true).truncate(false).write(true).open(&path).map_err(write_error)?;
        let mut tries = 0;
        loop {
            match file.try_lock() {
                Ok(()) => break,
                // Somebody who only asks holds it for a moment.
                Err(TryLockError::WouldBlock) if tries < TRIES => {
                    tries += 1;
                    std::thread::sleep(PAUSE);
                }
                Err(TryLockError::WouldBlock) => return Err(Error::RunBusy { id: id.to_owned() }),
                Err(TryLockError::Error(source)) => return Err(write_error(source)),
            }
        }
        file.set_len(0).and_then(|()| writeln!(file, "{}", std::process::id())).map_err(write_error)?;
        Ok(Self { _locked: file })
    }

    /// Whether some living process drives the run. Those who ask do not take each other for one.
    pub fn exists(folder: &RunFolder) -> bool {
        File::open(folder.owner()).is_ok_and(|file| matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock)))
    }

    /// The process that drives the run.
    pub fn pid(folder: &RunFolder) -> Option<i32> {
        let pid = std::fs::read_to_string(folder.owner()).ok()?.trim().parse().ok()?;
        // Only while the lock is held is the number that of a living owner.
        Self::exists(folder).then_some(pid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn asking_is_not_owning() {
        let folder = RunFolder::new(std::env::temp_dir().join(format!("pipe-owner-{}", std::process::id())));
        std::fs::create_dir_all(folder.path()).unwrap();
        std::fs::write(folder.owner(), "").unwrap();
        std::thread::scope(|scope| {
            let asked = scope.spawn(|| (0..2000).any(|_| Owner::exists(&folder)));
            assert!((0..2000).all(|_| !Owner::exists(&folder)) && !asked.join().unwrap());
            scope.spawn(|| (0..20_000).filter(|_| Owner::exists(&folder)).count());
            (0..200).for_each(|_| drop(Owner::take(&folder, "x").unwrap()));
            let owner = Owner::take(&folder, "x").unwrap();
            assert!(Owner::exists(&folder) && Owner::pid(&folder) == i32::try_from(std::process::id()).ok());
            assert!(Owner::take(&folder, "x").is_err());
            drop(owner);
        });
        assert!(!Owner::exists(&folder));
        std::fs::remove_dir_all(folder.path()).unwrap();
    }
}

//! Who drives a run: a lock of the kernel's, which dies with its owner.

use std::fs::{File, TryLockError};
use std::io::Write;

use pipe_spec::RunFolder;

use crate::error::Error;

pub struct Owner {
    _locked: File,
}

impl Owner {
    pub fn take(folder: &RunFolder, id: &str) -> Result<Self, Error> {
        let path = folder.owner();
        let write_error = |source| Error::Write { path: path.clone(), source };
        let mut file = File::options().create(true).truncate(false).write(true).open(&path).map_err(write_error)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(Error::RunBusy { id: id.to_owned() }),
            Err(TryLockError::Error(source)) => return Err(write_error(source)),
        }
        file.set_len(0).and_then(|()| writeln!(file, "{}", std::process::id())).map_err(write_error)?;
        Ok(Self { _locked: file })
    }

    /// Whether some living process drives the run.
    pub fn exists(folder: &RunFolder) -> bool {
        File::open(folder.owner()).is_ok_and(|file| matches!(file.try_lock(), Err(TryLockError::WouldBlock)))
    }

    /// The process that drives the run.
    pub fn pid(folder: &RunFolder) -> Option<i32> {
        let pid = std::fs::read_to_string(folder.owner()).ok()?.trim().parse().ok()?;
        // Only while the lock is held is the number that of a living owner.
        Self::exists(folder).then_some(pid)
    }
}

//! Who drives a run: a lock of the kernel's, which dies with its owner.

use std::fs::{File, TryLockError};

use pipe_spec::RunFolder;

use crate::error::Error;

pub struct Owner {
    _locked: File,
}

impl Owner {
    pub fn take(folder: &RunFolder, id: &str) -> Result<Self, Error> {
        let path = folder.owner();
        let file = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&path)
            .map_err(|source| Error::Write { path: path.clone(), source })?;
        match file.try_lock() {
            Ok(()) => Ok(Self { _locked: file }),
            Err(TryLockError::WouldBlock) => Err(Error::RunBusy { id: id.to_owned() }),
            Err(TryLockError::Error(source)) => Err(Error::Write { path, source }),
        }
    }

    /// Whether some living process drives the run.
    pub fn exists(folder: &RunFolder) -> bool {
        File::open(folder.owner()).is_ok_and(|file| matches!(file.try_lock(), Err(TryLockError::WouldBlock)))
    }
}

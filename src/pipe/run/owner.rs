//! The owner of a run: a kernel lock, which is released when its process ends.

use std::fs::{File, TryLockError};
use std::io::Write;
use std::time::Duration;

use pipe_spec::RunFolder;

use crate::error::Error;

/// How often the lock is tried, and how long is waited in between.
const MAX_TRIES: u32 = 20;
const RETRY_INTERVAL: Duration = Duration::from_millis(10);

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
                // A process that checks the lock holds it for a moment.
                Err(TryLockError::WouldBlock) if tries < MAX_TRIES => {
                    tries += 1;
                    std::thread::sleep(RETRY_INTERVAL);
                }
                Err(TryLockError::WouldBlock) => return Err(Error::RunBusy { id: id.to_owned() }),
                Err(TryLockError::Error(source)) => return Err(write_error(source)),
            }
        }
        file.set_len(0).and_then(|()| writeln!(file, "{} {}", std::process::id(), host_name())).map_err(write_error)?;
        Ok(Self { _locked: file })
    }

    /// Whether a live process owns the run. The check uses a shared lock, so that two checks do not see each other.
    pub fn exists(folder: &RunFolder) -> bool {
        File::open(folder.owner()).is_ok_and(|file| matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock)))
    }

    /// The process that owns the run, while it lives.
    pub fn process(folder: &RunFolder) -> Option<OwnerProcess> {
        let text = std::fs::read_to_string(folder.owner()).ok()?;
        let mut parts = text.split_whitespace();
        let pid = parts.next()?.parse().ok()?;
        // An earlier version wrote no host.
        let host = parts.next().map_or_else(host_name, str::to_owned);
        // Only while the lock is held is the number that of a living owner.
        Self::exists(folder).then_some(OwnerProcess { pid, host })
    }
}

/// A `pipe` process that owns a run. On a shared file system it may run on another machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnerProcess {
    pub pid: i32,
    pub host: String,
}

impl OwnerProcess {
    pub fn is_here(&self) -> bool {
        self.host == host_name()
    }
}

/// The name of this machine.
fn host_name() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    match name.trim() {
        "" => "localhost".to_owned(),
        name => name.replace(char::is_whitespace, "-"),
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
            assert!(Owner::exists(&folder) && Owner::process(&folder).is_some_and(|owner| owner.is_here()));
            assert!(Owner::take(&folder, "x").is_err());
            std::fs::write(folder.owner(), "17 elsewhere\n").unwrap();
            let elsewhere = Owner::process(&folder).unwrap();
            assert!(elsewhere == OwnerProcess { pid: 17, host: "elsewhere".to_owned() } && !elsewhere.is_here());
            drop(owner);
        });
        assert!(!Owner::exists(&folder));
        std::fs::remove_dir_all(folder.path()).unwrap();
    }
}

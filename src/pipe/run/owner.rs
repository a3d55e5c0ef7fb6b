//! The owner of a run: a kernel lock, which is released when its process ends. On a file system that several machines share, a lock
//! may hold on its own machine alone: therefore the owner also writes to its file every few seconds, and one that does not is taken to be
//! gone.

use std::fs::{File, TryLockError};
use std::io::ErrorKind::PermissionDenied;
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::Path;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use pipe_spec::RunFolder;

use crate::error::Error;
use crate::system::files;
use crate::system::files::{Stranger, belongs_to, open_lock, stranger};
use crate::system::interrupt::StopRequest;

/// How often the lock is tried, and how long is waited in between.
const MAX_TRIES: u32 = 20;
const RETRY_INTERVAL: Duration = Duration::from_millis(10);

/// How often an owner writes to its file, and after how long without that one on another machine is taken to be gone.
const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(10);
const GONE_AFTER: Duration = Duration::from_secs(60);

/// How often it looks for a request from another machine.
const REQUEST_INTERVAL: Duration = Duration::from_millis(500);

pub struct Owner {
    locked: File,
    heartbeat: Option<(mpsc::Sender<()>, JoinHandle<()>)>,
}

impl Owner {
    pub fn take(folder: &RunFolder, id: &str) -> Result<Self, Error> {
        let path = folder.owner();
        let write_error = |source| Error::Write { path: path.clone(), source };
        let mut file = open_lock(&path).map_err(|source| match belongs_to(&path) {
            Some(user) if source.kind() == PermissionDenied => Error::NotYours { id: id.to_owned(), user },
            _ => write_error(source),
        })?;
        let mut tries = 0;
        loop {
            match file.try_lock() {
                Ok(()) => break,
                // A process that checks the lock holds it for a moment.
                Err(TryLockError::WouldBlock) if tries < MAX_TRIES => {
                    tries += 1;
                    thread::sleep(RETRY_INTERVAL);
                }
                Err(TryLockError::WouldBlock) => {
                    return Err(match stranger(&file) {
                        Some(Stranger { pid, user }) => Error::RunLocked { id: id.to_owned(), pid, user },
                        None => Error::RunBusy { id: id.to_owned() },
                    });
                }
                Err(TryLockError::Error(source)) => return Err(write_error(source)),
            }
        }
        let mut text = String::new();
        file.read_to_string(&mut text).map_err(write_error)?;
        if let Some(OwnerProcess { pid, host }) = OwnerProcess::read(&text).filter(|owner| owner.lives_elsewhere(&path))
        {
            return Err(Error::RunElsewhere { id: id.to_owned(), host, pid });
        }
        // The request was for an earlier owner.
        std::fs::remove_file(folder.stop_request()).ok();
        let text = format!("{} {}\n", std::process::id(), host_name());
        write(&mut file, &text).map_err(write_error)?;
        let (end, ended) = mpsc::channel();
        let own = file.try_clone().map_err(write_error)?;
        let request = folder.stop_request();
        let thread = thread::spawn(move || write_heartbeats(own, &text, &request, &ended));
        Ok(Self { locked: file, heartbeat: Some((end, thread)) })
    }

    /// The content of the owner's file in a copy of a run: the process lives elsewhere, as long as this is written again.
    pub fn text_of_copy(pid: u32, host: &str) -> String {
        format!("{pid} {}-by-bucket\n", host.replace(char::is_whitespace, "-"))
    }

    /// Whether a live process owns the run. The check uses a shared lock, so that two checks do not see each other.
    pub fn exists(folder: &RunFolder) -> bool {
        let path = folder.owner();
        let mut file = match files::open_own(&path) {
            Ok(file) => file,
            // The lock of another user is not empty while the run has an owner, and that writes to it.
            Err(error) if error.kind() == PermissionDenied => {
                return std::fs::metadata(&path).is_ok_and(|found| found.len() > 0) && is_fresh(&path);
            }
            Err(_) => return false,
        };
        if matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock)) {
            return stranger(&file).is_none();
        }
        let mut text = String::new();
        file.read_to_string(&mut text)
            .is_ok_and(|_| OwnerProcess::read(&text).is_some_and(|owner| owner.lives_elsewhere(&path)))
    }

    /// Asks the owner to stop, wherever it is.
    pub fn ask(folder: &RunFolder, request: StopRequest) -> Result<(), Error> {
        let text = match request {
            StopRequest::Graceful => GRACEFUL,
            StopRequest::Hard => HARD,
        };
        crate::system::files::write_whole(&folder.stop_request(), text.as_bytes())
    }

    /// The process that owns the run, while it lives.
    pub fn process(folder: &RunFolder) -> Option<OwnerProcess> {
        let owner = OwnerProcess::read(&files::read_own_text(&folder.owner()).ok()?)?;
        // Only while the lock is held is the number that of a living owner.
        Self::exists(folder).then_some(owner)
    }
}

impl Drop for Owner {
    /// Other machines need not wait until it counts as gone.
    fn drop(&mut self) {
        if let Some((end, thread)) = self.heartbeat.take() {
            drop(end);
            thread.join().ok();
        }
        self.locked.set_len(0).ok();
    }
}

const GRACEFUL: &str = "graceful";
const HARD: &str = "hard";

fn read(file: &mut File) -> std::io::Result<String> {
    let mut text = String::new();
    file.seek(SeekFrom::Start(0))?;
    file.read_to_string(&mut text)?;
    Ok(text)
}

fn write(file: &mut File, text: &str) -> std::io::Result<()> {
    file.seek(SeekFrom::Start(0))?;
    file.write_all(text.as_bytes())?;
    file.set_len(text.len() as u64)
}

/// Writes to the file of the owner, and passes on what other machines ask of it, until the owner is dropped.
fn write_heartbeats(mut file: File, text: &str, request: &Path, ended: &mpsc::Receiver<()>) {
    let mut written = Instant::now();
    while ended.recv_timeout(REQUEST_INTERVAL) == Err(RecvTimeoutError::Timeout) {
        if written.elapsed() >= HEARTBEAT_INTERVAL {
            written = Instant::now();
            // While this process or its file system stood still, another machine may have taken the run: it is not this one's any more.
            let found = read(&mut file).unwrap_or_default();
            if found != text && !found.is_empty() {
                tracing::error!("the run was taken over by another pipe process ({}); this one ends", found.trim());
                std::process::exit(1);
            }
            if let Err(error) = write(&mut file, text) {
                tracing::debug!("cannot write to the owner file: {error}");
            }
        }
        let asked = match files::read_own_text(request).as_deref() {
            Ok(GRACEFUL) => StopRequest::Graceful,
            Ok(HARD) => StopRequest::Hard,
            _ => continue,
        };
        std::fs::remove_file(request).ok();
        asked.pass_on();
    }
}

/// Whether an owner has written to its file not long ago.
fn is_fresh(file: &Path) -> bool {
    let written = std::fs::metadata(file).and_then(|found| found.modified());
    // A file from the future is one whose machine has another clock.
    written.is_ok_and(|at| at.elapsed().unwrap_or_default() < GONE_AFTER)
}

/// A `pipe` process that owns a run. On a shared file system it may run on another machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnerProcess {
    pub pid: i32,
    pub host: String,
}

impl OwnerProcess {
    fn read(text: &str) -> Option<Self> {
        let mut parts = text.split_whitespace();
        let pid = parts.next()?.parse().ok()?;
        // An earlier version wrote no host.
        Some(Self { pid, host: parts.next().map_or_else(host_name, str::to_owned) })
    }

    /// Whether it runs on another machine and has written to its file not long ago. Here the lock tells.
    fn lives_elsewhere(&self, file: &Path) -> bool {
        !self.is_here() && is_fresh(file)
    }

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
        // One on another machine whose lock is not seen here lives as long as it writes.
        std::fs::write(folder.owner(), "17 elsewhere\n").unwrap();
        assert!(Owner::exists(&folder));
        assert!(matches!(Owner::take(&folder, "x"), Err(Error::RunElsewhere { pid: 17, .. })));
        let file = File::options().write(true).open(folder.owner()).unwrap();
        file.set_modified(std::time::SystemTime::now() - 2 * GONE_AFTER).unwrap();
        assert!(!Owner::exists(&folder) && Owner::take(&folder, "x").is_ok());
        std::fs::remove_dir_all(folder.path()).unwrap();
    }
}

//! The folder of the queue. Other users write to it as well, so no link in it is followed, nothing that was there before is
//! changed, and no call waits.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rustix::fs::{AtFlags, Dir, FileType, FlockOperation, Mode, OFlags, Stat};
use rustix::io::Errno;
use rustix::process::geteuid;

use crate::system::files::user;

/// Entries of the folder that are read.
const MAX_ENTRIES: usize = 10_000;
/// Bytes of a ticket that are read.
const MAX_TEXT: u64 = 256;
/// Random names that are tried.
const MAX_TRIES: usize = 16;
/// A file under a random name that is older than this was left by a killed process.
const MAX_UNNUMBERED_AGE: Duration = Duration::from_secs(600);
/// The beginning of random names.
const RANDOM_PREFIX: &str = "new-";

#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
    dir: OwnedFd,
}

/// The state of a ticket.
#[derive(Debug, PartialEq, Eq)]
pub enum TicketState {
    /// A process holds it.
    Held { text: String, uid: u32 },
    /// No process holds it. It is removed, where this user may.
    Abandoned,
    /// A link, a pipe, a folder, a file that may not be read, or nothing.
    Ignored,
}

impl Folder {
    /// A folder for all users. It is made if there is none.
    pub fn shared(path: &Path) -> Result<Self, String> {
        let (folder, stat) = Self::make_and_open(path, 0o1777)?;
        let (is_sticky, is_own) = (stat.st_mode & 0o1000 != 0, stat.st_uid == geteuid().as_raw());
        let others_write = stat.st_mode & 0o022 != 0;
        match is_sticky || (is_own && !others_write) {
            true => Ok(folder),
            false if others_write => {
                Err("other users can replace files in it, because it has no sticky bit".to_owned())
            }
            false => Err(format!("it belongs to {} and is not for all users", user(stat.st_uid))),
        }
    }

    /// A folder of this user alone. It is made if there is none.
    pub fn own(path: &Path) -> Result<Self, String> {
        let (folder, stat) = Self::make_and_open(path, 0o700)?;
        if stat.st_uid != geteuid().as_raw() {
            return Err(format!("it belongs to {}", user(stat.st_uid)));
        }
        if stat.st_mode & 0o022 != 0 {
            return Err("other users can write to it".to_owned());
        }
        Ok(folder)
    }

    fn make_and_open(path: &Path, mode: u32) -> Result<(Self, Stat), String> {
        let was_made = make(path, mode)?;
        let dir = open_folder(path).map_err(|error| match error {
            Errno::LOOP | Errno::NOTDIR => "it is not a folder".to_owned(),
            error => error.to_string(),
        })?;
        let stat = rustix::fs::fstat(&dir).map_err(|error| error.to_string())?;
        // The umask took some of it away. Only of what was made here.
        if was_made && stat.st_uid == geteuid().as_raw() {
            rustix::fs::fchmod(&dir, Mode::from_raw_mode(mode)).map_err(|error| error.to_string())?;
        }
        let stat = rustix::fs::fstat(&dir).map_err(|error| error.to_string())?;
        Ok((Self { path: path.to_owned(), dir }, stat))
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A new file with `text` under a random name, locked.
    pub fn create(&self, text: &str) -> Result<(String, File), String> {
        for _ in 0..MAX_TRIES {
            let name = random_name()?;
            let flags = OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::RDWR | OFlags::CLOEXEC;
            let mode = Mode::from_raw_mode(0o644);
            let mut file = match rustix::fs::openat(&self.dir, &name, flags, mode) {
                Ok(file) => File::from(file),
                Err(Errno::EXIST) => continue,
                Err(error) => return Err(format!("no file can be made in it: {error}")),
            };
            // Another user cannot see that a ticket is held which he may not open.
            rustix::fs::fchmod(&file, mode).map_err(|error| error.to_string())?;
            match try_lock(&file) {
                Ok(()) => {
                    // Without its text a ticket still counts.
                    file.write_all(text.as_bytes()).ok();
                    return Ok((name, file));
                }
                // Another process was faster to lock it.
                Err(Errno::WOULDBLOCK) => self.remove(&name, &file),
                Err(error) => {
                    self.remove(&name, &file);
                    return Err(format!("files in it cannot be locked: {error}"));
                }
            }
        }
        Err("other processes lock every file that is made in it".to_owned())
    }

    /// Gives `file`, which lies under `from`, a second name. False where that name is taken.
    pub fn link(&self, from: &str, to: &str, file: &File) -> Result<bool, String> {
        match rustix::fs::linkat(&self.dir, from, &self.dir, to, AtFlags::empty()) {
            Ok(()) if self.is(to, file) => Ok(true),
            Ok(()) => Err(format!("{from} was replaced by another process")),
            Err(Errno::EXIST) => Ok(false),
            Err(error) => Err(error.to_string()),
        }
    }

    /// Removes the name, if it still is that of `file`. What may not be removed stays.
    pub fn remove(&self, name: &str, file: &File) {
        if self.is(name, file)
            && let Err(error) = rustix::fs::unlinkat(&self.dir, name, AtFlags::empty())
        {
            tracing::debug!("{}/{name}: {error}", self.path.display());
        }
    }

    fn is(&self, name: &str, file: &File) -> bool {
        let named = rustix::fs::statat(&self.dir, name, AtFlags::SYMLINK_NOFOLLOW);
        let open = rustix::fs::fstat(file);
        matches!((named, open), (Ok(named), Ok(open)) if (named.st_dev, named.st_ino) == (open.st_dev, open.st_ino))
    }

    /// The names in it. Those of files that killed processes left before they had a number are removed.
    pub fn names(&self) -> Result<Vec<String>, String> {
        let entries = Dir::read_from(&self.dir).map_err(|error| error.to_string())?;
        let mut names = Vec::new();
        for entry in entries {
            let entry = entry.map_err(|error| error.to_string())?;
            let Ok(name) = entry.file_name().to_str() else { continue };
            if names.len() == MAX_ENTRIES {
                return Err(format!("it has more than {MAX_ENTRIES} files"));
            }
            names.push(name.to_owned());
        }
        names.iter().filter(|name| name.starts_with(RANDOM_PREFIX)).for_each(|name| self.remove_abandoned(name));
        Ok(names)
    }

    fn remove_abandoned(&self, name: &str) {
        let Some((file, stat)) = self.open_file(name) else { return };
        let age = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let changed = Duration::from_secs(stat.st_mtime.try_into().unwrap_or(0));
        if age.saturating_sub(changed) > MAX_UNNUMBERED_AGE && try_lock(&file).is_ok() {
            self.remove(name, &file);
        }
    }

    /// The state of the ticket `name`.
    pub fn look(&self, name: &str) -> TicketState {
        let Some((file, stat)) = self.open_file(name) else { return TicketState::Ignored };
        match try_lock(&file) {
            Err(Errno::WOULDBLOCK) => {
                let mut text = Vec::new();
                (&file).take(MAX_TEXT).read_to_end(&mut text).ok();
                TicketState::Held { text: String::from_utf8_lossy(&text).into_owned(), uid: stat.st_uid }
            }
            Ok(()) => {
                self.remove(name, &file);
                TicketState::Abandoned
            }
            Err(error) => {
                tracing::debug!("{}/{name}: {error}", self.path.display());
                TicketState::Ignored
            }
        }
    }

    fn open_file(&self, name: &str) -> Option<(File, Stat)> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let file = File::from(rustix::fs::openat(&self.dir, name, flags, Mode::empty()).ok()?);
        let stat = rustix::fs::fstat(&file).ok()?;
        (FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile).then_some((file, stat))
    }
}

/// Whether another user has just created the folder and may not have set its permissions yet.
pub fn is_being_created(path: &Path) -> bool {
    let Ok(meta) = path.symlink_metadata() else { return false };
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
    meta.is_dir() && meta.uid() != geteuid().as_raw() && now.saturating_sub(meta.ctime().try_into().unwrap_or(0)) < 2
}

/// Makes the folder, unless there is something of that name. Returns whether it was made.
fn make(path: &Path, mode: u32) -> Result<bool, String> {
    let make = || rustix::fs::mkdir(path, Mode::from_raw_mode(mode));
    let made = match make() {
        Err(Errno::NOENT) => {
            let parent = path.parent().ok_or("it has no parent folder")?;
            std::fs::create_dir_all(parent).map_err(|error| format!("{}: {error}", parent.display()))?;
            make()
        }
        made => made,
    };
    match made {
        Ok(()) => Ok(true),
        Err(Errno::EXIST) => Ok(false),
        Err(error) => Err(format!("it cannot be made: {error}")),
    }
}

fn open_folder(path: &Path) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::open(path, flags, Mode::empty())
}

fn try_lock(file: &File) -> rustix::io::Result<()> {
    rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive)
}

fn random_name() -> Result<String, String> {
    let mut bytes = [0; 16];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty()).map_err(|error| error.to_string())?;
    Ok(format!("{RANDOM_PREFIX}{:032x}", u128::from_le_bytes(bytes)))
}

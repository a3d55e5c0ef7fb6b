//! Files and folders: written whole, read within bounds, hashed. Knows nothing of runs, engines or training.
//!
//! A file is written whole or not at all.
//!
//! Small files that people name: read whole, but only regular files and only up to a bound.
//!
//! The space of a file system.
//!
//! Paths below a folder that is the root of a container: its symbolic links lead to places in the folder, never out of it.

use std::ffi::OsString;
use std::fs::{File, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt, PermissionsExt};
use std::path::{Component, Path, PathBuf};

use rustix::fs::OFlags;

use crate::error::Error;

pub fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

/// Writes under a random temporary name, syncs, renames, syncs the folder: a reader sees the old content
/// or the new, never a part, also after a crash of the machine.
pub fn write_whole(path: &Path, bytes: &[u8]) -> Result<(), Error> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let write = || {
        // As any file is made: the user's umask says who may read it.
        let mode = Permissions::from_mode(0o666);
        let prefix = format!(".{name}.");
        let mut file = tempfile::Builder::new().prefix(&prefix).suffix(".tmp").permissions(mode).tempfile_in(folder)?;
        file.write_all(bytes)?;
        file.as_file().sync_all()?;
        file.persist(path)?;
        File::open(folder)?.sync_all()
    };
    write().map_err(|source: std::io::Error| Error::Write { path: path.to_owned(), source })
}

/// Writes a JSON file, whole.
pub fn write_json(path: &Path, value: &impl serde::Serialize) -> Result<(), Error> {
    let mut text = serde_json::to_string_pretty(value)
        .map_err(|error| Error::Write { path: path.to_owned(), source: error.into() })?;
    text.push('\n');
    write_whole(path, text.as_bytes())
}

/// The content of the file. A device, a pipe or a folder is an error at once, and so is more than `limit` bytes.
pub fn read(path: &Path, limit: u64) -> Result<Vec<u8>, Error> {
    let read_error = |source| Error::Read { path: path.to_owned(), source };
    // Opening a pipe must not wait for its other end.
    let mut file = File::options()
        .read(true)
        .custom_flags(OFlags::NONBLOCK.bits().cast_signed())
        .open(path)
        .map_err(read_error)?;
    let meta = file.metadata().map_err(read_error)?;
    if !meta.is_file() {
        let kind = meta.file_type();
        let what = match () {
            () if kind.is_dir() => "a folder",
            () if kind.is_fifo() => "a pipe",
            () if kind.is_socket() => "a socket",
            () => "a device",
        };
        return Err(Error::NotAFile { path: path.to_owned(), what });
    }
    let too_large = |size| Error::TooLarge { path: path.to_owned(), size, limit };
    if meta.len() > limit {
        return Err(too_large(meta.len()));
    }
    let mut bytes = Vec::new();
    (&mut file).take(limit + 1).read_to_end(&mut bytes).map_err(read_error)?;
    // Some files, such as those of /proc, have no size.
    if bytes.len() as u64 > limit { Err(too_large(bytes.len() as u64)) } else { Ok(bytes) }
}

/// Bytes of a file system.
#[derive(Clone, Copy, Debug)]
pub struct Space {
    pub free: u64,
    pub total: u64,
}

impl Space {
    /// The space of the file system that `path` is on.
    pub fn at(path: &Path) -> Option<Self> {
        let stat = rustix::fs::statvfs(path).ok()?;
        Some(Self { free: stat.f_bavail * stat.f_frsize, total: stat.f_blocks * stat.f_frsize })
    }
}

/// The path itself, or the first folder above it that is there.
pub fn nearest(path: &Path) -> &Path {
    path.ancestors().find(|path| path.exists()).unwrap_or(Path::new("/"))
}

/// As many links as the kernel follows.
const MAX_LINKS: u32 = 40;

/// Where `path` lies, for who has `root` as the root. What is not there yet is taken as it is written.
pub fn inside(root: &Path, path: &Path) -> io::Result<PathBuf> {
    let mut left = parts(path);
    let (mut found, mut links) = (PathBuf::new(), 0);
    while let Some(part) = left.pop() {
        if part == ".." {
            found.pop();
            continue;
        }
        match std::fs::read_link(root.join(&found).join(&part)) {
            Ok(_) if links == MAX_LINKS => return Err(io::Error::other("too many symbolic links")),
            Ok(target) => {
                links += 1;
                if target.is_absolute() {
                    found.clear();
                }
                left.extend(parts(&target));
            }
            // It is no link, or not there.
            Err(_) => found.push(part),
        }
    }
    Ok(root.join(found))
}

/// The parts of a path, the last one first.
fn parts(path: &Path) -> Vec<OsString> {
    let named = |part: &Component<'_>| matches!(part, Component::Normal(_) | Component::ParentDir);
    path.components().rev().filter(named).map(|part| part.as_os_str().to_owned()).collect()
}

#[cfg(test)]
mod whole_tests {
    use super::*;

    #[test]
    fn nothing_planted_is_written_through() {
        let folder = std::env::temp_dir().join(format!("pipe-write-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("victim"), "victim").unwrap();
        for name in ["run.json".to_owned(), format!(".run.json.{}.tmp", std::process::id())] {
            std::os::unix::fs::symlink(folder.join("victim"), folder.join(name)).unwrap();
        }
        write_whole(&folder.join("run.json"), b"new").unwrap();
        assert_eq!(std::fs::read(folder.join("victim")).unwrap(), b"victim");
        assert_eq!(std::fs::read(folder.join("run.json")).unwrap(), b"new");
        assert!(!folder.join("run.json").is_symlink());
        let mode = std::fs::metadata(folder.join("run.json")).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode & 0o600, 0o600);
        assert!(write_whole(&folder.join("missing/run.json"), b"x").is_err());
        // Nothing temporary stays.
        assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 3);
        std::fs::remove_dir_all(folder).unwrap();
    }
}

#[cfg(test)]
mod bounded_tests {
    use super::*;

    #[test]
    fn only_regular_files_up_to_the_bound() {
        let folder = std::env::temp_dir().join(format!("pipe-bounded-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("file"), "12345").unwrap();
        assert_eq!(read(&folder.join("file"), 5).unwrap(), b"12345");
        assert!(matches!(read(&folder.join("file"), 4), Err(Error::TooLarge { size: 5, .. })));
        std::process::Command::new("mkfifo").arg(folder.join("pipe")).status().unwrap();
        let what = |path: &Path| match read(path, 5) {
            Err(Error::NotAFile { what, .. }) => what,
            other => panic!("{other:?}"),
        };
        assert_eq!(what(&folder.join("pipe")), "a pipe");
        assert_eq!(what(&folder), "a folder");
        assert_eq!(what(Path::new("/dev/zero")), "a device");
        std::fs::remove_dir_all(folder).unwrap();
    }
}

#[cfg(test)]
mod rooted_tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn links_stay_in_the_root() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        std::fs::create_dir_all(root.join("var/real")).unwrap();
        for (link, target) in
            [("absolute", "/var/real"), ("var/up", "../../../etc"), ("chain", "var/up/x"), ("loop", "loop")]
        {
            symlink(target, root.join(link)).unwrap();
        }
        for (path, want) in [
            ("/var/real/new", "var/real/new"),
            ("absolute/new", "var/real/new"),
            ("var/up/passwd", "etc/passwd"),
            ("/chain/y", "etc/x/y"),
            ("../../etc", "etc"),
            ("/", ""),
        ] {
            assert_eq!(inside(root, Path::new(path)).unwrap(), root.join(want), "{path}");
        }
        assert!(inside(root, Path::new("loop")).is_err());
    }
}

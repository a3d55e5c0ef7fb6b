//! The frames in which files travel between `pipe` and a pod. `src/pipe/engine/kubernetes/frames.rs` reads and writes the same.
//!
//! A header of 27 bytes in little endian: kind (1), length of the path (2), size (8), offset (8), time of the last change in
//! nanoseconds (8); then the path, then `size` bytes of a frame that has data. A file with holes has pieces in place of these bytes: offset (8),
//! size (8) and the bytes of each, and a piece without bytes at the end.
//!
//! The modes of `pipe-job` that carry files have options: names with values.

use std::ffi::{CString, OsStr, OsString};
use std::fs::{File, Metadata, ReadDir};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use libc::c_int;

const HEADER: usize = 27;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A file that the other side has: no data.
    Have,
    /// A whole file.
    File,
    /// A whole file that may be started as a program.
    Program,
    /// A whole file with holes, as its pieces.
    Sparse,
    /// Bytes of a file that grows, from `offset` on.
    Append,
    Folder,
    /// A file or folder that is not there any more.
    Removed,
    /// A folder all of whose files were sent.
    Complete,
    /// Nothing more comes.
    End,
    /// The connection is alive.
    Alive,
}

const KINDS: [(Kind, u8); 10] = [
    (Kind::Have, b'H'),
    (Kind::File, b'F'),
    (Kind::Program, b'X'),
    (Kind::Sparse, b'S'),
    (Kind::Append, b'A'),
    (Kind::Folder, b'D'),
    (Kind::Removed, b'R'),
    (Kind::Complete, b'C'),
    (Kind::End, b'E'),
    (Kind::Alive, b'K'),
];

impl Kind {
    fn has_data(self) -> bool {
        matches!(self, Self::File | Self::Program | Self::Sparse | Self::Append)
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    pub kind: Kind,
    pub path: String,
    pub size: u64,
    pub offset: u64,
    pub changed: i64,
}

impl Frame {
    pub fn of(kind: Kind, path: &str) -> Self {
        Self { kind, path: path.to_owned(), size: 0, offset: 0, changed: 0 }
    }

    pub fn write(&self, to: &mut impl Write) -> io::Result<()> {
        let kind = KINDS.iter().find(|(kind, _)| *kind == self.kind).map_or(b'K', |(_, byte)| *byte);
        let length = u16::try_from(self.path.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
        let mut bytes = Vec::with_capacity(HEADER + self.path.len());
        bytes.push(kind);
        bytes.extend(length.to_le_bytes());
        bytes.extend(self.size.to_le_bytes());
        bytes.extend(self.offset.to_le_bytes());
        bytes.extend(self.changed.to_le_bytes());
        bytes.extend(self.path.as_bytes());
        to.write_all(&bytes)
    }

    pub fn read(from: &mut impl Read) -> io::Result<Self> {
        let mut header = [0; HEADER];
        from.read_exact(&mut header)?;
        let kind = KINDS.iter().find(|(_, byte)| *byte == header[0]).ok_or(io::ErrorKind::InvalidData)?.0;
        let number = |at: usize| u64::from_le_bytes(header[at..at + 8].try_into().unwrap_or_default());
        let mut path = vec![0; usize::from(u16::from_le_bytes([header[1], header[2]]))];
        from.read_exact(&mut path)?;
        let path = String::from_utf8(path).map_err(|_| io::ErrorKind::InvalidData)?;
        Ok(Self { kind, path, size: number(3), offset: number(11), changed: number(19).cast_signed() })
    }

    /// Whether the path leads to something below the folder that it belongs to.
    pub fn is_inside(&self) -> bool {
        self.path.split('/').all(|part| !matches!(part, "" | "." | ".."))
    }

    /// The frame of a whole file.
    pub fn of_file(path: &str, meta: &Metadata) -> Self {
        let kind = if has_holes(meta) { Kind::Sparse } else { Kind::File };
        Self { size: meta.len(), changed: changed(meta), ..Self::of(kind, path) }
    }

    /// Sends the data of a frame. A file that has become shorter is filled with zeros: the next look sends it again.
    pub fn write_data(&self, file: &mut File, to: &mut impl Write) -> io::Result<()> {
        self.write(to)?;
        if self.kind != Kind::Sparse {
            return copy_exactly(file, self.size, to);
        }
        let mut at = 0;
        while let Some((offset, size)) = next_piece(file, at, self.size) {
            to.write_all(&[offset.to_le_bytes(), size.to_le_bytes()].concat())?;
            file.seek(SeekFrom::Start(offset))?;
            copy_exactly(file, size, to)?;
            at = offset + size;
        }
        to.write_all(&[0; 16])
    }

    fn take_pieces(&self, from: &mut impl Read, to: &mut File) -> io::Result<()> {
        loop {
            let mut numbers = [[0; 8]; 2];
            from.read_exact(numbers.as_flattened_mut())?;
            let [offset, size] = numbers.map(u64::from_le_bytes);
            if size == 0 {
                return to.set_len(self.size);
            }
            if offset.checked_add(size).is_none_or(|end| end > self.size) {
                return Err(io::ErrorKind::InvalidData.into());
            }
            to.seek(SeekFrom::Start(offset))?;
            take_exactly(from, size, to)?;
        }
    }

    /// Takes the data of a frame as the file at `path`, which is there whole or not at all.
    pub fn take_file(&self, from: &mut impl Read, path: &Path) -> io::Result<()> {
        debug_assert!(self.kind.has_data());
        let mut new = path.as_os_str().to_owned();
        new.push(".incoming");
        let _ = std::fs::remove_file(&new);
        let mut file = File::options().write(true).create_new(true).open(&new)?;
        match self.kind {
            Kind::Sparse => self.take_pieces(from, &mut file)?,
            _ => take_exactly(from, self.size, &mut file)?,
        }
        let mode = if self.kind == Kind::Program { 0o755 } else { 0o644 };
        file.set_permissions(std::fs::Permissions::from_mode(mode))?;
        let changed = u64::try_from(self.changed).unwrap_or(0);
        file.set_modified(std::time::UNIX_EPOCH + std::time::Duration::from_nanos(changed))?;
        file.sync_all()?;
        std::fs::rename(&new, path)
    }
}

fn copy_exactly(file: &mut File, size: u64, to: &mut impl Write) -> io::Result<()> {
    let copied = io::copy(&mut file.take(size), to)?;
    io::copy(&mut io::repeat(0).take(size - copied), to).map(drop)
}

fn take_exactly(from: &mut impl Read, size: u64, to: &mut File) -> io::Result<()> {
    match io::copy(&mut from.take(size), to)? < size {
        true => Err(io::ErrorKind::UnexpectedEof.into()),
        false => Ok(()),
    }
}

fn has_holes(meta: &Metadata) -> bool {
    meta.blocks().saturating_mul(512) < meta.len()
}

/// Offset and size of the next bytes of a file that are not in a hole, before `end`. A file system that does not know holes has none.
pub fn next_piece(file: &File, from: u64, end: u64) -> Option<(u64, u64)> {
    let seek = |at: u64, whence: c_int| -> io::Result<u64> {
        // SAFETY: lseek takes three integers.
        let found = unsafe { libc::lseek(file.as_raw_fd(), at.cast_signed(), whence) };
        u64::try_from(found).map_err(|_| io::Error::last_os_error())
    };
    let start = match seek(from, libc::SEEK_DATA) {
        Ok(start) => start,
        Err(error) if error.raw_os_error() == Some(libc::ENXIO) => return None,
        Err(_) => from,
    };
    let stop = seek(start, libc::SEEK_HOLE).unwrap_or(end).min(end);
    (start < stop).then(|| (start, stop - start))
}

/// The time of the last change in nanoseconds.
pub fn changed(meta: &Metadata) -> i64 {
    meta.mtime().saturating_mul(1_000_000_000).saturating_add(meta.mtime_nsec())
}

/// Folders in folders that are looked into. The runner goes as deep.
const MAX_DEPTH: usize = 64;

/// A folder that stays the same one, whatever a job puts in its place.
pub struct Folder(File);

impl Folder {
    pub fn open(path: &Path) -> io::Result<Self> {
        File::options().read(true).custom_flags(libc::O_DIRECTORY).open(path).map(Self)
    }

    /// A file in this folder. No link is followed, and no pipe is waited for.
    pub fn file(&self, name: &OsStr) -> io::Result<File> {
        self.open_at(name, libc::O_NONBLOCK)
    }

    pub fn folder(&self, name: &OsStr) -> io::Result<Self> {
        self.open_at(name, libc::O_DIRECTORY).map(Self)
    }

    fn open_at(&self, name: &OsStr, flags: c_int) -> io::Result<File> {
        let name = CString::new(name.as_bytes())?;
        let flags = flags | libc::O_RDONLY | libc::O_NOFOLLOW | libc::O_CLOEXEC;
        // SAFETY: the name ends with a zero and lives as long as the call.
        let file = unsafe { libc::openat(self.0.as_raw_fd(), name.as_ptr(), flags) };
        if file < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: it was just opened, and nothing else has it.
        Ok(unsafe { File::from_raw_fd(file) })
    }

    /// The path of something in it for calls that take a path. The last part of it may be a link.
    pub fn path_of(&self, name: &OsStr) -> PathBuf {
        self.path().join(name)
    }

    fn path(&self) -> PathBuf {
        format!("/proc/self/fd/{}", self.0.as_raw_fd()).into()
    }

    pub fn entries(&self) -> io::Result<ReadDir> {
        std::fs::read_dir(self.path())
    }
}

/// The file at `path` below a folder that no job can replace.
pub fn open_below(base: &Path, path: &str) -> io::Result<File> {
    let (folders, name) = path.rsplit_once('/').unwrap_or(("", path));
    folder_below(base, folders)?.file(OsStr::new(name))
}

fn folder_below(base: &Path, path: &str) -> io::Result<Folder> {
    let mut parts = path.split('/').filter(|part| !part.is_empty());
    parts.try_fold(Folder::open(base)?, |folder, part| folder.folder(OsStr::new(part)))
}

/// The regular files below a folder, with their paths from `base` on. Links are none, and names that are not text are left out. A folder
/// that cannot be read now is not an empty one.
pub fn files_below(base: &Path, path: &str, take: &mut impl FnMut(String, Metadata)) -> io::Result<()> {
    below(&folder_below(base, path)?, path, 0, take)
}

fn below(folder: &Folder, path: &str, depth: usize, take: &mut impl FnMut(String, Metadata)) -> io::Result<()> {
    let mut entries: Vec<_> = folder.entries()?.collect::<io::Result<_>>()?;
    entries.sort_by_key(std::fs::DirEntry::file_name);
    for entry in entries {
        let Ok(name) = entry.file_name().into_string() else { continue };
        let path = format!("{path}/{name}");
        let found = match entry.metadata() {
            Ok(meta) if meta.is_dir() && depth < MAX_DEPTH => {
                folder.folder(OsStr::new(&name)).and_then(|inner| below(&inner, &path, depth + 1, take))
            }
            Ok(meta) if meta.is_file() => {
                take(path, meta);
                Ok(())
            }
            found => found.map(drop),
        };
        found.or_else(|error| if is_absent(&error) { Ok(()) } else { Err(error) })?;
    }
    Ok(())
}

/// Whether there is no file or folder that could be read: something else is in its place, or the job has made it unreadable.
pub fn is_absent(error: &io::Error) -> bool {
    let is_other = matches!(error.raw_os_error(), Some(libc::ELOOP | libc::ENOTDIR | libc::ENXIO | libc::EACCES));
    is_other || matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::InvalidData)
}

pub struct Flags(Vec<(String, String)>);

impl Flags {
    pub fn parse(args: impl Iterator<Item = OsString>) -> io::Result<Self> {
        let words: Option<Vec<String>> = args.map(|word| word.into_string().ok()).collect();
        let words = words.ok_or(io::ErrorKind::InvalidInput)?;
        Ok(Self(words.chunks_exact(2).map(|pair| (pair[0].clone(), pair[1].clone())).collect()))
    }

    pub fn text(&self, name: &str) -> io::Result<&str> {
        let found = self.0.iter().find(|(flag, _)| flag == name);
        found.map(|(_, value)| value.as_str()).ok_or_else(|| io::Error::other(format!("{name} is missing")))
    }

    pub fn path(&self, name: &str) -> io::Result<PathBuf> {
        self.text(name).map(PathBuf::from)
    }

    pub fn number(&self, name: &str) -> io::Result<u64> {
        self.text(name)?.parse().map_err(|_| io::Error::other(format!("{name} is no number")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_with_holes_travels_as_its_pieces() {
        const FAR: u64 = 1 << 40;
        let folder = std::env::temp_dir().join(format!("pipe-job-holes-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let mut file =
            File::options().create(true).truncate(true).read(true).write(true).open(folder.join("a")).unwrap();
        file.write_all(b"begin").unwrap();
        file.seek(SeekFrom::Start(FAR)).unwrap();
        file.write_all(b"end").unwrap();
        file.set_len(2 * FAR).unwrap();
        let frame = Frame::of_file("a", &file.metadata().unwrap());
        let mut bytes = Vec::new();
        frame.write_data(&mut file, &mut bytes).unwrap();
        assert!(bytes.len() < 1 << 20, "{}", bytes.len());
        let mut from = bytes.as_slice();
        let read = Frame::read(&mut from).unwrap();
        assert_eq!((read.kind, read.size), (Kind::Sparse, 2 * FAR));
        read.take_file(&mut from, &folder.join("b")).unwrap();
        let mut taken = File::open(folder.join("b")).unwrap();
        assert_eq!(taken.metadata().unwrap().len(), 2 * FAR);
        taken.seek(SeekFrom::Start(FAR)).unwrap();
        let mut end = [0; 4];
        taken.read_exact(&mut end).unwrap();
        assert_eq!(&end, b"end\0");
        assert!(from.is_empty());
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn links_that_a_job_has_planted_are_not_followed() {
        let folder = std::env::temp_dir().join(format!("pipe-job-links-{}", std::process::id()));
        std::fs::create_dir_all(folder.join("other")).unwrap();
        std::fs::create_dir_all(folder.join("job/own")).unwrap();
        std::fs::write(folder.join("other/secret"), "x").unwrap();
        std::fs::write(folder.join("job/own/file"), "x").unwrap();
        std::os::unix::fs::symlink(folder.join("other"), folder.join("job/linked")).unwrap();
        std::os::unix::fs::symlink(folder.join("other/secret"), folder.join("job/own/secret")).unwrap();
        let mut found = Vec::new();
        files_below(&folder, "job", &mut |path, _| found.push(path)).unwrap();
        assert_eq!(found, ["job/own/file"]);
        assert!(open_below(&folder, "job/own/file").is_ok());
        for path in ["job/linked/secret", "job/own/secret"] {
            assert!(open_below(&folder, path).is_err(), "{path}");
        }
        std::fs::remove_dir_all(folder).unwrap();
    }
}

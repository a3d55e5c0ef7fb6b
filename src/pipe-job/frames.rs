//! The frames in which files travel between `pipe` and a pod. `src/pipe/engine/kubernetes/frames.rs` reads and writes the same.
//!
//! A header of 27 bytes in little endian: kind (1), length of the path (2), size (8), offset (8), time of the last change in
//! nanoseconds (8); then the path, then `size` bytes of a frame that has data.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

const HEADER: usize = 27;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A file that the other side has: no data.
    Have,
    /// A whole file.
    File,
    /// A whole file that may be started as a program.
    Program,
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

const KINDS: [(Kind, u8); 9] = [
    (Kind::Have, b'H'),
    (Kind::File, b'F'),
    (Kind::Program, b'X'),
    (Kind::Append, b'A'),
    (Kind::Folder, b'D'),
    (Kind::Removed, b'R'),
    (Kind::Complete, b'C'),
    (Kind::End, b'E'),
    (Kind::Alive, b'K'),
];

impl Kind {
    fn has_data(self) -> bool {
        matches!(self, Self::File | Self::Program | Self::Append)
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

    /// Sends `size` bytes of a file. One that has become shorter is filled with zeros: the next look sends it again.
    pub fn write_data(&self, file: &mut File, to: &mut impl Write) -> io::Result<()> {
        self.write(to)?;
        let copied = io::copy(&mut file.take(self.size), to)?;
        io::copy(&mut io::repeat(0).take(self.size - copied), to).map(drop)
    }

    /// Takes the data of a frame as the file at `path`, which is there whole or not at all.
    pub fn take_file(&self, from: &mut impl Read, path: &Path) -> io::Result<()> {
        debug_assert!(self.kind.has_data());
        let mut new = path.as_os_str().to_owned();
        new.push(".incoming");
        let _ = std::fs::remove_file(&new);
        let mut file = File::options().write(true).create_new(true).open(&new)?;
        if io::copy(&mut from.take(self.size), &mut file)? < self.size {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let mode = if self.kind == Kind::Program { 0o755 } else { 0o644 };
        file.set_permissions(std::fs::Permissions::from_mode(mode))?;
        let changed = u64::try_from(self.changed).unwrap_or(0);
        file.set_modified(std::time::UNIX_EPOCH + std::time::Duration::from_nanos(changed))?;
        file.sync_all()?;
        std::fs::rename(&new, path)
    }
}

/// The time of the last change in nanoseconds.
pub fn changed(meta: &std::fs::Metadata) -> i64 {
    meta.mtime().saturating_mul(1_000_000_000).saturating_add(meta.mtime_nsec())
}

/// The regular files below a folder, with their paths from `base` on. Links are none, and names that are not text are left out.
pub fn files_below(base: &Path, path: &str, take: &mut impl FnMut(String, std::fs::Metadata)) {
    let Ok(entries) = std::fs::read_dir(base.join(path)) else { return };
    let mut entries: Vec<_> = entries.flatten().collect();
    entries.sort_by_key(std::fs::DirEntry::file_name);
    for entry in entries {
        let Ok(name) = entry.file_name().into_string() else { continue };
        let path = if path.is_empty() { name } else { format!("{path}/{name}") };
        match entry.metadata() {
            Ok(meta) if meta.is_dir() => files_below(base, &path, take),
            Ok(meta) if meta.is_file() => take(path, meta),
            _ => {}
        }
    }
}

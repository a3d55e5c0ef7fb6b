//! The file that rows are written to: it keeps a reserve of free disk space and stops on cancellation.

use std::fs::File;
use std::io::{ErrorKind, Write};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

use super::pieces::Piece;
use super::watch::Watch;
use crate::error::Error;
use crate::system::files::Space;

/// Of every disk a twentieth is kept free, and not more than this.
const RESERVE: u64 = 1 << 30;
const RESERVE_SHARE: u64 = 20;

/// Who a preparation is for and where it goes: what errors name.
#[derive(Clone, Copy)]
pub struct Conversion<'a> {
    /// The source file as it is found.
    pub host: &'a Path,
    /// The source file as the pipeline names it.
    pub named: &'a Path,
    pub watch: &'a Watch,
    /// Bytes of the source files that were prepared before this one.
    pub before: u64,
}

impl Conversion<'_> {
    pub fn fail(&self, message: impl Into<String>) -> Error {
        Error::Data { path: self.named.to_owned(), message: message.into() }
    }

    /// How many bytes of this file are done.
    pub fn set_done(&self, bytes: u64) {
        self.watch.set_done(self.before + bytes);
    }
}

pub struct Output<'a> {
    job: Conversion<'a>,
    folder: PathBuf,
    file: File,
    /// Bytes on disk, those of pictures included.
    bytes: u64,
    /// Bytes on disk of the rows themselves.
    rows: u64,
}

impl<'a> Output<'a> {
    /// A new file in `folder`. `needed` is how many bytes there will be, where that is known.
    pub fn create(job: Conversion<'a>, folder: &Path, name: &str, needed: Option<u64>) -> Result<Self, Error> {
        let path = folder.join(name);
        let file = File::options().write(true).create_new(true).open(&path);
        let output = Self {
            file: file.map_err(|source| Error::DataCache { path, source })?,
            folder: folder.to_owned(),
            bytes: 0,
            rows: 0,
            job,
        };
        output.check_room(needed)?;
        Ok(output)
    }

    pub fn take(&mut self, piece: Piece) -> Result<(), Error> {
        match piece {
            Piece::Rows { bytes, .. } => self.write(&bytes),
            Piece::File { folder, name, bytes } => self.write_file(&folder, &name, &bytes),
        }
    }

    /// A file beside the rows, in `folder` of the entry.
    fn write_file(&mut self, folder: &str, name: &str, bytes: &[u8]) -> Result<(), Error> {
        let folder = self.folder.join(folder);
        let path = folder.join(name);
        let create = || File::options().write(true).create_new(true).open(&path);
        let written = create()
            .or_else(|error| match error.kind() {
                ErrorKind::NotFound => std::fs::create_dir_all(&folder).and_then(|()| create()),
                _ => Err(error),
            })
            .and_then(|mut file| file.write_all(bytes));
        written.map_err(|source| self.failure(source))?;
        self.bytes += bytes.len() as u64;
        self.job.watch.check()?;
        self.check_room(None)
    }

    /// Appends rows.
    fn write(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.job.watch.check()?;
        self.file.write_all(bytes).map_err(|source| self.failure(source))?;
        // The disk works while the next rows are read; otherwise all of it would be waited for at the end.
        // SAFETY: it takes the descriptor of an open file and touches no memory. That it fails changes nothing.
        unsafe {
            let (from, length) = (self.rows as i64, bytes.len() as i64);
            libc::sync_file_range(self.file.as_raw_fd(), from, length, libc::SYNC_FILE_RANGE_WRITE);
        }
        self.rows += bytes.len() as u64;
        self.bytes += bytes.len() as u64;
        self.check_room(None)
    }

    /// Everything is on disk. Tells how many bytes the rows have, and all files together.
    pub fn finish(self) -> Result<Written, Error> {
        let only_rows = self.bytes == self.rows;
        // Pictures are many small files: one call for all of them is minutes faster than one for each.
        // SAFETY: it takes the descriptor of an open file and touches no memory.
        let synced = match only_rows {
            true => self.file.sync_all(),
            false if unsafe { libc::syncfs(self.file.as_raw_fd()) } == 0 => Ok(()),
            false => Err(std::io::Error::last_os_error()),
        };
        synced.map_err(|source| self.failure(source))?;
        Ok(Written { rows: self.rows, bytes: self.bytes })
    }

    fn failure(&self, source: std::io::Error) -> Error {
        match source.kind() {
            ErrorKind::StorageFull | ErrorKind::QuotaExceeded => self.no_room(None),
            _ => Error::DataCache { path: self.folder.clone(), source },
        }
    }

    /// Whether there is room for `more` bytes, and something left.
    fn check_room(&self, more: Option<u64>) -> Result<(), Error> {
        let Some(space) = Space::at(&self.folder) else { return Ok(()) };
        let reserve = RESERVE.min(space.total / RESERVE_SHARE);
        match space.free < reserve + more.unwrap_or(0) {
            true => Err(self.no_room(more)),
            false => Ok(()),
        }
    }

    fn no_room(&self, needed: Option<u64>) -> Error {
        let folder = self.folder.parent().unwrap_or(&self.folder).to_owned();
        let free = Space::at(&folder).map_or(0, |space| space.free) + self.bytes;
        Error::NoRoom { path: self.job.named.to_owned(), folder, needed, free }
    }
}

/// What was written, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Written {
    pub rows: u64,
    pub bytes: u64,
}

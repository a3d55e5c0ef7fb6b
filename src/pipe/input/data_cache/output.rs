//! The file that rows are written to: it keeps a reserve of free disk space and stops on cancellation. Rows come in pieces from
//! the threads that read: in order, and only so many ahead of the one that writes.

use std::fs::File;
use std::io::{ErrorKind, Write};
use std::os::fd::AsRawFd;
use std::panic::AssertUnwindSafe;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use pipe_data::compressed::{ReadError, RowSink, Stopped};
use pipe_data::{panic_message, reader_thread};

use crate::error::Error;
use crate::system::files::Space;
use crate::system::interrupt::Watch;

/// A twentieth of every disk is kept free, and not more than this.
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

/// Bytes written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Written {
    pub rows: u64,
    pub bytes: u64,
}

/// Rows are collected up to so many bytes.
const PIECE: usize = 1 << 20;
/// Pieces that may wait for the writer.
const AHEAD: usize = 4;

pub enum Piece {
    Rows {
        bytes: Vec<u8>,
        rows: u64,
    },
    /// A file beside the rows.
    File {
        folder: String,
        name: String,
        bytes: Vec<u8>,
    },
}

enum Message {
    Piece(Piece),
    /// A group of rows is complete, or why it is not.
    Ended(Result<(), Error>),
}

/// Where a reader puts its rows.
pub struct Pieces {
    send: SyncSender<Message>,
    buffer: Vec<u8>,
    rows: u64,
}

impl RowSink for Pieces {
    fn buffer(&mut self) -> &mut Vec<u8> {
        &mut self.buffer
    }

    fn row_done(&mut self) -> Result<(), Stopped> {
        self.rows += 1;
        if self.buffer.len() >= PIECE { self.flush() } else { Ok(()) }
    }

    fn file(&mut self, folder: String, name: String, bytes: Vec<u8>) -> Result<(), Stopped> {
        self.send(Message::Piece(Piece::File { folder, name, bytes }))
    }
}

impl Pieces {
    /// Sends what was collected.
    fn flush(&mut self) -> Result<(), Stopped> {
        let bytes = std::mem::replace(&mut self.buffer, Vec::with_capacity(PIECE + PIECE / 8));
        let rows = std::mem::take(&mut self.rows);
        if bytes.is_empty() { Ok(()) } else { self.send(Message::Piece(Piece::Rows { bytes, rows })) }
    }

    /// If the writer has ended, it reports its own error.
    fn send(&self, message: Message) -> Result<(), Stopped> {
        self.send.send(message).map_err(|_| Stopped)
    }
}

/// Lets `read` make so many `groups` of rows, on as many threads as `readers`, and `write` take their pieces in the order of the
/// groups. `fail` makes errors of what readers say about the file, or panic with.
pub fn transfer(
    readers: usize,
    groups: usize,
    read: impl Fn(usize, &mut Pieces) -> Result<(), ReadError> + Sync,
    fail: impl Fn(String) -> Error + Sync,
    mut write: impl FnMut(Piece) -> Result<(), Error>,
) -> Result<(), Error> {
    let readers = readers.clamp(1, groups.max(1));
    std::thread::scope(|scope| {
        let mut channels: Vec<Receiver<Message>> = Vec::new();
        for reader in 0..readers {
            let (send, receive) = sync_channel(AHEAD);
            channels.push(receive);
            let (read, fail) = (&read, &fail);
            let work = move || {
                let mut pieces = Pieces { send, buffer: Vec::new(), rows: 0 };
                for group in (reader..groups).step_by(readers) {
                    let made = std::panic::catch_unwind(AssertUnwindSafe(|| {
                        read(group, &mut pieces).and_then(|()| Ok(pieces.flush()?))
                    }));
                    let ended = made.unwrap_or_else(|panic| Err(ReadError::File(panic_message(panic.as_ref()))));
                    let ended = ended.map_err(|error| match error {
                        ReadError::File(message) => fail(message),
                        ReadError::Stopped => Error::Interrupted,
                    });
                    let goes_on = ended.is_ok();
                    if pieces.send(Message::Ended(ended)).is_err() || !goes_on {
                        return;
                    }
                }
            };
            reader_thread().spawn_scoped(scope, work).map_err(|error| fail(error.to_string()))?;
        }
        for group in 0..groups {
            loop {
                match channels[group % readers].recv() {
                    Ok(Message::Piece(piece)) => write(piece)?,
                    Ok(Message::Ended(Ok(()))) => break,
                    Ok(Message::Ended(Err(error))) => return Err(error),
                    Err(_) => return Err(fail("its reader ended".to_owned())),
                }
            }
        }
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(group: usize, pieces: &mut Pieces) -> Result<(), ReadError> {
        for row in 0..12_000 {
            pieces.buffer().extend_from_slice(format!("{group} {row} {:>100}\n", "x").as_bytes());
            pieces.row_done()?;
        }
        Ok(())
    }

    fn fail(message: String) -> Error {
        Error::Data { path: "a".into(), message }
    }

    #[test]
    fn pieces_come_in_the_order_of_their_groups() {
        for readers in [1, 3, 8] {
            let mut text = Vec::new();
            let mut count = 0;
            let write = |piece: Piece| {
                let Piece::Rows { bytes, rows } = piece else { panic!("no files here") };
                count += rows;
                text.extend_from_slice(&bytes);
                Ok(())
            };
            transfer(readers, 5, read, fail, write).unwrap();
            assert_eq!(count, 60_000);
            let text = String::from_utf8(text).unwrap();
            for (number, line) in text.lines().enumerate() {
                assert!(line.starts_with(&format!("{} {} ", number / 12_000, number % 12_000)), "{line}");
            }
        }
    }

    #[test]
    fn a_failure_ends_all() {
        let broken =
            |group: usize, pieces: &mut Pieces| if group == 3 { panic!("page 7") } else { read(group, pieces) };
        let error = transfer(2, 5, broken, fail, |_| Ok(())).unwrap_err();
        assert_eq!(error.to_string(), "a: it is damaged: page 7");
        let error = transfer(2, 5, read, fail, |_| Err(Error::NoCache)).unwrap_err();
        assert!(matches!(error, Error::NoCache));
    }
}

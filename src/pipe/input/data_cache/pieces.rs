//! Rows on their way from the threads that read to the one that writes: in order, in pieces, only so many ahead.

use std::panic::AssertUnwindSafe;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use super::{STACK, THREAD, panic_message};
use crate::error::Error;

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
    /// A part is complete, or why it is not.
    Ended(Result<(), Error>),
}

/// Where a reader puts its rows.
pub struct Pieces {
    send: SyncSender<Message>,
    buffer: Vec<u8>,
    rows: u64,
}

impl Pieces {
    /// Where rows are appended; `row_done` sends them.
    pub fn buffer(&mut self) -> &mut Vec<u8> {
        &mut self.buffer
    }

    pub fn row_done(&mut self) -> Result<(), Error> {
        self.rows += 1;
        if self.buffer.len() >= PIECE { self.flush() } else { Ok(()) }
    }

    pub fn file(&self, folder: String, name: String, bytes: Vec<u8>) -> Result<(), Error> {
        self.send(Message::Piece(Piece::File { folder, name, bytes }))
    }

    /// Sends what was collected.
    pub fn flush(&mut self) -> Result<(), Error> {
        let bytes = std::mem::replace(&mut self.buffer, Vec::with_capacity(PIECE + PIECE / 8));
        let rows = std::mem::take(&mut self.rows);
        if bytes.is_empty() { Ok(()) } else { self.send(Message::Piece(Piece::Rows { bytes, rows })) }
    }

    /// If the writer has ended, it reports its own error.
    fn send(&self, message: Message) -> Result<(), Error> {
        self.send.send(message).map_err(|_| Error::Interrupted)
    }
}

/// Lets `read` make so many `parts`, on as many threads as `readers`, and `write` take their pieces in the order of the parts.
/// A reader that panics has met what `damaged` makes an error of.
pub fn transfer(
    readers: usize,
    parts: usize,
    read: impl Fn(usize, &mut Pieces) -> Result<(), Error> + Sync,
    damaged: impl Fn(String) -> Error + Sync,
    mut write: impl FnMut(Piece) -> Result<(), Error>,
) -> Result<(), Error> {
    let readers = readers.clamp(1, parts.max(1));
    std::thread::scope(|scope| {
        let mut channels: Vec<Receiver<Message>> = Vec::new();
        for reader in 0..readers {
            let (send, receive) = sync_channel(AHEAD);
            channels.push(receive);
            let (read, damaged) = (&read, &damaged);
            let work = move || {
                let mut pieces = Pieces { send, buffer: Vec::new(), rows: 0 };
                for part in (reader..parts).step_by(readers) {
                    let made = std::panic::catch_unwind(AssertUnwindSafe(|| {
                        read(part, &mut pieces).and_then(|()| pieces.flush())
                    }));
                    let ended = made.unwrap_or_else(|panic| Err(damaged(panic_message(panic.as_ref()))));
                    let goes_on = ended.is_ok();
                    if pieces.send(Message::Ended(ended)).is_err() || !goes_on {
                        return;
                    }
                }
            };
            let thread = std::thread::Builder::new().name(THREAD.to_owned()).stack_size(STACK);
            thread.spawn_scoped(scope, work).map_err(|error| damaged(error.to_string()))?;
        }
        for part in 0..parts {
            loop {
                match channels[part % readers].recv() {
                    Ok(Message::Piece(piece)) => write(piece)?,
                    Ok(Message::Ended(Ok(()))) => break,
                    Ok(Message::Ended(Err(error))) => return Err(error),
                    Err(_) => return Err(damaged("its reader ended".to_owned())),
                }
            }
        }
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(part: usize, pieces: &mut Pieces) -> Result<(), Error> {
        for row in 0..12_000 {
            pieces.buffer().extend_from_slice(format!("{part} {row} {:>100}\n", "x").as_bytes());
            pieces.row_done()?;
        }
        Ok(())
    }

    fn fail(message: String) -> Error {
        Error::Data { path: "a".into(), message }
    }

    #[test]
    fn pieces_come_in_the_order_of_their_parts() {
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
        let broken = |part: usize, pieces: &mut Pieces| if part == 3 { panic!("page 7") } else { read(part, pieces) };
        let error = transfer(2, 5, broken, fail, |_| Ok(())).unwrap_err();
        assert_eq!(error.to_string(), "a: it is damaged: page 7");
        let error = transfer(2, 5, read, fail, |_| Err(Error::NoCache)).unwrap_err();
        assert!(matches!(error, Error::NoCache));
    }
}

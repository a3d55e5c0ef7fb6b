//! Event files for TensorBoard: `tensorboard --logdir runs` shows every run that has one.
//!
//! A file is a row of records, each with its length and checksums (CRC-32C, masked); a record is an `Event` message of
//! tensorflow's event.proto, of which few fields are needed.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

use pipe_spec::Event;

use super::protobuf::Message;
use super::{Listener, Notice, scalars};

pub struct TensorBoard {
    file: File,
}

impl TensorBoard {
    /// A new file in the folder `tensorboard` of a run; every start of `pipe` has its own.
    pub fn create(run: &Path, now: f64) -> io::Result<Self> {
        let folder = run.join("tensorboard");
        fs::create_dir_all(&folder)?;
        let file = File::create(folder.join(format!("events.out.tfevents.{:010}.pipe", now as u64)))?;
        let mut board = Self { file };
        let mut first = Message::default();
        first.double(1, now).bytes(3, b"brain.Event:2");
        board.write(first.encoded())?;
        Ok(board)
    }

    /// Writes the values of an event, if it has any.
    fn event(&mut self, event: &Event) -> io::Result<()> {
        match scalars(&event.kind) {
            Some((step, values)) => self.scalars(event.ts, step, &values),
            None => Ok(()),
        }
    }

    fn scalars(&mut self, at: f64, step: u64, values: &[(String, f64)]) -> io::Result<()> {
        let mut summary = Message::default();
        for (tag, value) in values {
            let mut one = Message::default();
            one.bytes(1, tag.as_bytes()).float(2, *value as f32);
            summary.message(1, &one);
        }
        let mut event = Message::default();
        event.double(1, at).number(2, step).message(5, &summary);
        self.write(event.encoded())
    }

    fn write(&mut self, record: &[u8]) -> io::Result<()> {
        let length = (record.len() as u64).to_le_bytes();
        let mut bytes = Vec::with_capacity(record.len() + 16);
        bytes.extend_from_slice(&length);
        bytes.extend_from_slice(&masked(&length).to_le_bytes());
        bytes.extend_from_slice(record);
        bytes.extend_from_slice(&masked(record).to_le_bytes());
        // One write per record: a reader sees no partial records.
        self.file.write_all(&bytes)
    }
}

impl Listener for TensorBoard {
    fn receive(&mut self, notice: &Notice<'_>) -> Result<(), String> {
        match notice {
            Notice::Event(recorded) => {
                self.event(&recorded.event).map_err(|error| format!("cannot write for TensorBoard: {error}"))
            }
            Notice::RunStarted(_) | Notice::AttemptEnded(_) | Notice::Retried(_) | Notice::RunEnded(_) => Ok(()),
        }
    }
}

fn masked(bytes: &[u8]) -> u32 {
    crc32c::crc32c(bytes).rotate_right(15).wrapping_add(0xa282_ead8)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As tensorflow's own record writer masks them.
    #[test]
    fn checksums_are_masked() {
        assert_eq!(crc32c::crc32c(b"123456789"), 0xe306_9283);
        assert_eq!(masked(b"123456789"), 0xe306_9283u32.rotate_right(15).wrapping_add(0xa282_ead8));
    }
}

//! Event files for TensorBoard: `tensorboard --logdir runs` shows every run that has one.
//!
//! A file is a row of records, each with its length and checksums (CRC-32C, masked); a record is an `Event` message of
//! tensorflow's event.proto, of which few fields are needed.
//!
//! Protocol buffers, encoded by hand: the few messages that TensorBoard and W&B read need no generated code.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

use pipe_spec::Event;

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

/// A message, field by field.
#[derive(Default)]
pub struct Message(Vec<u8>);

impl Message {
    pub fn encoded(&self) -> &[u8] {
        &self.0
    }

    pub fn number(&mut self, field: u64, value: u64) -> &mut Self {
        self.key(field, 0).varint(value)
    }

    pub fn double(&mut self, field: u64, value: f64) -> &mut Self {
        self.key(field, 1).0.extend_from_slice(&value.to_le_bytes());
        self
    }

    pub fn bytes(&mut self, field: u64, value: &[u8]) -> &mut Self {
        self.key(field, 2).varint(value.len() as u64).0.extend_from_slice(value);
        self
    }

    /// An empty text is the default of proto3 and is not written.
    pub fn text(&mut self, field: u64, value: &str) -> &mut Self {
        if value.is_empty() { self } else { self.bytes(field, value.as_bytes()) }
    }

    pub fn message(&mut self, field: u64, value: &Message) -> &mut Self {
        self.bytes(field, &value.0)
    }

    pub fn float(&mut self, field: u64, value: f32) -> &mut Self {
        self.key(field, 5).0.extend_from_slice(&value.to_le_bytes());
        self
    }

    fn key(&mut self, field: u64, kind: u64) -> &mut Self {
        self.varint(field << 3 | kind)
    }

    fn varint(&mut self, mut number: u64) -> &mut Self {
        while number > 0x7f {
            self.0.push(number as u8 | 0x80);
            number >>= 7;
        }
        self.0.push(number as u8);
        self
    }
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

#[cfg(test)]
mod protobuf_tests {
    use super::*;

    #[test]
    fn messages_are_those_of_protobuf() {
        let mut message = Message::default();
        message.number(2, 300).bytes(3, b"ab").text(4, "").float(2, 1.0);
        assert_eq!(message.encoded(), [0x10, 0xac, 0x02, 0x1a, 2, b'a', b'b', 0x15, 0, 0, 0x80, 0x3f]);
    }
}

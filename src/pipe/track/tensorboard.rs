//! Event files for TensorBoard: `tensorboard --logdir runs` shows every run that has one.
//!
//! A file is a row of records, each with its length and checksums (CRC-32C, masked); a record is an `Event` message of
//! tensorflow's event.proto, of which few fields are needed.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

use pipe_spec::Event;

use super::{Listener, News, scalars};

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
        board.write(&first.0)?;
        Ok(board)
    }

    /// Writes what an event tells, if it tells anything by step.
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
            summary.bytes(1, &one.0);
        }
        let mut event = Message::default();
        event.double(1, at).number(2, step).bytes(5, &summary.0);
        self.write(&event.0)
    }

    fn write(&mut self, record: &[u8]) -> io::Result<()> {
        let length = (record.len() as u64).to_le_bytes();
        let mut bytes = Vec::with_capacity(record.len() + 16);
        bytes.extend_from_slice(&length);
        bytes.extend_from_slice(&masked(&length).to_le_bytes());
        bytes.extend_from_slice(record);
        bytes.extend_from_slice(&masked(record).to_le_bytes());
        // Whole records at once: whoever reads along finds no half ones.
        self.file.write_all(&bytes)
    }
}

impl Listener for TensorBoard {
    fn hear(&mut self, news: &News<'_>) -> Result<(), String> {
        match news {
            News::Event(recorded) => {
                self.event(&recorded.event).map_err(|error| format!("cannot write for TensorBoard: {error}"))
            }
            News::RunStarted(_) | News::AttemptEnded(_) | News::Retried(_) | News::RunEnded(_) => Ok(()),
        }
    }
}

fn masked(bytes: &[u8]) -> u32 {
    crc32c::crc32c(bytes).rotate_right(15).wrapping_add(0xa282_ead8)
}

/// A protocol buffer, field by field.
#[derive(Default)]
struct Message(Vec<u8>);

impl Message {
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

    fn number(&mut self, field: u64, value: u64) -> &mut Self {
        self.key(field, 0).varint(value)
    }

    fn double(&mut self, field: u64, value: f64) -> &mut Self {
        self.key(field, 1).0.extend_from_slice(&value.to_le_bytes());
        self
    }

    fn bytes(&mut self, field: u64, value: &[u8]) -> &mut Self {
        self.key(field, 2).varint(value.len() as u64).0.extend_from_slice(value);
        self
    }

    fn float(&mut self, field: u64, value: f32) -> &mut Self {
        self.key(field, 5).0.extend_from_slice(&value.to_le_bytes());
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_those_of_protobuf() {
        let mut message = Message::default();
        message.number(2, 300).bytes(3, b"ab").float(2, 1.0);
        assert_eq!(message.0, [0x10, 0xac, 0x02, 0x1a, 2, b'a', b'b', 0x15, 0, 0, 0x80, 0x3f]);
    }

    /// As tensorflow's own record writer masks them.
    #[test]
    fn checksums_are_masked() {
        assert_eq!(crc32c::crc32c(b"123456789"), 0xe306_9283);
        assert_eq!(masked(b"123456789"), 0xe306_9283u32.rotate_right(15).wrapping_add(0xa282_ead8));
    }
}

//! The file `run-<id>.wandb`: a header of seven bytes, then records in the log format of LevelDB. A record is split where a
//! block of 32 KiB ends; each piece has a checksum (CRC-32 of IEEE, not masked), a length and a type. A file that ends in the
//! middle of a record can be read up to the record before.
//!
//! The records of a `.wandb` file, as W&B's `wandb_internal.proto` has them: the fields that `wandb sync` reads.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use super::Identity;
use crate::track::tensorboard::Message;

/// The name, the magic number and the version of the format.
const HEADER: [u8; 7] = *b":W&B\xe1\xbe\x00";

const BLOCK: usize = 32 * 1024;

/// Checksum, length and type of a piece.
const PIECE_HEADER: usize = 7;

/// Types of a piece: the whole record, or its first, a middle or its last piece.
const WHOLE: u8 = 1;
const FIRST: u8 = 2;
const MIDDLE: u8 = 3;
const LAST: u8 = 4;

/// Bytes that are gathered before they are written.
const BUFFER: usize = 1 << 20;

pub struct Log {
    path: PathBuf,
    file: File,
    /// Bytes that are in the file.
    written: u64,
    buffer: Vec<u8>,
}

impl Log {
    /// A new file under a temporary name, until `publish` gives it its own. A file that has that name stays until then.
    pub fn create(path: &Path) -> io::Result<Self> {
        let file = File::create(temporary(path))?;
        Ok(Self { path: path.to_owned(), file, written: 0, buffer: HEADER.to_vec() })
    }

    pub fn publish(&mut self) -> io::Result<()> {
        self.flush()?;
        std::fs::rename(temporary(&self.path), &self.path)
    }

    pub fn append(&mut self, record: &[u8]) -> io::Result<()> {
        let at = self.written as usize + self.buffer.len();
        frame(at, record, &mut self.buffer);
        if self.buffer.len() >= BUFFER { self.flush() } else { Ok(()) }
    }

    /// Writes whole records. What a full disk took only in part is cut off again.
    pub fn flush(&mut self) -> io::Result<()> {
        if let Err(error) = self.file.write_all(&self.buffer) {
            self.file.set_len(self.written).ok();
            return Err(error);
        }
        self.written += self.buffer.len() as u64;
        self.buffer.clear();
        Ok(())
    }
}

fn temporary(path: &Path) -> PathBuf {
    path.with_extension("wandb.part")
}

/// Adds the pieces of a record that begins at byte `at` of the file.
fn frame(mut at: usize, record: &[u8], out: &mut Vec<u8>) {
    let mut rest = record;
    let mut first = true;
    loop {
        let room = BLOCK - at % BLOCK;
        if room < PIECE_HEADER {
            out.resize(out.len() + room, 0);
            at += room;
            continue;
        }
        let (piece, after) = rest.split_at(rest.len().min(room - PIECE_HEADER));
        let kind = match (first, after.is_empty()) {
            (true, true) => WHOLE,
            (true, false) => FIRST,
            (false, true) => LAST,
            (false, false) => MIDDLE,
        };
        let mut checksum = flate2::Crc::new();
        checksum.update(&[kind]);
        checksum.update(piece);
        out.extend_from_slice(&checksum.sum().to_le_bytes());
        out.extend_from_slice(&(piece.len() as u16).to_le_bytes());
        out.push(kind);
        out.extend_from_slice(piece);
        if after.is_empty() {
            return;
        }
        at += PIECE_HEADER + piece.len();
        (rest, first) = (after, false);
    }
}

/// Fields of `Record`: one of them beside its number.
#[derive(Clone, Copy)]
pub enum RecordKind {
    History = 2,
    Summary = 3,
    Config = 5,
    Files = 6,
    Run = 17,
    Exit = 18,
    Header = 21,
}

/// Record number `number` of a file; they count from 1.
pub fn record(number: u64, kind: RecordKind, content: &Message) -> Message {
    let mut record = Message::default();
    record.number(1, number).message(kind as u64, content);
    record
}

/// Which program wrote the file.
pub fn header() -> Message {
    let (mut version, mut header) = (Message::default(), Message::default());
    version.text(1, concat!("pipe-", env!("CARGO_PKG_VERSION")));
    header.message(1, &version);
    header
}

/// The name of the run, its project, and its settings.
pub fn run(identity: &Identity, config: &Map<String, Value>) -> Message {
    let mut run = Message::default();
    run.text(1, &identity.id).text(2, &identity.labels.entity).text(3, &identity.project);
    run.message(4, &updates(config)).text(6, &identity.labels.group).text(8, &identity.name);
    run.text(9, &identity.labels.notes);
    for tag in &identity.labels.tags {
        run.text(10, tag);
    }
    run.text(13, &identity.host).message(17, &timestamp(identity.created));
    run
}

/// A file of the folder `files` that is uploaded with the run, among W&B's own.
pub fn file(name: &str) -> Message {
    let (mut item, mut files) = (Message::default(), Message::default());
    item.text(1, name).number(3, 1);
    files.message(1, &item);
    files
}

/// The values of one step.
pub fn history(step: u64, values: &Map<String, Value>) -> Message {
    let (mut history, mut number) = (updates(values), Message::default());
    number.number(1, step);
    history.message(2, &number);
    history
}

/// New values for keys of the config or of the summary; the items of a history record have the same fields.
pub fn updates(values: &Map<String, Value>) -> Message {
    let mut updates = Message::default();
    for (key, value) in values {
        let mut item = Message::default();
        item.text(1, key).text(16, &value.to_string());
        updates.message(1, &item);
    }
    updates
}

pub fn exit(code: u64, seconds: f64) -> Message {
    let mut exit = Message::default();
    exit.number(1, code).number(2, seconds as u64);
    exit
}

fn timestamp(seconds: f64) -> Message {
    let mut timestamp = Message::default();
    timestamp.number(1, seconds as u64).number(2, (seconds.fract() * 1e9) as u64);
    timestamp
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The pieces of a file: type, and length without its header.
    fn pieces(file: &[u8]) -> Vec<(u8, usize)> {
        let (mut at, mut found) = (HEADER.len(), Vec::new());
        while at < file.len() {
            let room = BLOCK - at % BLOCK;
            if room < PIECE_HEADER {
                at += room;
                continue;
            }
            let length = u16::from_le_bytes([file[at + 4], file[at + 5]]) as usize;
            let mut checksum = flate2::Crc::new();
            checksum.update(&file[at + 6..at + PIECE_HEADER + length]);
            assert_eq!(file[at..at + 4], checksum.sum().to_le_bytes());
            found.push((file[at + 6], length));
            at += PIECE_HEADER + length;
        }
        found
    }

    #[test]
    fn records_are_split_where_a_block_ends() {
        let first = BLOCK - HEADER.len() - PIECE_HEADER;
        let whole = BLOCK - PIECE_HEADER;
        let cases = [
            (vec![0, 10], vec![(WHOLE, 0), (WHOLE, 10)]),
            (vec![first], vec![(WHOLE, first)]),
            (vec![first + 1], vec![(FIRST, first), (LAST, 1)]),
            (vec![first + whole + 5], vec![(FIRST, first), (MIDDLE, whole), (LAST, 5)]),
            // Six bytes are left of the block, which is no room for a header; seven are, for a piece without content.
            (vec![first - 6, 3], vec![(WHOLE, first - 6), (WHOLE, 3)]),
            (vec![first - 7, 3], vec![(WHOLE, first - 7), (FIRST, 0), (LAST, 3)]),
        ];
        for (lengths, want) in cases {
            let mut file = HEADER.to_vec();
            for length in &lengths {
                let at = file.len();
                frame(at, &vec![7; *length], &mut file);
            }
            assert_eq!(pieces(&file), want, "{lengths:?}");
        }
    }

    /// The standard check value of CRC-32.
    #[test]
    fn the_checksum_is_that_of_ieee() {
        let mut checksum = flate2::Crc::new();
        checksum.update(b"123456789");
        assert_eq!(checksum.sum(), 0xcbf4_3926);
    }
}

#[cfg(test)]
mod record_tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_row_is_a_numbered_history_record() {
        let row = record(3, RecordKind::History, &history(7, &Map::from_iter([("a".to_owned(), json!(1))])));
        let item = [0x0a, 3 + 4, 0x0a, 1, b'a', 0x82, 0x01, 1, b'1'];
        let step = [0x12, 2, 0x08, 7];
        let want = [&[0x08, 3, 0x12, 13][..], &item, &step].concat();
        assert_eq!(row.encoded(), want);
    }
}

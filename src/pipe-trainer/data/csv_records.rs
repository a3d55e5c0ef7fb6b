//! The records of a table (.csv with commas, semicolons, tabs or bars, .tsv), one at a time. A record that never ends (a quote that is not closed) is
//! refused instead of being gathered in memory.

use std::cell::Cell;
use std::fs::File;
use std::io::{self, BufReader, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use csv::{ErrorKind, Position, ReaderBuilder, StringRecord};
use pipe_spec::separator;
use pipe_spec::text::human_bytes;

use super::row::{BYTE_ORDER_MARK, LONGEST_ROW};
use crate::boundary;
use crate::error::TrainerError;
use crate::host::activity;

/// What the reader may hold beyond the record that it is in.
const READ_AHEAD: u64 = 1 << 16;

pub struct CsvRecords {
    path: PathBuf,
    reader: csv::Reader<BoundedFile>,
    /// Up to which byte the file may be read for the next record.
    allowed: Rc<Cell<u64>>,
    rows: u64,
    separator: u8,
}

struct BoundedFile {
    file: File,
    read: u64,
    allowed: Rc<Cell<u64>>,
}

impl Read for BoundedFile {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.read >= self.allowed.get() {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let count = self.file.read(buffer)?;
        self.read += count as u64;
        Ok(count)
    }
}

impl CsvRecords {
    pub fn open(path: &Path, builder: &mut ReaderBuilder) -> Result<Self, TrainerError> {
        let fail =
            |error: io::Error| TrainerError::Data { path: path.to_owned(), line: None, message: error.to_string() };
        let mut file = File::open(path).map_err(fail)?;
        // The reader would skip the mark too, without counting its bytes.
        let mark = skip_byte_order_mark(&mut file).map_err(fail)?;
        let separator = find_separator(path, &mut file, mark).map_err(fail)?;
        let allowed = Rc::new(Cell::new(LONGEST_ROW + READ_AHEAD));
        let reader =
            builder.delimiter(separator).from_reader(BoundedFile { file, read: 0, allowed: Rc::clone(&allowed) });
        Ok(Self { path: path.to_owned(), reader, allowed, rows: 0, separator })
    }

    /// What stands between the cells.
    pub fn separator(&self) -> u8 {
        self.separator
    }

    pub fn headers(&mut self) -> Result<StringRecord, TrainerError> {
        let position = self.reader.position().clone();
        match self.reader.headers() {
            Ok(headers) => Ok(headers.clone()),
            Err(error) => Err(self.wrong(&error, &position)),
        }
    }

    /// `position` is where the record was expected.
    fn wrong(&self, error: &csv::Error, position: &Position) -> TrainerError {
        let line = Some(line_at(&self.path, error.position().unwrap_or(position)));
        let (line, message) = match error.kind() {
            ErrorKind::Io(cause) if cause.kind() == io::ErrorKind::InvalidData => {
                let most = human_bytes(LONGEST_ROW);
                (line, format!("the row has more than {most}; is a quote not closed?"))
            }
            ErrorKind::UnequalLengths { expected_len, len, .. } => {
                (line, format!("{len} values; the first line names {expected_len} columns"))
            }
            ErrorKind::Utf8 { .. } => (line, "not UTF-8".to_owned()),
            _ => (None, error.to_string()),
        };
        TrainerError::Data { path: self.path.clone(), line, message }
    }
}

/// The line on which a record of the file at `path` begins, counted from 1.
pub fn line_of(path: &Path, record: &StringRecord) -> u64 {
    record.position().map_or(1, |position| line_at(path, position))
}

/// The line of the record that begins at `position` or behind it: the reader only knows where the record before has ended, and
/// the end of its line or blank lines may follow.
fn line_at(path: &Path, position: &Position) -> u64 {
    let before = || -> io::Result<u64> {
        let mut file = File::open(path)?;
        let mark = skip_byte_order_mark(&mut file)?;
        file.seek(SeekFrom::Start(mark + position.byte()))?;
        let mut lines = 0;
        for byte in BufReader::new(file).bytes() {
            match byte? {
                b'\n' => lines += 1,
                b'\r' => {}
                _ => break,
            }
        }
        Ok(lines)
    };
    position.line() + before().unwrap_or(0)
}

/// Moves behind the mark that some programs begin a file of UTF-8 with; how many bytes it has.
fn skip_byte_order_mark(file: &mut File) -> io::Result<u64> {
    let mut first = Vec::new();
    file.by_ref().take(BYTE_ORDER_MARK.len() as u64).read_to_end(&mut first)?;
    let length = if first == BYTE_ORDER_MARK { first.len() as u64 } else { 0 };
    file.seek(SeekFrom::Start(length))
}

/// From the first line, which begins behind `mark` bytes; the file is there again afterwards.
fn find_separator(path: &Path, file: &mut File, mark: u64) -> io::Result<u8> {
    let mut start = Vec::new();
    file.by_ref().take(separator::LOOKED_AT).read_to_end(&mut start)?;
    file.seek(SeekFrom::Start(mark))?;
    Ok(separator::find(path, &start))
}

impl Iterator for CsvRecords {
    type Item = Result<StringRecord, TrainerError>;

    fn next(&mut self) -> Option<Self::Item> {
        let position = self.reader.position().clone();
        self.allowed.set(position.byte() + LONGEST_ROW + READ_AHEAD);
        self.rows += 1;
        let mut record = StringRecord::new();
        let reader = &mut self.reader;
        let read = activity::during(format_args!("row {} of {}", self.rows, self.path.display()), || {
            reader.read_record(&mut record)
        });
        match read {
            Err(error) => Some(Err(self.wrong(&error, &position))),
            Ok(false) => None,
            Ok(true) => Some(boundary::check_host_memory().map(|()| record)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The lines of the records of a text; of an error its message.
    fn lines(name: &str, text: &[u8]) -> Vec<Result<u64, String>> {
        let path = std::env::temp_dir().join(format!("pipe-lines-{name}-{}.csv", std::process::id()));
        std::fs::write(&path, text).unwrap();
        let mut records = CsvRecords::open(&path, &mut ReaderBuilder::new()).unwrap();
        let header = records.headers().map(|header| line_of(&path, &header));
        let rows: Vec<_> = records.map(|record| record.map(|record| line_of(&path, &record))).collect();
        let place = format!("{} ", path.display());
        let shown = |error: TrainerError| error.to_string().replace(&place, "");
        let lines = std::iter::once(header).chain(rows).map(|line| line.map_err(shown)).collect();
        std::fs::remove_file(path).unwrap();
        lines
    }

    #[test]
    fn every_record_has_the_line_it_begins_on() {
        let texts: [(&str, &str, &[u64]); 5] = [
            ("plain", "a,b\n1,2\n3,4", &[1, 2, 3]),
            ("quoted", "a,b\n\"1\n\n\",2\n3,4\n\"5\n\",6\n7,8\n", &[1, 2, 5, 6, 8]),
            ("blank", "\n\na,b\n\n1,2\n\n\n3,4\n", &[3, 5, 8]),
            ("quoted-header", "\"a\nb\",c\n1,2\n", &[1, 3]),
            ("quoted-and-blank", "a,b\n\n\"1\n\",2\n\n3,4\n", &[1, 3, 6]),
        ];
        for (name, text, want) in texts {
            for (ending, text) in [("lf", text.to_owned()), ("crlf", text.replace('\n', "\r\n"))] {
                for mark in [&b""[..], b"\xef\xbb\xbf"] {
                    let got = lines(name, &[mark, text.as_bytes()].concat());
                    let want: Vec<_> = want.iter().map(|line| Ok(*line)).collect();
                    assert_eq!(got, want, "{name} {ending} {mark:?}");
                }
            }
        }
    }

    #[test]
    fn what_is_no_record_is_named_with_its_line() {
        for (name, text, want) in [
            ("few", &b"a,b\n1,2\n\n3\n"[..], "line 4: 1 values; the first line names 2 columns"),
            ("many", b"\xef\xbb\xbfa,b\r\n1,2\r\n3,4,5\r\n", "line 3: 3 values; the first line names 2 columns"),
            ("latin", b"a,b\r\n\"1\r\n\",2\r\n\xe4,4\r\n", "line 4: not UTF-8"),
        ] {
            assert_eq!(lines(name, text).pop(), Some(Err(want.to_owned())));
        }
    }

    #[test]
    fn a_quote_that_is_not_closed_is_named_with_its_line() {
        let path = std::env::temp_dir().join(format!("pipe-records-{}.csv", std::process::id()));
        std::fs::write(&path, "a,b\n1,2\n3,\"4\n").unwrap();
        // The rest of the file is a hole, which reads as zeros and takes no room.
        File::options().write(true).open(&path).unwrap().set_len(1 << 34).unwrap();
        let mut records = CsvRecords::open(&path, &mut ReaderBuilder::new()).unwrap();
        assert_eq!(records.headers().unwrap(), StringRecord::from(vec!["a", "b"]));
        assert_eq!(records.next().unwrap().unwrap(), StringRecord::from(vec!["1", "2"]));
        let error = records.next().unwrap().unwrap_err().to_string();
        assert!(error.ends_with("line 3: the row has more than 64.0 MiB; is a quote not closed?"), "{error}");
        std::fs::remove_file(path).unwrap();
    }
}

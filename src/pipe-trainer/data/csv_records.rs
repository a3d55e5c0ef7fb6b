//! The records of a file of comma-separated values, one at a time. A record that never ends (a quote that is not closed) is
//! refused instead of being gathered in memory.

use std::cell::Cell;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use csv::{ErrorKind, ReaderBuilder, StringRecord};
use pipe_spec::text::human_bytes;

use super::row::LONGEST_ROW;
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
    pub fn open(path: &Path, builder: &ReaderBuilder) -> Result<Self, TrainerError> {
        let fail =
            |error: io::Error| TrainerError::Data { path: path.to_owned(), line: None, message: error.to_string() };
        let file = File::open(path).map_err(fail)?;
        let allowed = Rc::new(Cell::new(LONGEST_ROW + READ_AHEAD));
        let reader = builder.from_reader(BoundedFile { file, read: 0, allowed: Rc::clone(&allowed) });
        Ok(Self { path: path.to_owned(), reader, allowed, rows: 0 })
    }

    pub fn headers(&mut self) -> Result<StringRecord, TrainerError> {
        let line = self.reader.position().line();
        match self.reader.headers() {
            Ok(headers) => Ok(headers.clone()),
            Err(error) => Err(self.wrong(&error, line)),
        }
    }

    fn wrong(&self, error: &csv::Error, line: u64) -> TrainerError {
        let (line, message) = match error.kind() {
            ErrorKind::Io(cause) if cause.kind() == io::ErrorKind::InvalidData => {
                let most = human_bytes(LONGEST_ROW);
                (Some(line), format!("the row has more than {most}; is a quote not closed?"))
            }
            _ => (error.position().map(csv::Position::line), error.to_string()),
        };
        TrainerError::Data { path: self.path.clone(), line, message }
    }
}

impl Iterator for CsvRecords {
    type Item = Result<StringRecord, TrainerError>;

    fn next(&mut self) -> Option<Self::Item> {
        let (byte, line) = (self.reader.position().byte(), self.reader.position().line());
        self.allowed.set(byte + LONGEST_ROW + READ_AHEAD);
        self.rows += 1;
        let mut record = StringRecord::new();
        let reader = &mut self.reader;
        let read = activity::during(format_args!("row {} of {}", self.rows, self.path.display()), || {
            reader.read_record(&mut record)
        });
        match read {
            Err(error) => Some(Err(self.wrong(&error, line))),
            Ok(false) => None,
            Ok(true) => Some(boundary::check_host_memory().map(|()| record)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quote_that_is_not_closed_is_named_with_its_line() {
        let path = std::env::temp_dir().join(format!("pipe-records-{}.csv", std::process::id()));
        std::fs::write(&path, "a,b\n1,2\n3,\"4\n").unwrap();
        // The rest of the file is a hole, which reads as zeros and takes no room.
        File::options().write(true).open(&path).unwrap().set_len(1 << 34).unwrap();
        let mut records = CsvRecords::open(&path, &ReaderBuilder::new()).unwrap();
        assert_eq!(records.headers().unwrap(), StringRecord::from(vec!["a", "b"]));
        assert_eq!(records.next().unwrap().unwrap(), StringRecord::from(vec!["1", "2"]));
        let error = records.next().unwrap().unwrap_err().to_string();
        assert!(error.ends_with("line 3: the row has more than 64.0 MiB; is a quote not closed?"), "{error}");
        std::fs::remove_file(path).unwrap();
    }
}

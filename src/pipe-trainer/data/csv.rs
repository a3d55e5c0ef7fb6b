//! One file of comma-separated values with a line of names, read whole; numbers in it stay texts until they are parsed.

use std::fs::File;
use std::io::{BufReader, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::csv_records::CsvRecords;
use crate::error::TrainerError;

pub struct CsvFile {
    path: PathBuf,
    names: Vec<String>,
    /// The index of each column that is used.
    places: Vec<Option<usize>>,
    rows: Vec<csv::StringRecord>,
}

impl CsvFile {
    pub fn open(path: &Path, columns: &[String]) -> Result<Self, TrainerError> {
        let fail = |line: Option<u64>, message: String| TrainerError::Data { path: path.to_owned(), line, message };
        let mut records = CsvRecords::open(path, &csv::ReaderBuilder::new())?;
        let names: Vec<String> = records.headers()?.iter().map(|name| name.trim().to_owned()).collect();
        let rows = records.collect::<Result<Vec<_>, _>>()?;
        if rows.is_empty() {
            return Err(fail(None, "the file has no rows".to_owned()));
        }
        let places = columns.iter().map(|column| names.iter().position(|name| name == column)).collect();
        Ok(Self { path: path.to_owned(), names, places, rows })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn len(&self) -> usize {
        self.rows.len()
    }

    pub fn names(&self) -> &[String] {
        &self.names
    }

    pub fn row(&self, index: usize) -> Result<Vec<Option<Value>>, TrainerError> {
        let row = &self.rows[index];
        let value =
            |place: &Option<usize>| place.and_then(|place| row.get(place)).map(|text| Value::String(text.to_owned()));
        Ok(self.places.iter().map(value).collect())
    }

    pub fn line_number(&self, index: usize) -> u64 {
        line_of(&self.path, &self.rows[index])
    }
}

/// The line on which a row of a file stands. What the reader remembers is where the row before ended: blank lines may follow.
pub fn line_of(path: &Path, row: &csv::StringRecord) -> u64 {
    let Some(position) = row.position() else { return 0 };
    let blank = || -> std::io::Result<u64> {
        let mut file = BufReader::new(File::open(path)?);
        file.seek(SeekFrom::Start(position.byte()))?;
        let mut lines = 0;
        for byte in file.bytes() {
            match byte? {
                b'\n' => lines += 1,
                b'\r' => {}
                _ => break,
            }
        }
        Ok(lines)
    };
    position.line() + blank().unwrap_or(0)
}

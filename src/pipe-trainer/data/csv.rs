//! One table with a line of names, read whole; numbers in it stay texts until they are parsed.

use std::path::{Path, PathBuf};

use serde_json::Value;

use super::csv_records::{CsvRecords, line_of};
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
        let mut records = CsvRecords::open(path, &mut csv::ReaderBuilder::new())?;
        let header = records.headers()?;
        let names: Vec<String> = header.iter().map(|name| name.trim().to_owned()).collect();
        let is_double = |column: &&String| names.iter().filter(|name| name == column).count() > 1;
        if let Some(double) = columns.iter().find(is_double) {
            let message = format!("two columns are called {double:?}; rename or remove one of them");
            return Err(fail(Some(line_of(path, &header)), message));
        }
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

//! Shared by all rows: errors that name the file and the line, the place of a row, and bounds.

use std::fmt;
use std::fs::File;
use std::path::{Path, PathBuf};

use memmap2::Mmap;
use pipe_spec::text::human_bytes;
use serde_json::Value;

/// A line of a JSON lines file, or a record of a CSV file, has no more bytes.
pub const LONGEST_ROW: u64 = 64 << 20;

/// The message for a row that is longer, and was not read to its end.
pub fn too_long(longest: u64) -> String {
    format!("the row has more than {}, the most that is allowed", human_bytes(longest))
}

/// Some programs begin a file of UTF-8 with it.
pub const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// Something wrong with a data file, and the line where it is, counted from 1.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}{}: {message}", path.display(), line.map(|line| format!(" line {line}")).unwrap_or_default())]
pub struct DataError {
    pub path: PathBuf,
    pub line: Option<u64>,
    pub message: String,
}

impl DataError {
    pub fn new(path: &Path, line: Option<u64>, message: impl fmt::Display) -> Self {
        Self { path: path.to_owned(), line, message: message.to_string() }
    }

    /// The message with its line, for an error that names the file by itself.
    pub fn in_file(&self) -> String {
        self.line.map(|line| format!("line {line}: ")).unwrap_or_default() + &self.message
    }
}

/// Maps a data file that is not empty into memory.
pub fn map_file(path: &Path) -> Result<Mmap, DataError> {
    let fail = |message: String| DataError::new(path, None, message);
    let file = File::open(path).map_err(|error| fail(error.to_string()))?;
    if file.metadata().is_ok_and(|metadata| metadata.len() == 0) {
        return Err(fail("the file is empty".to_owned()));
    }
    // SAFETY: a data set that another program shortens while it is trained on ends the process, as losing it would.
    unsafe { Mmap::map(&file) }.map_err(|error| fail(error.to_string()))
}

/// The number of the line, counted from 1, that a byte of a mapped file is on.
pub fn line_at(bytes: &[u8], byte: usize) -> u64 {
    bytes[..byte].iter().filter(|byte| **byte == b'\n').count() as u64 + 1
}

/// A row or a text by its number in its file: "row 3 of train.jsonl".
#[derive(Clone, Copy)]
pub struct Place<'a> {
    pub noun: &'static str,
    pub number: usize,
    pub path: &'a Path,
}

impl fmt::Display for Place<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} of {}", self.noun, self.number, self.path.display())
    }
}

/// The kind of a JSON value, in words.
pub fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a truth value",
        Value::Number(_) => "a number",
        Value::String(_) => "a text",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

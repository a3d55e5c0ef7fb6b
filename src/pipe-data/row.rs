//! Shared by all rows: errors that name the file and the line, the place of a row, and bounds.

use std::fmt;
use std::path::{Path, PathBuf};

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

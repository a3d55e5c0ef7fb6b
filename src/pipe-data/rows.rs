//! The rows of a data set: its files one after the other, the columns of each row that are used.

use std::fmt;
use std::path::{Path, PathBuf};

use pipe_spec::pipeline::Paths;
use pipe_spec::text::human_bytes;
use serde_json::Value;

use crate::csv::{CsvFile, CsvRecords, StringRecord};
use crate::jsonl::JsonlFile;

/// A line of a JSON lines file, or a record of a CSV file, has no more bytes.
pub const LONGEST_ROW: u64 = 64 << 20;
/// A text of a row has no more bytes. A novel has one or two million; what a tokenizer makes of a text takes some 60 times as
/// much memory.
const LONGEST_TEXT: usize = 16 << 20;

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

/// What a JSON value is, in words.
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

pub struct Rows {
    files: Vec<File>,
    /// The columns that are read, in the order of what `values` returns.
    columns: Vec<String>,
}

enum File {
    Jsonl(JsonlFile),
    Csv(CsvFile),
}

impl Rows {
    /// `next` reads the next record of a CSV file, which is read whole: the caller may watch its memory meanwhile.
    pub fn open<E: From<DataError>>(
        paths: &Paths,
        columns: &[&str],
        next: impl Fn(&mut CsvRecords<'_>) -> Option<Result<StringRecord, E>>,
    ) -> Result<Self, E> {
        let columns: Vec<String> = columns.iter().map(|name| (*name).to_owned()).collect();
        let open = |path: &String| File::open(Path::new(path), &columns, &next);
        Ok(Self { files: paths.0.iter().map(open).collect::<Result<_, _>>()?, columns })
    }

    pub fn columns(&self) -> &[String] {
        &self.columns
    }

    pub fn len(&self) -> usize {
        self.files.iter().map(File::len).sum()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The columns of a row, each absent where the row has none.
    pub fn values(&self, index: usize) -> Result<Vec<Option<Value>>, DataError> {
        let (file, place) = self.find(index);
        let values = match file {
            File::Jsonl(file) => file.row(place, &self.columns)?,
            File::Csv(file) => file.row(place),
        };
        for (column, value) in values.iter().enumerate() {
            if let Some(Value::String(text)) = value
                && text.len() > LONGEST_TEXT
            {
                let (found, most) = (human_bytes(text.len() as u64), human_bytes(LONGEST_TEXT as u64));
                let message = format!("field {:?} has {found} of text; allowed: at most {most}", self.columns[column]);
                return Err(self.fail(index, message));
            }
        }
        Ok(values)
    }

    /// The columns of a row, all of which must be texts.
    pub fn texts<const N: usize>(&self, index: usize) -> Result<[String; N], DataError> {
        let mut texts = Vec::with_capacity(N);
        for (place, value) in self.values(index)?.into_iter().enumerate() {
            match value {
                Some(Value::String(text)) => texts.push(text),
                other => return Err(self.not_a_text(index, place, other.as_ref())),
            }
        }
        let texts: Result<[String; N], _> = texts.try_into();
        Ok(texts.unwrap_or_else(|_| panic!("rows of {} columns were asked for {N}", self.columns.len())))
    }

    pub fn not_a_text(&self, index: usize, column: usize, found: Option<&Value>) -> DataError {
        self.problem(index, column, found, "a text")
    }

    /// What is wrong with a column of a row that holds `found` instead of `wanted`.
    pub fn problem(&self, index: usize, column: usize, found: Option<&Value>, wanted: &str) -> DataError {
        let name = &self.columns[column];
        let message = match found {
            Some(value) => format!("field {name:?} holds {}, not {wanted}", kind(value)),
            None => format!("no field {name:?}; it has: {}", self.names(index).join(", ")),
        };
        self.fail(index, message)
    }

    /// An error of this row, with its file and line.
    pub fn fail(&self, index: usize, message: String) -> DataError {
        let (path, line) = self.line(index);
        DataError { path, line: Some(line), message }
    }

    /// The file of a row.
    pub fn path(&self, index: usize) -> &Path {
        self.find(index).0.path()
    }

    pub fn place(&self, index: usize) -> Place<'_> {
        let (file, index) = self.find(index);
        Place { noun: "row", number: index + 1, path: file.path() }
    }

    /// The file of a row and its line there, counted from 1.
    pub fn line(&self, index: usize) -> (PathBuf, u64) {
        let (file, index) = self.find(index);
        match file {
            File::Jsonl(file) => (file.path().to_owned(), file.line_number(index)),
            File::Csv(file) => (file.path().to_owned(), file.line_number(index)),
        }
    }

    fn names(&self, index: usize) -> Vec<String> {
        let (file, index) = self.find(index);
        match file {
            File::Jsonl(file) => file.names(index),
            File::Csv(file) => file.names().to_vec(),
        }
    }

    fn find(&self, index: usize) -> (&File, usize) {
        let mut index = index;
        for file in &self.files {
            if index < file.len() {
                return (file, index);
            }
            index -= file.len();
        }
        panic!("row {index} lies beyond the data");
    }
}

impl File {
    fn open<E: From<DataError>>(
        path: &Path,
        columns: &[String],
        next: impl Fn(&mut CsvRecords<'_>) -> Option<Result<StringRecord, E>>,
    ) -> Result<Self, E> {
        match path.extension().and_then(|ending| ending.to_str()) {
            Some("jsonl") => Ok(Self::Jsonl(JsonlFile::open(path)?)),
            Some("csv" | "tsv") => CsvFile::open(path, columns, next).map(Self::Csv),
            ending => {
                let message = format!("rows in .{} files: not available yet", ending.unwrap_or_default());
                Err(DataError::new(path, None, message).into())
            }
        }
    }

    fn path(&self) -> &Path {
        match self {
            Self::Jsonl(file) => file.path(),
            Self::Csv(file) => file.path(),
        }
    }

    fn len(&self) -> usize {
        match self {
            Self::Jsonl(file) => file.len(),
            Self::Csv(file) => file.len(),
        }
    }
}

//! The rows of a data set: its files one after the other, of each row the columns that are used.

use std::path::{Path, PathBuf};

use pipe_spec::pipeline::Paths;
use rayon::ThreadPool;
use rayon::iter::{IntoParallelIterator, ParallelIterator};
use serde_json::Value;

use super::csv::CsvFile;
use super::jsonl::JsonlFile;
use super::longest::Longest;
use crate::error::TrainerError;

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
    pub fn open(paths: &Paths, columns: &[&str]) -> Result<Self, TrainerError> {
        let columns: Vec<String> = columns.iter().map(|name| (*name).to_owned()).collect();
        let open = |path: &String| File::open(Path::new(path), &columns);
        Ok(Self { files: paths.0.iter().map(open).collect::<Result<_, _>>()?, columns })
    }

    pub fn len(&self) -> usize {
        self.files.iter().map(File::len).sum()
    }

    /// Reads every row once, which gives the lengths of its texts; the first bad one is the error.
    pub fn check<const N: usize>(
        &self,
        pool: &ThreadPool,
        read: impl Fn(usize) -> Result<[usize; N], TrainerError> + Sync,
    ) -> Result<Longest, TrainerError> {
        let see = |longest: Longest, index: usize| read(index).map(|lengths| longest.see(index, &lengths));
        let merge = |one: Longest, other: Longest| Ok(one.merge(other));
        // The threads find some bad row; people want the first.
        pool.install(|| {
            let rows = (0..self.len()).into_par_iter();
            rows.try_fold(Longest::default, see).try_reduce(Longest::default, merge)
        })
        .map_err(|found| (0..self.len()).find_map(|index| read(index).err()).unwrap_or(found))
    }

    /// The columns of a row, each absent where the row has none.
    pub fn values(&self, index: usize) -> Result<Vec<Option<Value>>, TrainerError> {
        let (file, index) = self.place(index);
        match file {
            File::Jsonl(file) => file.row(index, &self.columns),
            File::Csv(file) => file.row(index),
        }
    }

    /// The columns of a row, all of which must be texts.
    pub fn texts<const N: usize>(&self, index: usize) -> Result<[String; N], TrainerError> {
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

    pub fn not_a_text(&self, index: usize, column: usize, found: Option<&Value>) -> TrainerError {
        self.problem(index, column, found, "a text")
    }

    /// What is wrong with a column of a row that holds `found` instead of `wanted`.
    pub fn problem(&self, index: usize, column: usize, found: Option<&Value>, wanted: &str) -> TrainerError {
        let name = &self.columns[column];
        let message = match found {
            Some(value) => format!("field {name:?} holds {}, not {wanted}", kind(value)),
            None => format!("no field {name:?}; it has: {}", self.names(index).join(", ")),
        };
        self.fail(index, message)
    }

    /// An error of this row, with its file and line.
    pub fn fail(&self, index: usize, message: String) -> TrainerError {
        let (path, line) = self.line(index);
        TrainerError::Data { path, line: Some(line), message }
    }

    /// The file of a row.
    pub fn path(&self, index: usize) -> &Path {
        match self.place(index).0 {
            File::Jsonl(file) => file.path(),
            File::Csv(file) => file.path(),
        }
    }

    /// The file of a row and its line there, counted from 1.
    pub fn line(&self, index: usize) -> (PathBuf, u64) {
        let (file, index) = self.place(index);
        match file {
            File::Jsonl(file) => (file.path().to_owned(), file.line_number(index)),
            File::Csv(file) => (file.path().to_owned(), file.line_number(index)),
        }
    }

    fn names(&self, index: usize) -> Vec<String> {
        let (file, index) = self.place(index);
        match file {
            File::Jsonl(file) => file.names(index),
            File::Csv(file) => file.names().to_vec(),
        }
    }

    fn place(&self, index: usize) -> (&File, usize) {
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
    fn open(path: &Path, columns: &[String]) -> Result<Self, TrainerError> {
        match path.extension().and_then(|ending| ending.to_str()) {
            Some("jsonl") => JsonlFile::open(path).map(Self::Jsonl),
            Some("csv") => CsvFile::open(path, columns).map(Self::Csv),
            ending => {
                let what = format!("{}: rows in .{} files", path.display(), ending.unwrap_or_default());
                Err(TrainerError::NotAvailable { what })
            }
        }
    }

    fn len(&self) -> usize {
        match self {
            Self::Jsonl(file) => file.len(),
            Self::Csv(file) => file.len(),
        }
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

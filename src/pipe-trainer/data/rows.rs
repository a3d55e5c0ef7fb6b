//! The rows of a data set: its files one after the other, of each row the columns that are used.

use std::path::{Path, PathBuf};

use pipe_spec::pipeline::Paths;
use pipe_spec::text::human_bytes;
use rayon::ThreadPool;
use rayon::iter::{IntoParallelIterator, ParallelIterator};
use serde_json::Value;

use super::csv::CsvFile;
use super::jsonl::JsonlFile;
use super::longest_rows::LongestRows;
use super::row::kind;
use crate::boundary;
use crate::error::TrainerError;
use crate::host::activity;

/// A text of a row has no more bytes. A novel has one or two million; what a tokenizer makes of a text takes some 60 times as
/// much memory.
const LONGEST_TEXT: usize = 16 << 20;

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

    pub fn columns(&self) -> &[String] {
        &self.columns
    }

    pub fn len(&self) -> usize {
        self.files.iter().map(File::len).sum()
    }

    /// Reads every row once, which gives the lengths of its texts; the first bad one is the error.
    pub fn check<const N: usize>(
        &self,
        pool: &ThreadPool,
        read: impl Fn(usize) -> Result<[usize; N], TrainerError> + Sync,
    ) -> Result<LongestRows, TrainerError> {
        let read = |index: usize| self.during(index, || read(index));
        let see = |longest: LongestRows, index: usize| read(index).map(|lengths| longest.see(index, &lengths));
        let merge = |one: LongestRows, other: LongestRows| Ok(one.merge(other));
        // The threads find any bad row; the error names the first.
        pool.install(|| {
            let rows = (0..self.len()).into_par_iter();
            rows.try_fold(LongestRows::default, see).try_reduce(LongestRows::default, merge)
        })
        .map_err(|found| match found {
            // The error already says where memory ran out.
            TrainerError::OutOfMemory { .. } => found,
            _ => (0..self.len()).find_map(|index| read(index).err()).unwrap_or(found),
        })
    }

    /// Does `work` on a row, which an out-of-memory error names.
    pub fn during<T>(&self, index: usize, work: impl FnOnce() -> Result<T, TrainerError>) -> Result<T, TrainerError> {
        let (file, place) = self.place(index);
        activity::during(format_args!("row {} of {}", place + 1, file.path().display()), || {
            let done = work()?;
            boundary::check_host_memory().map(|()| done)
        })
    }

    /// The columns of a row, each absent where the row has none.
    pub fn values(&self, index: usize) -> Result<Vec<Option<Value>>, TrainerError> {
        let (file, place) = self.place(index);
        let values = match file {
            File::Jsonl(file) => file.row(place, &self.columns)?,
            File::Csv(file) => file.row(place)?,
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
        self.place(index).0.path()
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
            Some("csv" | "tsv") => CsvFile::open(path, columns).map(Self::Csv),
            ending => {
                let what = format!("{}: rows in .{} files", path.display(), ending.unwrap_or_default());
                Err(TrainerError::NotAvailable { what })
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

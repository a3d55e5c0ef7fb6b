//! The rows of a data set: its files one after the other, the columns of each row that are used. And texts of any length: the
//! rows of a table, or a plain text with blank lines between documents.

use std::borrow::Cow;
use std::collections::{BTreeSet, HashSet};
use std::ops::Range;
use std::path::{Path, PathBuf};

use memmap2::Mmap;
use pipe_spec::pipeline::Paths;
use pipe_spec::text::human_bytes;
use serde_json::Value;

use crate::conll::ConllFile;
use crate::csv::{CsvFile, CsvRecords, NOT_UTF_8, StringRecord};
use crate::jsonl::JsonlFile;
use crate::row::{DataError, Place, kind};

/// A text of a row has no more bytes. A novel has one or two million; what a tokenizer makes of a text takes some 60 times as
/// much memory.
const LONGEST_TEXT: usize = 16 << 20;
/// A plain text without a blank line in it has no more bytes: it is tokenised in one piece.
pub const LONGEST_DOCUMENT: usize = 256 << 20;

pub struct Rows {
    files: Vec<File>,
    /// The columns that are read, in the order of what `values` returns.
    columns: Vec<String>,
    /// The rows that are left, where some were left out, by their numbers in all files.
    kept: Option<Vec<usize>>,
}

enum File {
    Jsonl(JsonlFile),
    Csv(CsvFile),
    Conll(ConllFile),
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
        Ok(Self { files: paths.0.iter().map(open).collect::<Result<_, _>>()?, columns, kept: None })
    }

    /// Leaves out rows, which are sorted: the others are counted anew.
    pub fn leave_out(&mut self, rows: &[usize]) {
        if !rows.is_empty() {
            let left = (0..self.len()).filter(|row| rows.binary_search(row).is_err());
            self.kept = Some(left.map(|row| self.number(row)).collect());
        }
    }

    /// The rows of tables that have more or fewer cells than there are columns, of which no value can be trusted.
    pub fn uneven(&self) -> Vec<usize> {
        (0..self.len()).filter(|row| self.is_uneven(*row)).collect()
    }

    pub fn is_uneven(&self, index: usize) -> bool {
        let (file, place) = self.find(index);
        matches!(file, File::Csv(file) if file.is_uneven(place))
    }

    /// The number of a row in all files, counted from 0.
    pub fn number(&self, index: usize) -> usize {
        self.kept.as_ref().map_or(index, |kept| kept[index])
    }

    /// The index of the row that has this number; nothing where it was left out.
    pub fn index_of(&self, number: usize) -> Option<usize> {
        self.kept.as_ref().map_or(Some(number), |kept| kept.binary_search(&number).ok())
    }

    pub fn columns(&self) -> &[String] {
        &self.columns
    }

    pub fn len(&self) -> usize {
        self.kept.as_ref().map_or_else(|| self.files.iter().map(File::len).sum(), Vec::len)
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The columns of a row, each absent where the row has none.
    pub fn values(&self, index: usize) -> Result<Vec<Option<Value>>, DataError> {
        let (file, place) = self.find(index);
        let values = match file {
            File::Jsonl(file) => file.row(place, &self.columns)?,
            File::Csv(file) => file.row(place)?,
            File::Conll(file) => file.row(place, &self.columns)?,
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

    /// Names the fault of a column of a row that holds `found` instead of `wanted`.
    pub fn problem(&self, index: usize, column: usize, found: Option<&Value>, wanted: &str) -> DataError {
        let name = &self.columns[column];
        let message = match found {
            Some(value) => format!("field {name:?} holds {}, not {wanted}", kind(value)),
            None if self.names(index).contains(name) => format!("field {name:?} holds null, not {wanted}"),
            None => format!("no field {name:?}; it has: {}", self.names(index).join(", ")),
        };
        self.fail(index, message)
    }

    /// An error of this row, with its file and line.
    pub fn fail(&self, index: usize, message: String) -> DataError {
        let (path, line) = self.line(index);
        DataError { path, line: Some(line), message }
    }

    /// Whether a number of this row may have a decimal comma.
    pub fn has_decimal_commas(&self, index: usize) -> bool {
        matches!(self.find(index).0, File::Csv(file) if file.has_decimal_commas())
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
            File::Conll(file) => (file.path().to_owned(), file.line_number(index)),
        }
    }

    fn names(&self, index: usize) -> Vec<String> {
        let (file, index) = self.find(index);
        match file {
            File::Jsonl(file) => file.names(index),
            File::Csv(file) => file.names().to_vec(),
            File::Conll(file) => file.names(),
        }
    }

    /// The names of all columns of all files: as a table has them, those of JSON lines by the alphabet.
    pub fn all_names(&self) -> Vec<String> {
        let mut all: Vec<String> = Vec::new();
        for file in &self.files {
            let names = match file {
                File::Csv(file) => file.names().to_vec(),
                File::Conll(file) => file.names(),
                File::Jsonl(file) => {
                    let rows = (0..file.len()).flat_map(|row| file.names(row));
                    rows.collect::<BTreeSet<String>>().into_iter().collect()
                }
            };
            all.extend(names.into_iter().filter(|name| !name.is_empty()));
        }
        let mut known = HashSet::new();
        all.retain(|name| known.insert(name.clone()));
        all
    }

    fn find(&self, index: usize) -> (&File, usize) {
        let mut index = self.number(index);
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
            Some("conll" | "bio" | "txt") => Ok(Self::Conll(ConllFile::open(path)?)),
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
            Self::Conll(file) => file.path(),
        }
    }

    fn len(&self) -> usize {
        match self {
            Self::Jsonl(file) => file.len(),
            Self::Csv(file) => file.len(),
            Self::Conll(file) => file.len(),
        }
    }
}

pub enum Documents {
    Plain(PlainText),
    Rows(Rows),
}

impl Documents {
    /// `column` holds the text where the file has columns; `next` is that of `Rows::open`.
    pub fn open<E: From<DataError>>(
        path: &str,
        column: &str,
        next: impl Fn(&mut CsvRecords<'_>) -> Option<Result<StringRecord, E>>,
    ) -> Result<Self, E> {
        if path.ends_with(".txt") {
            return Ok(Self::Plain(PlainText::open(Path::new(path))?));
        }
        Rows::open(&Paths(vec![path.to_owned()]), &[column], next).map(Self::Rows)
    }

    pub fn len(&self) -> usize {
        match self {
            Self::Plain(text) => text.documents.len(),
            Self::Rows(rows) => rows.len(),
        }
    }

    pub fn place(&self, index: usize) -> Place<'_> {
        match self {
            Self::Plain(text) => Place { noun: "text", number: index + 1, path: &text.path },
            Self::Rows(rows) => rows.place(index),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether it is a row with more or fewer cells than there are columns.
    pub fn is_uneven(&self, index: usize) -> bool {
        matches!(self, Self::Rows(rows) if rows.is_uneven(index))
    }

    pub fn text(&self, index: usize) -> Result<Cow<'_, str>, DataError> {
        match self {
            Self::Plain(text) => text.document(index).map(Cow::Borrowed),
            Self::Rows(rows) => rows.texts(index).map(|[text]| Cow::Owned(text)),
        }
    }

    /// The same, and nothing where a row has none.
    pub fn text_if_any(&self, index: usize) -> Result<Option<Cow<'_, str>>, DataError> {
        match self {
            Self::Rows(rows) if rows.is_uneven(index) => Ok(None),
            Self::Rows(rows) if matches!(rows.values(index)?[..], [None | Some(Value::Null)]) => Ok(None),
            _ => self.text(index).map(Some),
        }
    }
}

/// A plain text, mapped into memory.
pub struct PlainText {
    path: PathBuf,
    bytes: Mmap,
    documents: Vec<Range<usize>>,
}

impl PlainText {
    fn open(path: &Path) -> Result<Self, DataError> {
        let fail = |message: String| DataError::new(path, None, message);
        let file = std::fs::File::open(path).map_err(|error| fail(error.to_string()))?;
        if file.metadata().is_ok_and(|metadata| metadata.len() == 0) {
            return Err(fail("the file is empty".to_owned()));
        }
        // SAFETY: a data set that another program shortens while it is trained on ends the process, as losing it would.
        let bytes = unsafe { Mmap::map(&file) }.map_err(|error| fail(error.to_string()))?;
        let documents = documents(&bytes);
        if documents.is_empty() {
            return Err(fail("the file has no text".to_owned()));
        }
        if let Some(long) = documents.iter().find(|text| text.len() > LONGEST_DOCUMENT) {
            let line = bytes[..long.start].iter().filter(|byte| **byte == b'\n').count() as u64 + 1;
            let (found, most) = (human_bytes(long.len() as u64), human_bytes(LONGEST_DOCUMENT as u64));
            let message =
                format!("the text that begins here has {found}; allowed: at most {most}, blank lines part texts");
            return Err(DataError::new(path, Some(line), message));
        }
        Ok(Self { path: path.to_owned(), bytes, documents })
    }

    fn document(&self, index: usize) -> Result<&str, DataError> {
        let range = self.documents[index].clone();
        std::str::from_utf8(&self.bytes[range.clone()]).map_err(|error| {
            let before = &self.bytes[..range.start + error.valid_up_to()];
            let line = before.iter().filter(|byte| **byte == b'\n').count() as u64 + 1;
            DataError::new(&self.path, Some(line), NOT_UTF_8)
        })
    }
}

/// Where each document stands, without the end of its last line.
fn documents(bytes: &[u8]) -> Vec<Range<usize>> {
    let mut documents: Vec<Range<usize>> = Vec::new();
    let mut start = 0;
    let mut goes_on = false;
    for line in bytes.split_inclusive(|byte| *byte == b'\n') {
        let is_blank = line.iter().all(u8::is_ascii_whitespace);
        let end = start + line.trim_ascii_end().len();
        match documents.last_mut() {
            _ if is_blank => {}
            Some(last) if goes_on => last.end = end,
            _ => documents.push(start..end),
        }
        goes_on = !is_blank;
        start += line.len();
    }
    documents
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blank_lines_part_documents() {
        let texts = |text: &'static str| -> Vec<&str> {
            documents(text.as_bytes()).into_iter().map(|range| &text[range]).collect()
        };
        assert_eq!(texts("a b\nc\n\nd"), ["a b\nc", "d"]);
        assert_eq!(texts("\n \n a\r\nb \r\n\r\n\n\nc\n\n"), [" a\r\nb", "c"]);
        assert_eq!(texts("one line"), ["one line"]);
        assert!(texts("\n  \n").is_empty());
    }
}

//! Texts of any length: the rows of a table, or a plain text with blank lines between documents.

use std::borrow::Cow;
use std::fs::File;
use std::ops::Range;
use std::path::{Path, PathBuf};

use memmap2::Mmap;
use pipe_spec::pipeline::Paths;
use pipe_spec::text::human_bytes;

use crate::csv::{CsvRecords, StringRecord};
use crate::rows::{DataError, Place, Rows};

/// A plain text without a blank line in it has no more bytes: it is tokenised in one piece.
const LONGEST_DOCUMENT: usize = 256 << 20;

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

    pub fn text(&self, index: usize) -> Result<Cow<'_, str>, DataError> {
        match self {
            Self::Plain(text) => text.document(index).map(Cow::Borrowed),
            Self::Rows(rows) => rows.texts(index).map(|[text]| Cow::Owned(text)),
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
        let file = File::open(path).map_err(|error| fail(error.to_string()))?;
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
            DataError::new(&self.path, Some(line), "not UTF-8")
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

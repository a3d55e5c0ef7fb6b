//! One file of JSON lines, mapped into memory; rows are parsed when they are asked for.
//!
//! JSON lines as a table, for people who open it in a spreadsheet.

use std::fmt;
use std::io::{self, BufRead, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use memmap2::Mmap;
use pipe_spec::text::human_bytes;
use serde::Deserializer;
use serde::de::{DeserializeSeed, IgnoredAny, MapAccess, Visitor};
use serde_json::{Map, Value};

use crate::row::{BYTE_ORDER_MARK, DataError, LONGEST_ROW, kind, line_at, map_file};

pub struct JsonlFile {
    path: PathBuf,
    bytes: Mmap,
    /// Where each row begins; blank lines are no rows.
    starts: Vec<u64>,
}

impl JsonlFile {
    pub fn open(path: &Path) -> Result<Self, DataError> {
        let fail = |message: String| DataError::new(path, None, message);
        let bytes = map_file(path)?;
        let starts = row_starts(&bytes, LONGEST_ROW).map_err(|(line, length)| {
            let message = format!("the row has {}; allowed: at most {}", human_bytes(length), human_bytes(LONGEST_ROW));
            DataError::new(path, Some(line), message)
        })?;
        if starts.is_empty() {
            return Err(fail("the file has no rows".to_owned()));
        }
        Ok(Self { path: path.to_owned(), bytes, starts })
    }

    pub fn len(&self) -> usize {
        self.starts.len()
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The columns of a row, each absent where the row has none.
    pub fn row(&self, index: usize, columns: &[String]) -> Result<Vec<Option<Value>>, DataError> {
        let line = self.line(index);
        let mut parser = serde_json::Deserializer::from_slice(line);
        let picked = Columns(columns).deserialize(&mut parser).and_then(|picked| parser.end().map(|()| picked));
        picked.map_err(|_| DataError::new(&self.path, Some(self.line_number(index)), diagnose(line)))
    }

    /// The names of all columns of a row.
    pub fn names(&self, index: usize) -> Vec<String> {
        let row: Map<String, Value> = serde_json::from_slice(self.line(index)).unwrap_or_default();
        let mut names: Vec<String> = row.into_iter().map(|(name, _)| name).collect();
        names.sort_unstable();
        names
    }

    fn line(&self, index: usize) -> &[u8] {
        let rest = &self.bytes[self.starts[index] as usize..];
        let end = rest.iter().position(|byte| *byte == b'\n').unwrap_or(rest.len());
        &rest[..end]
    }

    pub fn line_number(&self, index: usize) -> u64 {
        line_at(&self.bytes, self.starts[index] as usize)
    }
}

/// Or the number of the first line that has more bytes than `longest`, and how many.
fn row_starts(bytes: &[u8], longest: u64) -> Result<Vec<u64>, (u64, u64)> {
    let mut starts = Vec::new();
    let mark = if bytes.starts_with(BYTE_ORDER_MARK) { BYTE_ORDER_MARK.len() } else { 0 };
    let bytes = &bytes[mark..];
    let mut start = mark as u64;
    for (line, number) in bytes.split_inclusive(|byte| *byte == b'\n').zip(1..) {
        if line.len() as u64 > longest {
            return Err((number, line.len() as u64));
        }
        if !line.iter().all(u8::is_ascii_whitespace) {
            starts.push(start);
        }
        start += line.len() as u64;
    }
    Ok(starts)
}

/// Why `line` is not a row, in words.
fn diagnose(line: &[u8]) -> String {
    match serde_json::from_slice::<Value>(line) {
        Ok(other) => format!("found {}; a row is an object", kind(&other)),
        Err(error) => format!("not JSON: {error}"),
    }
}

/// Reads columns of a row and skips the others without keeping them.
struct Columns<'a>(&'a [String]);

impl<'de> DeserializeSeed<'de> for Columns<'_> {
    type Value = Vec<Option<Value>>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Columns<'_> {
    type Value = Vec<Option<Value>>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut values = vec![None; self.0.len()];
        while let Some(key) = map.next_key::<String>()? {
            if !self.0.contains(&key) {
                map.next_value::<IgnoredAny>()?;
                continue;
            }
            let value: Value = map.next_value()?;
            // Two uses may be of one column.
            for (place, _) in self.0.iter().enumerate().filter(|(_, name)| **name == key) {
                values[place] = Some(value.clone());
            }
        }
        Ok(values)
    }
}

/// Writes JSON lines as CSV: a column for each name, in the order in which they come. An object has a column for each of its own names,
/// and a list is written as JSON.
pub fn write_csv(mut lines: impl BufRead + Seek, separator: u8, out: impl Write) -> io::Result<()> {
    let mut names: Vec<String> = Vec::new();
    each_row(&mut lines, |row| {
        for (name, _) in &row {
            if !names.contains(name) {
                names.push(name.clone());
            }
        }
        Ok(())
    })?;
    lines.seek(SeekFrom::Start(0))?;
    let mut writer = csv::WriterBuilder::new().delimiter(separator).from_writer(out);
    writer.write_record(&names)?;
    each_row(&mut lines, |row| {
        let cell = |name: &String| row.iter().find(|(own, _)| own == name).map_or("", |(_, text)| text.as_str());
        Ok(writer.write_record(names.iter().map(cell))?)
    })?;
    writer.flush()
}

/// The cells of each row, by their names.
fn each_row(lines: &mut impl BufRead, mut each: impl FnMut(Vec<(String, String)>) -> io::Result<()>) -> io::Result<()> {
    for line in lines.lines() {
        let row: Map<String, Value> = serde_json::from_str(&line?)?;
        let mut cells = Vec::with_capacity(row.len());
        for (name, value) in row {
            match value {
                Value::Object(members) => {
                    cells.extend(members.into_iter().map(|(member, value)| (format!("{name}.{member}"), text(value))));
                }
                value => cells.push((name, text(value))),
            }
        }
        each(cells)?;
    }
    Ok(())
}

fn text(value: Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text,
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn columns() -> Vec<String> {
        vec!["a".to_owned(), "b".to_owned()]
    }

    #[test]
    fn blank_lines_are_no_rows() {
        assert_eq!(row_starts(b"{}\n\n  \n{}", 4).unwrap(), [0, 7]);
        assert!(row_starts(b"\n \n", 4).unwrap().is_empty());
        assert_eq!(row_starts(b"\xef\xbb\xbf{}\n{}", 4).unwrap(), [3, 6]);
        assert_eq!(row_starts(b"{}\n\n{    }\n{}", 6), Err((3, 7)));
    }

    #[test]
    fn what_is_no_row_says_why() {
        assert_eq!(diagnose(b"[1]"), "found a list; a row is an object");
        assert!(diagnose(b"{").starts_with("not JSON: "));
    }

    #[test]
    fn rows_are_read_by_number() {
        let path = std::env::temp_dir().join(format!("pipe-rows-{}.jsonl", std::process::id()));
        std::fs::write(&path, "{\"a\":\"1\",\"z\":[],\"b\":\"2\"}\n\n{\"b\":\"4\",\"a\":\"3\"}\n{\"a\":2}\n").unwrap();
        let file = JsonlFile::open(&path).unwrap();
        assert_eq!(file.len(), 3);
        let text = |text: &str| Some(Value::String(text.to_owned()));
        assert_eq!(file.row(1, &columns()).unwrap(), [text("3"), text("4")]);
        assert_eq!(file.row(2, &columns()).unwrap(), [Some(Value::from(2)), None]);
        assert_eq!((file.line_number(2), file.names(0)), (4, vec!["a".to_owned(), "b".to_owned(), "z".to_owned()]));
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn a_column_for_each_name() {
        let lines = "{\"row\":0,\"label\":\"a, b\",\"scores\":{\"x\":0.5,\"y\":null},\"spans\":[1]}\n{\"row\":1,\"expected\":true}\n";
        let mut out = Vec::new();
        write_csv(io::Cursor::new(lines), b',', &mut out).unwrap();
        let want = "row,label,scores.x,scores.y,spans,expected\n0,\"a, b\",0.5,,[1],\n1,,,,,true\n";
        assert_eq!(String::from_utf8(out).unwrap(), want);
    }
}

//! One file of JSON lines, mapped into memory; rows are parsed when they are asked for.

use std::fmt;
use std::fs::File;
use std::path::{Path, PathBuf};

use memmap2::Mmap;
use serde::Deserializer;
use serde::de::{DeserializeSeed, IgnoredAny, MapAccess, Visitor};
use serde_json::{Map, Value};

use crate::error::TrainerError;

pub struct JsonlFile {
    path: PathBuf,
    bytes: Mmap,
    /// Where each row begins; blank lines are no rows.
    starts: Vec<u64>,
}

/// The columns of a row that are used.
pub struct Fields {
    pub source: String,
    pub target: String,
}

pub struct Row {
    pub source: String,
    pub target: String,
}

impl JsonlFile {
    pub fn open(path: &Path) -> Result<Self, TrainerError> {
        let fail = |message: String| TrainerError::Data { path: path.to_owned(), line: None, message };
        let file = File::open(path).map_err(|error| fail(error.to_string()))?;
        if file.metadata().is_ok_and(|metadata| metadata.len() == 0) {
            return Err(fail("the file is empty".to_owned()));
        }
        // SAFETY: a data set that somebody else shortens while it is trained on ends the process, as losing it would.
        let bytes = unsafe { Mmap::map(&file) }.map_err(|error| fail(error.to_string()))?;
        let starts = row_starts(&bytes);
        if starts.is_empty() {
            return Err(fail("the file has no rows".to_owned()));
        }
        Ok(Self { path: path.to_owned(), bytes, starts })
    }

    pub fn len(&self) -> usize {
        self.starts.len()
    }

    pub fn row(&self, index: usize, fields: &Fields) -> Result<Row, TrainerError> {
        let line = self.line(index);
        let mut parser = serde_json::Deserializer::from_slice(line);
        let picked = fields.deserialize(&mut parser).and_then(|picked| parser.end().map(|()| picked));
        match picked {
            Ok((Some(Value::String(source)), Some(Value::String(target)))) => Ok(Row { source, target }),
            _ => Err(TrainerError::Data {
                path: self.path.clone(),
                line: Some(self.line_number(index)),
                message: diagnose(line, fields),
            }),
        }
    }

    fn line(&self, index: usize) -> &[u8] {
        let rest = &self.bytes[self.starts[index] as usize..];
        let end = rest.iter().position(|byte| *byte == b'\n').unwrap_or(rest.len());
        &rest[..end]
    }

    fn line_number(&self, index: usize) -> u64 {
        let before = &self.bytes[..self.starts[index] as usize];
        before.iter().filter(|byte| **byte == b'\n').count() as u64 + 1
    }
}

fn row_starts(bytes: &[u8]) -> Vec<u64> {
    let mut starts = Vec::new();
    let mut start = 0;
    for line in bytes.split_inclusive(|byte| *byte == b'\n') {
        if !line.iter().all(u8::is_ascii_whitespace) {
            starts.push(start);
        }
        start += line.len() as u64;
    }
    starts
}

/// Why `line` is not a row, in words.
fn diagnose(line: &[u8], fields: &Fields) -> String {
    let row: Map<String, Value> = match serde_json::from_slice(line) {
        Ok(Value::Object(row)) => row,
        Ok(other) => return format!("found {}; a row is an object", kind(&other)),
        Err(error) => return format!("not JSON: {error}"),
    };
    for field in [&fields.source, &fields.target] {
        match row.get(field) {
            Some(Value::String(_)) => {}
            Some(other) => return format!("field {field:?} holds {}, not a text", kind(other)),
            None => {
                let names: Vec<&str> = row.keys().map(String::as_str).collect();
                return format!("no field {field:?}; it has: {}", names.join(", "));
            }
        }
    }
    "cannot be read".to_owned()
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a truth value",
        Value::Number(_) => "a number",
        Value::String(_) => "a text",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

/// Reads the two fields of a row and skips the others without keeping them.
impl<'de> DeserializeSeed<'de> for &Fields {
    type Value = (Option<Value>, Option<Value>);

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for &Fields {
    type Value = (Option<Value>, Option<Value>);

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let (mut source, mut target) = (None, None);
        while let Some(key) = map.next_key::<String>()? {
            if key == self.source {
                source = Some(map.next_value()?);
            } else if key == self.target {
                target = Some(map.next_value()?);
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        if self.source == self.target {
            target.clone_from(&source);
        }
        Ok((source, target))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields() -> Fields {
        Fields { source: "a".to_owned(), target: "b".to_owned() }
    }

    #[test]
    fn blank_lines_are_no_rows() {
        assert_eq!(row_starts(b"{}\n\n  \n{}"), [0, 7]);
        assert!(row_starts(b"\n \n").is_empty());
    }

    #[test]
    fn a_bad_row_says_why() {
        let cases = [
            ("{\"a\": \"x\", \"c\": 1}", "no field \"b\"; it has: a, c"),
            ("{\"a\": 1, \"b\": \"x\"}", "field \"a\" holds a number, not a text"),
            ("[1]", "found a list; a row is an object"),
        ];
        for (line, want) in cases {
            assert_eq!(diagnose(line.as_bytes(), &fields()), want);
        }
        assert!(diagnose(b"{", &fields()).starts_with("not JSON: "));
    }

    #[test]
    fn rows_are_read_by_number() {
        let path = std::env::temp_dir().join(format!("pipe-rows-{}.jsonl", std::process::id()));
        std::fs::write(&path, "{\"a\":\"1\",\"z\":[],\"b\":\"2\"}\n\n{\"b\":\"4\",\"a\":\"3\"}\n{\"a\":2}\n").unwrap();
        let file = JsonlFile::open(&path).unwrap();
        assert_eq!(file.len(), 3);
        let row = file.row(1, &fields()).unwrap();
        assert_eq!((row.source.as_str(), row.target.as_str()), ("3", "4"));
        let error = file.row(2, &fields()).err().unwrap().to_string();
        assert!(error.ends_with("line 4: field \"a\" holds a number, not a text"), "{error}");
        std::fs::remove_file(path).unwrap();
    }
}

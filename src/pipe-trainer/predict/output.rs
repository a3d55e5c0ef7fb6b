//! The output: one JSON object for each prediction, in a file that has its name when it is complete, and
//! events on stdout.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use pipe_spec::PredictEvent;
use serde::ser::{Serialize, SerializeMap, Serializer};
use serde_json::Value;

use crate::error::TrainerError;

/// The fields of a prediction, in the order in which they are written.
pub type Fields = Vec<(&'static str, Field)>;

/// Numbers of the model are written as short as fp32 allows.
#[derive(Clone, Debug)]
pub enum Field {
    Text(String),
    Whole(u64),
    Real(f32),
    Mean(f64),
    Reals(Vec<f32>),
    /// By name, such as the probability of each class.
    Named(Vec<(String, f32)>),
    Texts(Vec<String>),
    Spans(Vec<Span>),
}

/// A piece of a text that has a label. It begins and ends at these characters of the text.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Span {
    pub text: String,
    pub label: String,
    pub start: usize,
    pub end: usize,
    pub score: f32,
}

impl Serialize for Field {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Text(text) => text.serialize(serializer),
            Self::Whole(number) => number.serialize(serializer),
            Self::Real(number) => number.serialize(serializer),
            Self::Mean(number) => number.serialize(serializer),
            Self::Reals(numbers) => numbers.serialize(serializer),
            Self::Texts(texts) => texts.serialize(serializer),
            Self::Spans(spans) => spans.serialize(serializer),
            Self::Named(numbers) => serializer.collect_map(numbers.iter().map(|(name, number)| (name, number))),
        }
    }
}

struct Line {
    row: usize,
    first_row: Option<usize>,
    kept: Vec<(String, Value)>,
    fields: Fields,
}

impl Serialize for Line {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("row", &self.row)?;
        if let Some(first) = self.first_row {
            map.serialize_entry("first_row", &first)?;
        }
        // A name of the output wins over a column that is called the same.
        let is_taken =
            |name: &str| ["row", "first_row"].contains(&name) || self.fields.iter().any(|(field, _)| *field == name);
        for (name, value) in self.kept.iter().filter(|(name, _)| !is_taken(name)) {
            map.serialize_entry(name, value)?;
        }
        for (name, field) in &self.fields {
            map.serialize_entry(name, field)?;
        }
        map.end()
    }
}

pub struct Output {
    path: PathBuf,
    partial: PathBuf,
    file: BufWriter<File>,
    lines: u64,
}

impl Output {
    pub fn create(path: &Path) -> Result<Self, TrainerError> {
        let mut partial = path.as_os_str().to_owned();
        partial.push(".partial");
        let partial = PathBuf::from(partial);
        let file = File::create(&partial).map_err(|source| TrainerError::Io { path: partial.clone(), source })?;
        Ok(Self { path: path.to_owned(), partial, file: BufWriter::new(file), lines: 0 })
    }

    /// `first_row` where a prediction is of several rows.
    pub fn line(
        &mut self,
        row: usize,
        first_row: Option<usize>,
        kept: Vec<(String, Value)>,
        fields: Fields,
    ) -> Result<(), TrainerError> {
        let line = Line { row, first_row, kept, fields };
        let written = serde_json::to_writer(&mut self.file, &line).map_err(io::Error::from);
        written.and_then(|()| self.file.write_all(b"\n")).map_err(|source| self.fail(source))?;
        self.lines += 1;
        Ok(())
    }

    /// Gives the file its name. Returns how many lines it has.
    pub fn finish(mut self) -> Result<u64, TrainerError> {
        let done = self.file.flush().and_then(|()| self.file.get_ref().sync_all());
        done.and_then(|()| fs::rename(&self.partial, &self.path)).map_err(|source| self.fail(source))?;
        Ok(self.lines)
    }

    fn fail(&self, source: io::Error) -> TrainerError {
        TrainerError::Io { path: self.path.clone(), source }
    }
}

impl Drop for Output {
    /// Nothing half-written stays. After `finish` there is nothing under this name.
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.partial);
    }
}

/// Prints an event. Where nobody reads, the output is still written.
pub fn print(event: &PredictEvent) {
    let line = serde_json::to_string(event).expect("an event is plain data");
    let _ = writeln!(io::stdout(), "{line}");
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_line_is_one_object_in_order() {
        let fields = vec![
            ("label", Field::Text("b".to_owned())),
            ("score", Field::Real(0.1)),
            ("scores", Field::Named(vec![("b".to_owned(), 0.1), ("a".to_owned(), f32::NAN)])),
        ];
        let kept = vec![("id".to_owned(), json!([1])), ("label".to_owned(), json!("x"))];
        let line = Line { row: 7, first_row: Some(3), kept, fields };
        let want = r#"{"row":7,"first_row":3,"id":[1],"label":"b","score":0.1,"scores":{"b":0.1,"a":null}}"#;
        assert_eq!(serde_json::to_string(&line).unwrap(), want);
    }

    #[test]
    fn nothing_half_written_stays() {
        let path = std::env::temp_dir().join(format!("pipe-output-{}.jsonl", std::process::id()));
        let create = || {
            let mut output = Output::create(&path).unwrap();
            output.line(0, None, Vec::new(), Vec::new()).unwrap();
            output
        };
        drop(create());
        assert!(!path.exists() && !path.with_extension("jsonl.partial").exists());
        assert_eq!(create().finish().unwrap(), 1);
        assert!(!path.with_extension("jsonl.partial").exists());
        assert_eq!(fs::read_to_string(&path).unwrap(), "{\"row\":0}\n");
        fs::remove_file(path).unwrap();
    }
}

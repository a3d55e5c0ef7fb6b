//! Reads the columns of a data file from its first lines, and guesses their roles and the architecture.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::path::Path;

use pipe_spec::pipeline::{Arch, Task};
use serde_json::{Map, Value};

use crate::input::data_cache;

/// Rows that are read to count the classes.
const ROWS: usize = 10_000;

/// Other names of what a column is used for, the usual ones first.
const NAMES: [(&str, &[&str]); 7] = [
    (
        "source",
        &["source", "input", "src", "question", "prompt", "instruction", "document", "article", "ingredients", "text"],
    ),
    (
        "target",
        &[
            "target",
            "output",
            "tgt",
            "answer",
            "response",
            "completion",
            "summary",
            "translation",
            "directions",
            "label",
        ],
    ),
    (
        "text",
        &[
            "text",
            "sentence",
            "sentence1",
            "premise",
            "question1",
            "caption",
            "content",
            "review",
            "comment",
            "body",
            "description",
            "title",
        ],
    ),
    ("text_pair", &["text_pair", "sentence2", "hypothesis", "question2"]),
    ("label", &["label", "labels", "class", "category", "sentiment", "target", "score", "y"]),
    ("image", &["image", "image_path", "img", "picture", "path", "file", "filename", "file_name"]),
    ("time", &["time", "timestamp", "datetime", "date"]),
];

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Columns {
    /// In the order of the file.
    pub names: Vec<String>,
    ending: String,
    /// Rows of a table, as far as they were read.
    rows: Vec<Vec<String>>,
}

impl Columns {
    /// Of the first file, if there is one that can be read.
    pub fn read(path: &Path) -> Option<Self> {
        let file = if path.is_dir() { first_file(path)? } else { path.to_owned() };
        let ending = data_cache::full_ending(&file)?.to_ascii_lowercase();
        if ending == "parquet" {
            let (names, rows) = data_cache::first_rows(&file, ROWS)?;
            return Some(Self { names, ending, rows });
        }
        // The trainer reads what is inside; how it is compressed says nothing about it.
        let ending = ending.trim_end_matches(".gz").trim_end_matches(".zst").to_owned();
        let mut lines = BufReader::new(data_cache::first_lines(&file)?).lines().map_while(Result::ok);
        let first = lines.next()?;
        Some(match ending.as_str() {
            "jsonl" => Self { names: keys(&first), ending, rows: Vec::new() },
            "csv" => Self { names: cells(&first), ending, rows: lines.take(ROWS).map(|line| cells(&line)).collect() },
            _ => Self { names: Vec::new(), ending, rows: Vec::new() },
        })
    }

    /// The column for `role`: by its name, or by another that people give it.
    pub fn role(&self, role: &str) -> Option<&str> {
        let (_, known) = NAMES.iter().find(|(name, _)| *name == role)?;
        let is = |wanted: &str| self.names.iter().find(|name| name.eq_ignore_ascii_case(wanted));
        known.iter().find_map(|wanted| is(wanted)).map(String::as_str)
    }

    /// What could be trained on these columns.
    pub fn guess(&self) -> Option<Arch> {
        let has = |role| self.role(role).is_some();
        match self.ending.as_str() {
            "txt" => Some(Arch::MuSota),
            _ if has("image") && has("text") => Some(Arch::Clip),
            "csv" | "parquet" if has("label") && self.has_numbers() => Some(Arch::HybridCnnLstm),
            _ if self.names.iter().any(|name| name == "text") && has("label") => Some(Arch::Bert),
            _ if has("source") && has("target") && self.role("source") != self.role("target") => Some(Arch::T5),
            _ if has("text") && has("label") => Some(Arch::Bert),
            _ if self.names.len() == 1 && has("text") => Some(Arch::MuSota),
            _ => None,
        }
    }

    /// Whether all that could be a feature is a number.
    fn has_numbers(&self) -> bool {
        let Some(row) = self.rows.first() else { return false };
        let features = self.features();
        !features.is_empty()
            && features.iter().all(|place| row.get(*place).is_some_and(|cell| cell.parse::<f64>().is_ok()))
    }

    /// The places of the features of a time series.
    pub fn features(&self) -> Vec<usize> {
        let used = [self.role("label"), self.role("time")];
        (0..self.names.len()).filter(|place| !used.contains(&Some(self.names[*place].as_str()))).collect()
    }

    /// How many classes a table has, as far as it was read.
    pub fn classes(&self) -> usize {
        let place = self.role("label").and_then(|label| self.names.iter().position(|name| name == label));
        let cells = place.map(|place| self.rows.iter().filter_map(move |row| row.get(place)));
        cells.into_iter().flatten().collect::<BTreeSet<_>>().len()
    }

    /// Which column feeds what; where two are needed and none is known by its name, the first and the last.
    pub fn fields(&self, task: Task) -> Vec<(&'static str, String)> {
        let mut fields: Vec<(&'static str, String)> = Vec::new();
        for role in task.roles() {
            let free = |name: &&str| !fields.iter().any(|(_, used)| used == *name);
            fields.extend(self.role(role).filter(free).map(|name| (*role, name.to_owned())));
        }
        if let (Task::Seq2Seq, [first, .., last]) = (task, self.names.as_slice())
            && fields.len() < 2
        {
            return vec![("source", first.clone()), ("target", last.clone())];
        }
        fields
    }
}

/// The first file of a folder, by name, that is read as rows.
fn first_file(folder: &Path) -> Option<std::path::PathBuf> {
    let files = std::fs::read_dir(folder).ok()?.flatten().map(|entry| entry.path());
    let known = |path: &std::path::PathBuf| {
        let is_text = path.extension().is_none_or(|ending| ending != "safetensors");
        is_text && path.file_name().and_then(|name| name.to_str()).is_some_and(|name| Task::Language.takes(name))
    };
    files.filter(known).min()
}

/// The keys of an object, in the order of its text.
fn keys(line: &str) -> Vec<String> {
    let object: Map<String, Value> = serde_json::from_str(line).unwrap_or_default();
    let mut keys: Vec<String> = object.into_iter().map(|(key, _)| key).collect();
    keys.sort_by_key(|key| line.find(&format!("\"{key}\"")));
    keys
}

/// Good enough to guess from: a comma inside of quotes parts nothing.
fn cells(line: &str) -> Vec<String> {
    let mut cells = vec![String::new()];
    let mut quoted = false;
    for letter in line.trim_end().chars() {
        match (letter, cells.last_mut()) {
            ('"', _) => quoted = !quoted,
            (',', _) if !quoted => cells.push(String::new()),
            (letter, Some(cell)) => cell.push(letter),
            (_, None) => {}
        }
    }
    cells.iter().map(|cell| cell.trim().to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn columns(ending: &str, text: &str) -> Columns {
        use std::sync::atomic::{AtomicU32, Ordering};
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("pipe-columns-{}-{number}.{ending}", std::process::id()));
        let text = match ending.rsplit('.').next() {
            Some("zst") => zstd::encode_all(text.as_bytes(), 3).unwrap(),
            _ => text.as_bytes().to_vec(),
        };
        std::fs::write(&path, text).unwrap();
        let columns = Columns::read(&path).unwrap();
        std::fs::remove_file(path).unwrap();
        columns
    }

    #[test]
    fn guesses() {
        for (ending, text, arch, fields) in [
            (
                "jsonl",
                r#"{"title": "x", "ingredients": "a", "directions": "b"}"#,
                Some(Arch::T5),
                "source=ingredients target=directions",
            ),
            ("jsonl", r#"{"question": "a", "answer": "b"}"#, Some(Arch::T5), "source=question target=answer"),
            ("jsonl", r#"{"text": "a", "label": 1}"#, Some(Arch::Bert), "text=text label=label"),
            (
                "jsonl",
                r#"{"premise": "a", "hypothesis": "b", "label": 1}"#,
                Some(Arch::Bert),
                "text=premise text_pair=hypothesis label=label",
            ),
            ("jsonl", r#"{"file": "a.png", "caption": "b"}"#, Some(Arch::Clip), "image=file text=caption"),
            (
                "csv",
                "time,open,close,label\n1,2.5,3,up\n2,3,4,down\n",
                Some(Arch::HybridCnnLstm),
                "label=label time=time",
            ),
            ("csv", "review,sentiment\n\"good, or so\",1\n", Some(Arch::Bert), "text=review label=sentiment"),
            ("txt", "Once upon a time", Some(Arch::MuSota), ""),
            ("jsonl", r#"{"text": "a"}"#, Some(Arch::MuSota), "text=text"),
            ("jsonl.zst", r#"{"question": "a", "answer": "b"}"#, Some(Arch::T5), "source=question target=answer"),
            ("txt.zst", "Once upon a time", Some(Arch::MuSota), ""),
            ("jsonl", r#"{"a": 1}"#, None, ""),
            ("jsonl", "no json", None, ""),
        ] {
            let columns = columns(ending, text);
            assert_eq!(columns.guess(), arch, "{text}");
            let fields_of = |arch: Arch| {
                let fields = columns.fields(arch.task());
                fields.iter().map(|(role, name)| format!("{role}={name}")).collect::<Vec<_>>().join(" ")
            };
            assert_eq!(arch.map_or(String::new(), fields_of), fields, "{text}");
        }
    }

    #[test]
    fn features_and_classes_of_a_table() {
        let columns = columns("csv", "time,open,close,label\n1,2.5,3,up\n2,3,4,down\n3,3,4,up\n");
        assert_eq!((columns.features(), columns.classes()), (vec![1, 2], 2));
    }

    #[test]
    fn columns_of_no_known_name() {
        let columns = columns("jsonl", r#"{"zeta": "a", "b": 1, "alpha": "c"}"#);
        let want = [("source", "zeta".to_owned()), ("target", "alpha".to_owned())];
        assert_eq!(columns.fields(Task::Seq2Seq), want);
    }
}

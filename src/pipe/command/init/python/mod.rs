//! `pipe init --python`: a script with a training loop of one's own, for a table or for texts with a label.

use std::path::{Path, PathBuf};

use pipe_data::DataTable;
use pipe_spec::pipeline::Task;
use serde_json::json;

use super::column::ColumnKind;
use super::draft::Draft;
use super::survey::Survey;
use crate::error::Error;

/// Scripts that run as they are, for data with these names.
const TABLE: &str = include_str!("table.py");
const TEXTS: &str = include_str!("texts.py");

/// Endings of files that the scripts read.
const READ: [&str; 3] = ["csv", "tsv", "jsonl"];

#[derive(Debug)]
pub struct Script {
    pub path: PathBuf,
    pub text: String,
}

impl Script {
    /// The script for the data of a draft, beside its pipeline.
    pub fn new(draft: &Draft, pipeline: &Path) -> Result<Self, Error> {
        let answers = &draft.answers;
        let table = DataTable::read(Path::new(&answers.train));
        let Some(survey) = table.as_ref().map(Survey::of) else {
            return Err(refused(&answers.train, "it cannot be read".to_owned()));
        };
        let mut files = std::iter::once(&answers.train).chain(&answers.eval);
        if let Some(file) = files.find(|file| !is_read(Path::new(file))) {
            let read = READ.map(|ending| format!(".{ending}")).join(", ");
            return Err(refused(file, format!("the script reads {read}")));
        }
        let column = |role: &str| answers.fields.iter().find(|(fed, _)| fed == role).map(|(_, name)| name.as_str());
        let Some(label) = column("label").filter(|_| draft.separator.is_none()) else {
            return Err(refused(&answers.train, "it needs a column with one label for each row".to_owned()));
        };
        let lines = match (answers.task(), column("text"), column("text_pair")) {
            (Task::Table, ..) => features(&survey, draft),
            (Task::Classification, Some(text), None) => vec![("TEXT", json!(text))],
            _ => return Err(refused(&answers.train, "it is neither a table nor texts with a label".to_owned())),
        };
        let template = if answers.task() == Task::Table { TABLE } else { TEXTS };
        let mut all = vec![
            ("TRAIN", json!(answers.train)),
            ("LABEL", json!(label)),
            ("EPOCHS", json!(draft.settings.epochs)),
            ("BATCH", json!(draft.settings.effective_batch)),
        ];
        all.extend(answers.eval.as_ref().map(|eval| ("EVAL", json!(eval))));
        all.extend(lines);
        let mut text =
            all.iter().fold(template.to_owned(), |text, (name, value)| with_line(&text, name, &value.to_string()));
        if draft.sizes.classes == 1 {
            text = with_line(&text, "PREDICTS_NUMBER", "True");
        }
        Ok(Self { path: pipeline.with_extension("py"), text })
    }
}

fn is_read(file: &Path) -> bool {
    file.is_file() && file.extension().is_some_and(|ending| READ.iter().any(|read| ending == *read))
}

fn refused(data: &str, why: String) -> Error {
    Error::NoScript { data: data.to_owned(), why }
}

/// The columns that say something about the label.
fn features(survey: &Survey, draft: &Draft) -> Vec<(&'static str, serde_json::Value)> {
    let data = draft.data();
    let ignored = data.ignored_columns();
    let is_label = |name: &str| draft.answers.fields.iter().any(|(role, fed)| role == "label" && fed == name);
    let is_used = |name: &str| !is_label(name) && !ignored.contains(&name);
    let named = |wanted: ColumnKind| {
        let of_kind = survey.columns.iter().filter(|column| column.kind == wanted && is_used(&column.name));
        json!(of_kind.map(|column| column.name.as_str()).collect::<Vec<_>>())
    };
    vec![("NUMBERS", named(ColumnKind::Number)), ("CATEGORIES", named(ColumnKind::Label))]
}

/// A script whose line `NAME = ...` has another value; what stands behind it as a comment stays.
fn with_line(text: &str, name: &str, value: &str) -> String {
    let start = format!("{name} = ");
    let line = |line: &str| match line.strip_prefix(&start) {
        Some(rest) => {
            let comment = rest.find("  # ").map_or("", |at| &rest[at..]);
            format!("{start}{value}{comment}\n")
        }
        None => format!("{line}\n"),
    };
    text.lines().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_has_a_line_in_its_script() {
        for (script, names) in [
            (TABLE, &["TRAIN", "EVAL", "LABEL", "PREDICTS_NUMBER", "NUMBERS", "CATEGORIES", "EPOCHS", "BATCH"][..]),
            (TEXTS, &["TRAIN", "EVAL", "TEXT", "LABEL", "PREDICTS_NUMBER", "EPOCHS", "BATCH"][..]),
        ] {
            for name in names {
                let changed = with_line(script, name, "VALUE");
                assert_eq!(changed.matches(&format!("\n{name} = VALUE")).count(), 1, "{name}");
                assert_eq!(changed.lines().count(), script.lines().count());
            }
        }
        assert!(with_line(TABLE, "EVAL", "\"x\"").contains("\nEVAL = \"x\"  # A file, or None"));
    }
}

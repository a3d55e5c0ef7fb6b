//! Columns of the data that stand beside predictions: `id` where there is one, and those that are asked for.

use std::path::Path;

use pipe_spec::pipeline::Paths;
use serde_json::Value;

use pipe_data::{CsvRecords, Rows};

use super::rows::open_rows;
use crate::error::TrainerError;

const ID: &str = "id";

pub struct KeptColumns {
    /// Absent where nothing is kept.
    rows: Option<Rows>,
    names: Vec<String>,
}

impl KeptColumns {
    /// The first row must have every column of `keep`.
    pub fn open(paths: &Paths, keep: &[String]) -> Result<Self, TrainerError> {
        let mut names = keep.to_vec();
        if !names.iter().any(|name| name == ID) && may_have_id(paths)? {
            names.push(ID.to_owned());
        }
        if names.is_empty() {
            return Ok(Self { rows: None, names });
        }
        if let Some(path) = paths.0.iter().find(|path| !has_columns(path)) {
            let message = format!("it has no columns, and so no {:?} to keep", names[0]);
            return Err(TrainerError::Data { path: path.into(), line: None, message });
        }
        let rows = open_rows(paths, &names.iter().map(String::as_str).collect::<Vec<_>>())?;
        let first = rows.values(0)?;
        match first.iter().take(keep.len()).position(Option::is_none) {
            Some(missing) => Err(rows.problem(0, missing, None, "").into()),
            None => Ok(Self { rows: Some(rows), names }),
        }
    }

    /// Those that a row has, `id` first.
    pub fn values(&self, row: usize) -> Result<Vec<(String, Value)>, TrainerError> {
        let Some(rows) = &self.rows else { return Ok(Vec::new()) };
        let named = self.names.iter().zip(rows.values(row)?);
        let mut kept: Vec<(String, Value)> =
            named.filter_map(|(name, value)| value.map(|value| (name.clone(), value))).collect();
        kept.sort_by_key(|(name, _)| name != ID);
        Ok(kept)
    }
}

fn has_columns(path: &str) -> bool {
    [".jsonl", ".csv", ".tsv"].iter().any(|ending| path.ends_with(ending))
}

/// A CSV file is read whole, which is not done a second time for a column that it does not have.
fn may_have_id(paths: &Paths) -> Result<bool, TrainerError> {
    for path in &paths.0 {
        let has = match path.rsplit('.').next() {
            Some("csv" | "tsv") => {
                let header = CsvRecords::open(Path::new(path))?.headers()?;
                header.iter().any(|name| name.trim() == ID)
            }
            _ => path.ends_with(".jsonl"),
        };
        if !has {
            return Ok(false);
        }
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_asked_for_and_the_id_are_kept() {
        let folder = std::env::temp_dir().join(format!("pipe-kept-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let write = |name: &str, text: &str| {
            std::fs::write(folder.join(name), text).unwrap();
            Paths(vec![folder.join(name).display().to_string()])
        };
        let kept = |paths: &Paths, keep: &[&str], row: usize| {
            let keep: Vec<String> = keep.iter().map(|name| (*name).to_owned()).collect();
            let kept = KeptColumns::open(paths, &keep).map_err(|error| error.to_string())?;
            let values = kept.values(row).map_err(|error| error.to_string())?;
            Ok::<_, String>(values.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join(" "))
        };
        let rows = write("a.jsonl", "{\"b\":1,\"id\":\"x\"}\n{\"b\":2,\"c\":[3]}\n");
        assert_eq!(kept(&rows, &[], 0).unwrap(), "id=\"x\"");
        assert_eq!(kept(&rows, &["b"], 0).unwrap(), "id=\"x\" b=1");
        assert_eq!(kept(&rows, &["b"], 1).unwrap(), "b=2");
        assert!(kept(&rows, &["c"], 0).unwrap_err().ends_with("line 1: no field \"c\"; it has: b, id"));
        let table = write("a.csv", "text,n\nhello,7\n");
        assert_eq!(kept(&table, &[], 0).unwrap(), "");
        assert_eq!(kept(&table, &["n"], 0).unwrap(), "n=\"7\"");
        let text = write("a.txt", "hello\n");
        assert_eq!(kept(&text, &[], 0).unwrap(), "");
        assert!(kept(&text, &["n"], 0).unwrap_err().contains("no \"n\" to keep"));
        std::fs::remove_dir_all(folder).unwrap();
    }
}

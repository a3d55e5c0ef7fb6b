//! Which columns of a table a task reads, and how it wants them written.

use pipe_spec::pipeline::{CONVERSATION, Data, PROMPT, Task};

/// The columns of a file that the trainer wants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ColumnSelection {
    /// The columns that are read, each once; nothing where all are.
    columns: Option<Vec<String>>,
    /// Whether rows are written as CSV.
    csv: bool,
    /// The columns that must be there.
    required: Vec<String>,
    /// The column with pictures, or paths of pictures.
    pub pictures: Option<String>,
}

impl ColumnSelection {
    pub fn new(task: Task, data: &Data) -> Self {
        let is_optional = |role: &str| matches!(role, "text_pair" | "time") && !data.fields.contains_key(role);
        let mut required: Vec<String> = Vec::new();
        let mut columns: Vec<String> = Vec::new();
        for role in data.roles(task) {
            let name = data.field(role).to_owned();
            if !is_optional(role) && !required.contains(&name) {
                required.push(name.clone());
            }
            if !columns.contains(&name) {
                columns.push(name);
            }
        }
        Self {
            columns: (!matches!(task, Task::TimeSeries | Task::Table)).then_some(columns),
            csv: task == Task::TimeSeries,
            required,
            pictures: task.reads_pictures().then(|| data.field("image").to_owned()),
        }
    }

    /// For rows to predict, of which `keep` is repeated: what is to be predicted may be missing.
    pub fn for_prediction(task: Task, data: &Data, keep: &[String]) -> Self {
        let Self { mut columns, csv, required, pictures } = Self::new(task, data);
        if let Some(columns) = &mut columns {
            let other = match task {
                Task::Language => Some("prompt"),
                Task::TokenLabels => Some("text"),
                _ => None,
            };
            let other = other.map(|role| data.field(role).to_owned());
            let more = keep.iter().cloned().chain(["id".to_owned()]).chain(other);
            more.for_each(|name| {
                if !columns.contains(&name) {
                    columns.push(name)
                }
            });
        }
        let needed: &[&str] = match task {
            Task::Seq2Seq => &["source"],
            Task::Language if data.is_chat() => &[CONVERSATION, PROMPT],
            Task::Classification => &["text", "text_pair"],
            Task::TimeSeries => &["time"],
            Task::PictureClasses => &["image"],
            // A picture or a text; a text or a prompt; tokens or a text; a feature of a table may be missing.
            Task::Contrastive | Task::Language | Task::TokenLabels | Task::Table | Task::Preference => &[],
        };
        let is_needed = |name: &String| needed.iter().any(|role| data.field(role) == name) || keep.contains(name);
        Self {
            columns,
            csv,
            required: required.into_iter().filter(is_needed).chain(keep.iter().cloned()).collect(),
            pictures,
        }
    }

    /// Whether rows are written as CSV, which time series are read from; otherwise as JSON lines.
    pub fn as_csv(&self) -> bool {
        self.csv
    }

    pub fn reads(&self, column: &str) -> bool {
        self.columns.as_ref().is_none_or(|columns| columns.iter().any(|name| name == column))
    }

    /// Says in words which columns a table lacks.
    pub fn missing(&self, there: &[&str]) -> Option<String> {
        let missing: Vec<String> = self
            .required
            .iter()
            .filter(|name| !there.contains(&name.as_str()))
            .map(|name| format!("{name:?}"))
            .collect();
        let noun = if missing.len() == 1 { "column" } else { "columns" };
        (!missing.is_empty()).then(|| format!("no {noun} {}; it has: {}", missing.join(", "), there.join(", ")))
    }

    /// A text that tells one choice of columns from another.
    pub fn key(&self) -> String {
        match &self.columns {
            None if self.csv => "csv".to_owned(),
            None => "jsonl".to_owned(),
            Some(columns) => format!("jsonl {columns:?} {:?}", self.pictures),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn selection(task: Task, fields: &str) -> ColumnSelection {
        let data: Data = serde_json::from_str(&format!("{{\"train\": \"a\", \"fields\": {fields}}}")).unwrap();
        ColumnSelection::new(task, &data)
    }

    #[test]
    fn columns_by_task() {
        let plain = selection(Task::Classification, "{}");
        assert_eq!(plain.missing(&["label", "text", "id"]), None);
        assert!(plain.reads("text_pair") && !plain.reads("id"));
        let pairs = selection(Task::Classification, r#"{"text_pair": "b", "text": "a"}"#);
        assert_eq!(pairs.missing(&["a"]).as_deref(), Some(r#"no columns "b", "label"; it has: a"#));
        let series = selection(Task::TimeSeries, "{}");
        assert!(series.as_csv() && series.reads("anything"));
        assert_eq!(series.missing(&["open", "label"]), None);
        assert_eq!(
            selection(Task::TimeSeries, r#"{"time": "t"}"#).missing(&["label"]).as_deref(),
            Some(r#"no column "t"; it has: label"#)
        );
        let table = selection(Task::Table, r#"{"label": "y", "ignore": "a, b"}"#);
        assert!(!table.as_csv() && table.reads("anything") && table.key() != series.key());
        assert_eq!(table.missing(&["x"]).as_deref(), Some(r#"no column "y"; it has: x"#));
        assert_eq!(selection(Task::Contrastive, r#"{"image": "jpg"}"#).pictures.as_deref(), Some("jpg"));
        let data: Data = serde_json::from_str(r#"{"train": "a", "fields": {"target": "b"}}"#).unwrap();
        let predicted = ColumnSelection::for_prediction(Task::Seq2Seq, &data, &["n".to_owned()]);
        assert_eq!(predicted.missing(&["source", "n"]), None);
        assert_eq!(predicted.missing(&["b"]).as_deref(), Some(r#"no columns "source", "n"; it has: b"#));
        assert!(["source", "b", "id", "n"].iter().all(|name| predicted.reads(name)) && !predicted.reads("other"));
        let same = selection(Task::Seq2Seq, r#"{"source": "a", "target": "a"}"#);
        assert_eq!(same.columns.as_deref(), Some(&["a".to_owned()][..]));
        assert_ne!(plain.key(), pairs.key());
    }
}

//! Which columns of a table a task reads, and how it wants them written.

use pipe_spec::pipeline::{Data, Task};

/// What the trainer wants of a file with columns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ColumnSelection {
    /// The columns that are read, each once; nothing where all are.
    columns: Option<Vec<String>>,
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
        for role in task.roles() {
            let name = data.field(role).to_owned();
            if !is_optional(role) && !required.contains(&name) {
                required.push(name.clone());
            }
            if !columns.contains(&name) {
                columns.push(name);
            }
        }
        Self {
            columns: (task != Task::TimeSeries).then_some(columns),
            required,
            pictures: (task == Task::Contrastive).then(|| data.field("image").to_owned()),
        }
    }

    /// Whether rows are written as CSV, which time series are read from; otherwise as JSON lines.
    pub fn as_csv(&self) -> bool {
        self.columns.is_none()
    }

    pub fn reads(&self, column: &str) -> bool {
        self.columns.as_ref().is_none_or(|columns| columns.iter().any(|name| name == column))
    }

    /// What is missing in a table with these columns, in words.
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

    /// What tells one choice of columns from another.
    pub fn key(&self) -> String {
        match &self.columns {
            None => "csv".to_owned(),
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
        assert_eq!(selection(Task::Contrastive, r#"{"image": "jpg"}"#).pictures.as_deref(), Some("jpg"));
        let same = selection(Task::Seq2Seq, r#"{"source": "a", "target": "a"}"#);
        assert_eq!(same.columns.as_deref(), Some(&["a".to_owned()][..]));
        assert_ne!(plain.key(), pairs.key());
    }
}

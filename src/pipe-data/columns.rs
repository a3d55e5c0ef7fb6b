//! Which columns of a table a task reads, and how it wants them written.
//!
//! Numbers as people write amounts: with a currency, a percent sign, or marks between thousands.

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

const SIGNS: [char; 6] = ['$', '€', '£', '¥', '₹', '%'];

/// The number of such a text: `$253,765`, `51.182,14`, `12 %`. Nothing for a plain number, and where it is not clear whether a mark
/// stands between thousands or before decimals.
pub fn amount(text: &str) -> Option<f64> {
    let bare = text.trim().trim_matches(|letter: char| SIGNS.contains(&letter) || letter.is_whitespace());
    let has_sign = bare.len() < text.trim().len();
    let (minus, digits) = bare.strip_prefix('-').map_or(("", bare), |digits| ("-", digits));
    let digits = digits.trim_start_matches(|letter: char| SIGNS.contains(&letter));
    if !digits.starts_with(|letter: char| letter.is_ascii_digit()) {
        return None;
    }
    let marks: Vec<char> = digits.chars().filter(|letter| !letter.is_ascii_digit()).collect();
    let number = match marks[..] {
        [] if has_sign => digits.to_owned(),
        [','] if has_sign && is_grouped(digits, ',') => digits.replace(',', ""),
        [_] if has_sign => digits.replace(',', "."),
        [mark @ ('.' | ','), _, ..] if marks.iter().all(|other| *other == mark) && is_grouped(digits, mark) => {
            digits.replace(mark, "")
        }
        [mark @ ('.' | ','), ref between @ .., last @ ('.' | ',')]
            if last != mark && between.iter().all(|other| *other == mark) =>
        {
            let (whole, decimals) = digits.rsplit_once(last)?;
            is_grouped(whole, mark).then(|| format!("{}.{decimals}", whole.replace(mark, "")))?
        }
        _ => return None,
    };
    format!("{minus}{number}").parse().ok()
}

/// Whether all but the first group have three digits.
fn is_grouped(digits: &str, mark: char) -> bool {
    let mut groups = digits.split(mark);
    groups.next().is_some_and(|first| (1..=3).contains(&first.len())) && groups.all(|group| group.len() == 3)
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

    #[test]
    fn as_people_write_them() {
        for (text, want) in [
            ("$253,765", Some(253_765.0)),
            ("-$1,250.50", Some(-1250.5)),
            ("51.182,14", Some(51_182.14)),
            ("1,234,567", Some(1_234_567.0)),
            ("1.234.567", Some(1_234_567.0)),
            ("12 %", Some(12.0)),
            ("€ 9,99", Some(9.99)),
            ("3.5 €", Some(3.5)),
            // Plain, or not clear.
            ("12", None),
            ("1,234", None),
            ("1.234", None),
            ("12,34,5", None),
            ("10.0.0.1", None),
            ("$", None),
            ("v1.2", None),
            ("", None),
        ] {
            assert_eq!(amount(text), want, "{text}");
        }
    }
}

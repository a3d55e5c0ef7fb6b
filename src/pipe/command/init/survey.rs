//! All columns of the data, a description of them for people, and which column of a table without a time is to be predicted.

use std::collections::HashMap;

use pipe_data::{DataTable, Layout};
use pipe_spec::Inspection;
use pipe_spec::pipeline::{CONTEXT, IGNORED_COLUMNS, Task};
use pipe_spec::text::count;

use super::column::{Column, ColumnKind, name_rank};
use super::texts::Lengths;
use crate::report::{Table, bounded, grouped, visible_line};

/// A role and the column that feeds it.
pub type Field = (String, String);

/// Characters of an example, and of a name.
const EXAMPLE: usize = 40;
/// Classes and columns that are listed by name at most.
const LISTED: usize = 8;

/// Columns that are not used, which are listed at most, and characters of such a line.
const UNUSED: usize = 12;
const LINE: usize = 100;

/// Usual names of the columns with words and with their tags.
const TOKENS: [&str; 3] = ["tokens", "words", "token"];
const TAGS: [&str; 6] = ["tags", "ner_tags", "ner", "labels", "tag", "pos_tags"];

pub struct Survey {
    pub layout: Layout,
    pub columns: Vec<Column>,
    pub rows: u64,
    /// Whether `rows` is all of them.
    pub counted: bool,
    /// Rows with more or fewer cells than there are columns.
    pub uneven: u64,
    /// Rows whose values were looked at.
    pub looked_at: usize,
    /// Sentences about how the file is read.
    pub notes: Vec<String>,
}

impl Survey {
    pub fn of(table: &DataTable) -> Self {
        let column = |(index, name): (usize, &String)| {
            let mut column = Column::of(name, table.values(index), &table.folder);
            if table.nested.contains(name) && column.kind == ColumnKind::Constant {
                column.kind = ColumnKind::Other;
            }
            column
        };
        let is_named = |(_, name): &(usize, &String)| !name.trim().is_empty();
        let unnamed = table.names.iter().filter(|name| name.trim().is_empty()).count();
        let mut notes = table.notes.clone();
        notes.extend((unnamed > 0).then(|| match unnamed {
            1 => "a column has no name, as the index of pandas has none: it is not used".to_owned(),
            many => format!("{many} columns have no name: they are not used"),
        }));
        Self {
            layout: table.layout,
            columns: table.names.iter().enumerate().filter(is_named).map(column).collect(),
            rows: table.total,
            counted: table.counted,
            uneven: table.uneven,
            looked_at: table.rows.len(),
            notes,
        }
    }

    /// Rows that nothing can be learned from: without a text or a label, or with a broken picture. Those of a time series are all
    /// used.
    pub fn bad_rows(&self, task: Task, fields: &[Field]) -> Vec<(usize, &'static str)> {
        if task == Task::TimeSeries {
            return Vec::new();
        }
        let lacks = |(role, name): &Field| {
            let column = self.column(name).filter(|_| role != IGNORED_COLUMNS)?;
            let found = match role.as_str() {
                CONTEXT => return None,
                // No label is an answer too.
                "label" if matches!(column.kind, ColumnKind::Several(_)) => return None,
                "image" => (column.empty + column.pictures.broken, "a picture that can be read"),
                "label" => (column.empty, "a label"),
                "text_pair" => (column.empty, "a second text"),
                _ => (column.empty, "a text"),
            };
            Some(found).filter(|(count, _)| *count > 0)
        };
        fields.iter().filter_map(lacks).collect()
    }

    /// The tokens that the texts of these columns have use for.
    pub fn vocabulary(&self, fields: &[Field]) -> usize {
        fields.iter().filter_map(|(_, name)| self.column(name)).map(|column| column.vocabulary).sum()
    }

    pub fn column(&self, name: &str) -> Option<&Column> {
        self.columns.iter().find(|column| column.name == name)
    }

    /// The column that feeds `role`.
    pub fn fed(&self, fields: &[Field], role: &str) -> Option<&Column> {
        fields.iter().find(|(fed, _)| fed == role).and_then(|(_, name)| self.column(name))
    }

    /// Columns that a time series reads as features.
    pub fn features(&self, fields: &[Field]) -> usize {
        self.columns.iter().filter(|column| !fields.iter().any(|(_, name)| *name == column.name)).count()
    }

    pub fn of_kind(&self, kind: ColumnKind) -> Vec<&Column> {
        self.columns.iter().filter(|column| column.kind == kind).collect()
    }

    /// The column with the most usual name for a role.
    pub fn best(&self, role: &str, is: impl Fn(&Column) -> bool) -> Option<&Column> {
        let ranked = |column: &&Column| name_rank(role, &column.name).unwrap_or(usize::MAX);
        self.columns.iter().filter(|column| is(column)).min_by_key(ranked).filter(|column| ranked(column) < usize::MAX)
    }

    /// The column with lists of words and the one with a tag for each, by their names. Tags may be numbers, as many as there are words.
    pub fn token_columns(&self) -> Option<[&Column; 2]> {
        let is_list = |column: &Column| matches!(column.kind, ColumnKind::Words | ColumnKind::Several(None));
        let find = |names: &[&str], is: &dyn Fn(&Column) -> bool| {
            let is_named = |column: &&Column, name: &str| is(column) && column.name.eq_ignore_ascii_case(name);
            names.iter().find_map(|name| self.columns.iter().find(|column| is_named(column, name)))
        };
        let tokens = find(&TOKENS, &is_list)?;
        let is_numbered = |column: &Column| column.kind == ColumnKind::Numbers && column.words == tokens.words;
        Some([tokens, find(&TAGS, &|column| is_list(column) || is_numbered(column))?])
    }

    /// A table of the columns for people.
    pub fn table(&self, width: usize) -> String {
        let mut table = Table::new(&["COLUMN", "LOOKS LIKE", "EXAMPLE"]);
        for column in &self.columns {
            let like = match column.kind {
                ColumnKind::Label => format!("label, {}", count(column.distinct, "value")),
                ColumnKind::Several(_) => format!("several labels, {}", count(column.distinct, "value")),
                kind => kind.name().to_owned(),
            };
            table.row(vec![column.name.clone(), like, bounded(&column.example, EXAMPLE)]);
        }
        table.render(Some(width))
    }

    /// `431 rows`, or how many there are at least.
    pub fn count(&self) -> String {
        let more = if self.counted { "" } else { "more than " };
        let what = if self.layout == Layout::Documents { "text" } else { "row" };
        let plural = if self.rows == 1 { "" } else { "s" };
        format!("{more}{} {what}{plural}", grouped(self.rows))
    }

    /// A description of the data in lines. The lengths are in tokens where the trainer has counted them.
    pub fn findings(&self, task: Task, fields: &[Field], inspection: Option<&Inspection>) -> Vec<String> {
        let mut lines = vec![format!("found: {}", self.count())];
        lines.extend(self.notes.iter().map(|note| format!("  {note}")));
        for (role, name) in fields {
            let Some(column) = self.column(name).filter(|_| role != IGNORED_COLUMNS) else { continue };
            lines.push(format!("  {role}: {}", describe(column, role, task, inspection)));
            if role == "label"
                && let Some([one, other]) = differ_in_case(column)
            {
                let (one, other) = (shown(one), shown(other));
                lines.push(format!("  note: {one} and {other} are two labels, which differ only in capital letters"));
            }
        }
        if fields.is_empty() {
            let texts = self.columns.iter().filter(|column| column.kind == ColumnKind::Text);
            lines.extend(texts.map(|column| format!("  {}", words(column.words))));
        }
        let feeds = |(role, name): &Field, column: &Column| role != IGNORED_COLUMNS && *name == column.name;
        let is_used = |column: &&Column| fields.iter().any(|field| feeds(field, column));
        let others: Vec<&Column> = self.columns.iter().filter(|column| !is_used(column)).collect();
        let ignored = fields.iter().find(|(role, _)| role == IGNORED_COLUMNS);
        match task {
            Task::Table => {
                let is_unused = |column: &&&Column| {
                    let is_named = |(_, names): &Field| names.split("; ").any(|one| one == column.name);
                    column.kind == ColumnKind::Constant || ignored.is_some_and(is_named)
                };
                let features: Vec<_> = others.iter().filter(|column| !is_unused(column)).collect();
                lines.push(format!("  features: {}", listed(&features, |column| shown(&column.name))));
                let unused: Vec<&Column> = others.iter().filter(is_unused).copied().collect();
                lines.extend(not_used(&unused));
            }
            Task::TimeSeries => {
                lines.push(format!("  features: {}", listed(&others, |column| shown(&column.name))));
                let missing: Vec<&&Column> = others.iter().filter(|column| column.empty > 0).collect();
                if !missing.is_empty() {
                    let count = |column: &&&Column| format!("{} {}", shown(&column.name), grouped(column.empty as u64));
                    let missing = listed(&missing, count);
                    lines.push(format!("  missing numbers, filled with the last one before: {missing}"));
                }
            }
            _ if !fields.is_empty() => lines.extend(not_used(&others)),
            _ => {}
        }
        if self.uneven > 0 {
            let have = if self.uneven == 1 { "row has" } else { "rows have" };
            let rows = grouped(self.uneven);
            lines.push(format!("  {rows} {have} too few or too many cells: skipped (data.skip_bad: true)"));
        }
        for (rows, lacks) in self.bad_rows(task, fields) {
            let (rows, are) = (grouped(rows as u64), if rows == 1 { "row is" } else { "rows are" });
            lines.push(format!("  {rows} {are} without {lacks}: skipped (data.skip_bad: true)"));
        }
        lines
    }
}

/// Columns that are not used, each with its reason, in lines.
fn not_used(columns: &[&Column]) -> Vec<String> {
    let reason = |column: &Column| match column.kind {
        ColumnKind::Id => "an id".to_owned(),
        ColumnKind::Text => "free text".to_owned(),
        kind @ (ColumnKind::Label | ColumnKind::Number) => format!("{}, which the model does not read", kind.name()),
        kind => kind.name().to_owned(),
    };
    let mut parts: Vec<String> =
        columns.iter().take(UNUSED).map(|column| format!("{} ({})", shown(&column.name), reason(column))).collect();
    if columns.len() > UNUSED {
        parts.push(format!("and {} more", columns.len() - UNUSED));
    }
    let mut lines: Vec<String> = Vec::new();
    for (index, part) in parts.iter().enumerate() {
        let part = if index + 1 < parts.len() { format!("{part},") } else { part.clone() };
        match lines.last_mut() {
            Some(line) if line.chars().count() + part.chars().count() < LINE => *line += &format!(" {part}"),
            Some(_) => lines.push(format!("    {part}")),
            None => lines.push(format!("  not used: {part}")),
        }
    }
    lines
}

/// Two labels that are one but for capital letters.
fn differ_in_case(column: &Column) -> Option<[&str; 2]> {
    let mut seen: HashMap<String, &str> = HashMap::new();
    column
        .classes
        .iter()
        .find_map(|(label, _)| seen.insert(label.to_lowercase(), label).map(|other| [other, label.as_str()]))
}

fn describe(column: &Column, role: &str, task: Task, inspection: Option<&Inspection>) -> String {
    let empty = match column.empty {
        0 => String::new(),
        1 => "; 1 row without one".to_owned(),
        empty => format!("; {} rows without one", grouped(empty as u64)),
    };
    let name = shown(&column.name);
    match (role, column.kind) {
        ("label", _) if column.is_quantity() && matches!(task, Task::Classification | Task::Table) => {
            match column.range {
                Some((low, high)) => format!("{name}, a number from {low} to {high}{empty}"),
                None => format!("{name}{empty}"),
            }
        }
        ("label", ColumnKind::Several(_)) | ("tags", _) if !column.classes.is_empty() => {
            let label = |(label, rows): &(String, usize)| format!("{} {}", shown(label), grouped(*rows as u64));
            let (what, labels) = match role {
                "tags" => ("a label for each token", column.classes.len()),
                _ => ("several labels a text", column.classes.len()),
            };
            format!("{name}, {what}, {labels} labels: {}{empty}", listed(&column.classes, label))
        }
        ("label", _) if !column.classes.is_empty() => {
            let class = |(class, rows): &(String, usize)| format!("{} {}", shown(class), grouped(*rows as u64));
            let noun = if column.classes.len() == 1 { "class" } else { "classes" };
            format!("{name}, {} {noun}: {}{empty}", column.classes.len(), listed(&column.classes, class))
        }
        ("image" | "time" | "label", _) => format!("{name}{empty}"),
        _ => match inspection.and_then(|found| found.train.lengths.iter().find(|lengths| lengths.column == role)) {
            Some(lengths) => format!(
                "{name}, {:.0} tokens on average, 95 % up to {}, longest {}{empty}",
                lengths.mean,
                grouped(lengths.p95),
                grouped(lengths.longest)
            ),
            None => format!("{name}, {}{empty}", words(column.words)),
        },
    }
}

fn words(lengths: Lengths) -> String {
    let Lengths { mean, p95, longest } = lengths;
    let noun = if mean == 1 { "word" } else { "words" };
    format!(
        "{} {noun} on average, 95 % up to {}, longest {}",
        grouped(mean as u64),
        grouped(p95 as u64),
        grouped(longest as u64)
    )
}

/// On one line, whatever is in it.
fn shown(name: &str) -> String {
    bounded(&visible_line(name), EXAMPLE)
}

fn listed<T>(items: &[T], name: impl Fn(&T) -> String) -> String {
    let mut text = items.iter().take(LISTED).map(name).collect::<Vec<_>>().join(", ");
    if items.len() > LISTED {
        text += &format!(" and {} more", items.len() - LISTED);
    }
    text
}

/// Names of columns that are usually predicted, the most usual first.
const LABELS: [&str; 19] = [
    "label",
    "labels",
    "target",
    "class",
    "y",
    "species",
    "outcome",
    "survived",
    "churn",
    "diagnosis",
    "quality",
    "default",
    "result",
    "churned",
    "exited",
    "left",
    "attrition",
    "fraud",
    "is_fraud",
];

/// Words of a text on average, up to which it may be a name rather than something to read.
const FEW_WORDS: usize = 5;
/// Numbers and categories that a table has at least, and beside such texts.
const COLUMNS: usize = 2;
const COLUMNS_BESIDE_TEXTS: usize = 5;

/// Whether the rows are those of a table: numbers and categories, in no order of time, and nothing to read.
pub fn is_table(survey: &Survey) -> bool {
    let is_named =
        |column: &Column| ["text", "text_pair", "source"].iter().any(|role| name_rank(role, &column.name).is_some());
    let texts = survey.of_kind(ColumnKind::Text);
    let is_text = |column: &&Column| column.words.mean > FEW_WORDS || is_named(column);
    let has = |kind: ColumnKind| !survey.of_kind(kind).is_empty();
    let columns = survey.columns.iter().filter(|column| column.can_be_label()).count();
    survey.layout != Layout::Documents
        && ![ColumnKind::Time, ColumnKind::Picture, ColumnKind::Messages].into_iter().any(has)
        && !texts.iter().any(is_text)
        && columns >= if texts.is_empty() { COLUMNS } else { COLUMNS_BESIDE_TEXTS }
}

/// The column to predict, and those that say nothing about it.
pub fn fields(survey: &Survey, given: &[Field]) -> Result<Vec<Field>, String> {
    let mut fields = given.to_vec();
    let has = |role: &str| given.iter().any(|(fed, _)| fed == role);
    if !has("label") {
        let label = label(survey).ok_or("no column looks like a class or a number to predict")?;
        fields.insert(0, ("label".to_owned(), label.name.clone()));
    }
    if !has(IGNORED_COLUMNS) {
        let says_nothing = |column: &&Column| {
            let is_used = fields.iter().any(|(_, name)| *name == column.name);
            let is_feature = column.can_be_label() || column.kind == ColumnKind::Constant;
            !is_feature && !is_used && !column.name.is_empty() && !column.name.contains([',', ';'])
        };
        let names: Vec<&str> = survey.columns.iter().filter(says_nothing).map(|column| column.name.as_str()).collect();
        if !names.is_empty() {
            fields.push((IGNORED_COLUMNS.to_owned(), names.join("; ")));
        }
    }
    Ok(fields)
}

/// By its name, else the last column of words, else the last column.
fn label(survey: &Survey) -> Option<&Column> {
    let possible = || survey.columns.iter().filter(|column| column.can_be_label());
    let is = |name: &str| possible().find(|column| column.name.trim().eq_ignore_ascii_case(name));
    let named = LABELS.iter().find_map(|name| is(name)).or_else(|| survey.best("label", Column::can_be_label));
    let words = || possible().rfind(|column| column.range.is_none());
    named.or_else(words).or_else(|| possible().next_back())
}

#[cfg(test)]
mod tests {
    use pipe_data::DataTable;

    use super::*;

    #[test]
    fn every_column_that_is_not_used_has_a_reason() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.csv");
        let many: String = (0..14).map(|number| format!(",code_{number}")).collect();
        let row = |row: usize| {
            let codes: String = (0..14).map(|number| format!(",x{number}y{row}")).collect();
            format!("{row},{}.5,{},EUR,{}{codes}\n", row * 7 % 11, row % 5, ["red", "blue"][row % 2])
        };
        let rows: String = (0..40).map(row).collect();
        std::fs::write(&path, format!(",width,height,currency,species{many}\n{rows}")).unwrap();
        let survey = Survey::of(&DataTable::read(&path).unwrap());
        let fields = crate::command::init::roles::fields(&survey, Task::Table, &[]).unwrap();
        let found = survey.findings(Task::Table, &fields, None);
        let at = found.iter().position(|line| line.starts_with("  not used: ")).unwrap();
        assert!(found.iter().any(|line| line == "  features: width, height"), "{found:?}");
        assert!(found[at].starts_with("  not used: currency (same in all rows), code_0 (an id),"));
        let unused = found[at..].join("\n");
        assert!(unused.contains("code_10 (an id), and 3 more"), "{unused}");
        assert!(found[at..].iter().all(|line| line.chars().count() <= LINE), "{unused}");
        assert!(found.iter().any(|line| line.contains("a column has no name")), "{found:?}");
        let one = [("label", "species"), ("ignore", "code_0")].map(|(role, name)| (role.to_owned(), name.to_owned()));
        let found = survey.findings(Task::Table, &one, None).join("\n");
        assert!(found.contains("  not used: currency (same in all rows), code_0 (an id)"), "{found}");
    }

    /// `role=column` for a table of these rows, each twice as often as there must be to see what they are.
    fn found(name: &str, header: &str, row: impl Fn(usize) -> String) -> String {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(name);
        let rows: Vec<String> = (0..40).map(row).collect();
        std::fs::write(&path, format!("{header}\n{}\n", rows.join("\n"))).unwrap();
        let survey = Survey::of(&DataTable::read(&path).unwrap());
        match is_table(&survey) {
            false => "no table".to_owned(),
            true => {
                let field = |(role, column): &Field| format!("{role}={column}");
                fields(&survey, &[]).map_or_else(|why| why, |all| all.iter().map(field).collect::<Vec<_>>().join(" "))
            }
        }
    }

    #[test]
    fn rows_without_a_time_and_without_a_text_are_a_table() {
        let size = |row: usize| format!("{}.{}", row * 7 % 11, row * 3 % 10);
        let kind = |row: usize| ["red", "green"][row % 2];
        let cases = [
            (
                found("a.csv", "width,height,species", |row| format!("{},{},{}", size(row), size(row + 1), kind(row))),
                "label=species",
            ),
            // The last column of words, and the last column where there is none.
            (
                found("a.csv", "width,colour,height", |row| format!("{},{},{}", size(row), kind(row), size(row + 2))),
                "label=colour",
            ),
            (
                found("a.csv", "width,year,exited", |row| {
                    let year = if row == 7 { "unknown".to_owned() } else { (1950 + row).to_string() };
                    format!("{},{year},{}", size(row), row % 2)
                }),
                "label=exited",
            ),
            (found("a.csv", "a,b", |row| format!("{},{}", size(row), size(row * row))), "label=b"),
            (
                found("a.csv", "Id,width,height,target", |row| {
                    format!("{row},{},{},{}", size(row), size(row + 1), row % 3)
                }),
                "label=target ignore=Id",
            ),
            (
                found("a.csv", "when,width,species", |row| {
                    format!("2025-01-{:02},{},{}", row % 28 + 1, size(row), kind(row))
                }),
                "no table",
            ),
            (
                found("a.csv", "text,species,width", |row| {
                    format!("a sentence with {row} words or more,{},{}", kind(row), size(row))
                }),
                "no table",
            ),
        ];
        for (got, want) in cases {
            assert_eq!(got, want);
        }
    }
}

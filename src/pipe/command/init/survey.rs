//! All columns of the data, and a description of them for people.

use pipe_data::{DataTable, Layout};
use pipe_spec::Inspection;
use pipe_spec::pipeline::Task;
use pipe_spec::text::count;

use super::column::{Column, ColumnKind, Lengths, name_rank};
use crate::report::{Table, bounded, grouped, visible_line};

/// A role and the column that feeds it.
pub type Field = (String, String);

/// Characters of an example, and of a name.
const EXAMPLE: usize = 40;
/// Classes and columns that are listed by name at most.
const LISTED: usize = 8;

pub struct Survey {
    pub layout: Layout,
    pub columns: Vec<Column>,
    pub rows: u64,
    /// Whether `rows` is all of them.
    pub counted: bool,
}

impl Survey {
    pub fn of(table: &DataTable) -> Self {
        let column = |(index, name): (usize, &String)| Column::of(name, table.values(index), &table.folder);
        Self {
            layout: table.layout,
            columns: table.names.iter().enumerate().map(column).collect(),
            rows: table.total,
            counted: table.counted,
        }
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

    /// A table of the columns for people.
    pub fn table(&self, width: usize) -> String {
        let mut table = Table::new(&["COLUMN", "LOOKS LIKE", "EXAMPLE"]);
        for column in &self.columns {
            let like = match column.kind {
                ColumnKind::Label => format!("label, {}", count(column.distinct, "value")),
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
        for (role, name) in fields {
            let Some(column) = self.column(name) else { continue };
            lines.push(format!("  {role}: {}", describe(column, role, task, inspection)));
        }
        if fields.is_empty() {
            let texts = self.columns.iter().filter(|column| column.kind == ColumnKind::Text);
            lines.extend(texts.map(|column| format!("  {}", words(column.words))));
        }
        let is_used = |column: &&Column| fields.iter().any(|(_, name)| *name == column.name);
        let others: Vec<&Column> = self.columns.iter().filter(|column| !is_used(column)).collect();
        match task {
            Task::TimeSeries => {
                lines.push(format!("  features: {}", listed(&others, |column| shown(&column.name))));
            }
            _ if !others.is_empty() && !fields.is_empty() => {
                let other = |column: &&Column| format!("{} ({})", shown(&column.name), column.kind.name());
                lines.push(format!("  not used: {}", listed(&others, other)));
            }
            _ => {}
        }
        lines
    }
}

fn describe(column: &Column, role: &str, task: Task, inspection: Option<&Inspection>) -> String {
    let empty = match column.empty {
        0 => String::new(),
        empty => format!("; {} rows without one", grouped(empty as u64)),
    };
    let name = shown(&column.name);
    match (role, column.kind) {
        ("label", _) if column.is_quantity() && task == Task::Classification => match column.range {
            Some((low, high)) => format!("{name}, a number from {low} to {high}{empty}"),
            None => format!("{name}{empty}"),
        },
        ("label", _) if !column.classes.is_empty() => {
            let class = |(class, rows): &(String, usize)| format!("{} {}", shown(class), grouped(*rows as u64));
            let noun = if column.classes.len() == 1 { "class" } else { "classes" };
            format!("{name}, {} {noun}: {}{empty}", column.classes.len(), listed(&column.classes, class))
        }
        ("image" | "time" | "label", _) => format!("{name}{empty}"),
        _ => match inspection.and_then(|found| found.train.lengths.iter().find(|lengths| lengths.column == role)) {
            Some(lengths) => format!(
                "{name}, {:.0} tokens on average, 95 % up to {}, longest {}",
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

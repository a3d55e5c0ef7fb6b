//! Tables: rows of numbers and categories without a time, and which of their columns is to be predicted.

use pipe_data::Layout;
use pipe_spec::pipeline::IGNORED_COLUMNS;

use super::column::{Column, ColumnKind, name_rank};
use super::survey::{Field, Survey};

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
    use super::*;
    use pipe_data::DataTable;

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

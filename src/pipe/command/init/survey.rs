//! All columns of the data, what could be trained on them, and which of them feeds what.

use pipe_spec::pipeline::{Arch, Task};
use pipe_spec::text::count;

use super::column::{Column, Kind};
use super::names;
use super::roles::Choice;
use super::table::{DataTable, Layout};
use crate::report::{Table, bounded, grouped};

/// A role and the column that feeds it.
pub type Field = (String, String);

/// The first of the usual names of a label leave no doubt, even beside a question and an answer.
const SURE_LABELS: usize = 3;
/// Characters of an example.
const EXAMPLE: usize = 40;

pub struct Survey {
    pub layout: Layout,
    pub columns: Vec<Column>,
    pub rows: u64,
    /// Whether `rows` is all of them.
    pub counted: bool,
}

impl Survey {
    pub fn of(table: &DataTable) -> Self {
        let column = |(place, name): (usize, &String)| Column::of(name, table.values(place), &table.folder);
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

    /// What could be trained; otherwise why that is open. `given` are the roles that somebody has named.
    pub fn guess(&self, given: &[Field]) -> Result<Arch, String> {
        let task = if given.is_empty() { self.task_of_columns()? } else { self.task_of_roles(given)? };
        self.fields(task, given).map(|_| Arch::first_for(task))
    }

    fn task_of_roles(&self, given: &[Field]) -> Result<Task, String> {
        let has = |role: &str| given.iter().any(|(name, _)| name == role);
        let needs = |task: Task| self.fields(task, given).is_ok();
        Ok(match () {
            () if has("source") || has("target") || has("messages") => Task::Seq2Seq,
            () if has("image") => Task::Contrastive,
            () if has("time") => Task::TimeSeries,
            () if has("text_pair") || (has("text") && has("label")) || needs(Task::Classification) => {
                Task::Classification
            }
            () if has("label") && !has("text") => Task::TimeSeries,
            () if has("text") && !has("label") => Task::Language,
            () => return Err(format!("no model takes {}", shown(given))),
        })
    }

    fn task_of_columns(&self) -> Result<Task, String> {
        let columns = |kind: Kind| self.of_kind(kind).len();
        let texts = columns(Kind::Text);
        let is_text = |column: &Column| column.kind == Kind::Text;
        let is_pair = self.best("source", is_text).is_some() && self.best("target", is_text).is_some();
        let label = self.best("label", Column::can_be_label).and_then(|column| names::rank("label", &column.name));
        match () {
            () if self.layout == Layout::Documents => Ok(Task::Language),
            () if columns(Kind::Messages) > 0 => Ok(Task::Seq2Seq),
            () if columns(Kind::Picture) > 0 => Ok(Task::Contrastive),
            () if texts == 0 && self.layout == Layout::Table && columns(Kind::Label) + columns(Kind::Number) > 1 => {
                Ok(Task::TimeSeries)
            }
            () if self.column("source").is_some() && self.column("target").is_some() => Ok(Task::Seq2Seq),
            () if is_pair && label.is_none_or(|rank| rank >= SURE_LABELS) => Ok(Task::Seq2Seq),
            () if texts > 0 && label.is_some() => Ok(Task::Classification),
            () if texts > 0 && columns(Kind::Label) > 0 => Ok(Task::Classification),
            () if texts == 2 => Ok(Task::Seq2Seq),
            () if texts == 1 && columns(Kind::Number) == 0 => Ok(Task::Language),
            () if texts == 1 => {
                Err("there is a text, and numbers whose names do not say which is to be predicted".to_owned())
            }
            () if texts > 2 => {
                Err(format!("there are {texts} columns with text, and their names do not say what they are for"))
            }
            () => Err("there is neither text nor numbers with a label".to_owned()),
        }
    }

    /// Which column feeds what in a task; otherwise what is missing for it, or what is not clear.
    pub fn fields(&self, task: Task, given: &[Field]) -> Result<Vec<Field>, String> {
        for (role, name) in given {
            if !task.roles().contains(&role.as_str()) {
                return Err(format!(
                    "{:?} is no role of {}; its roles: {}",
                    role,
                    task.name(),
                    task.roles().join(", ")
                ));
            }
            if self.column(name).is_none() && !self.columns.is_empty() {
                return Err(format!("there is no column {name:?}"));
            }
        }
        let mut choice = Choice::new(self, given);
        choice.fill(task)?;
        Ok(choice.into_fields())
    }

    /// Columns that a time series reads as features.
    pub fn features(&self, fields: &[Field]) -> usize {
        self.columns.iter().filter(|column| !fields.iter().any(|(_, name)| *name == column.name)).count()
    }

    fn of_kind(&self, kind: Kind) -> Vec<&Column> {
        self.columns.iter().filter(|column| column.kind == kind).collect()
    }

    /// The column with the most usual name for a role.
    pub fn best(&self, role: &str, is: impl Fn(&Column) -> bool) -> Option<&Column> {
        let ranked = |column: &&Column| names::rank(role, &column.name).unwrap_or(usize::MAX);
        self.columns.iter().filter(|column| is(column)).min_by_key(ranked).filter(|column| ranked(column) < usize::MAX)
    }

    /// What was seen, for people.
    pub fn table(&self, width: usize) -> String {
        let mut table = Table::new(&["COLUMN", "LOOKS LIKE", "EXAMPLE"]);
        for column in &self.columns {
            let like = match column.kind {
                Kind::Label => format!("label, {}", count(column.distinct, "value")),
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
}

pub fn is_words(column: &Column) -> bool {
    matches!(column.kind, Kind::Text | Kind::Label)
}

fn shown(fields: &[Field]) -> String {
    fields.iter().map(|(role, name)| format!("{role}={name}")).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn survey(name: &str, text: &str) -> Survey {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        Survey::of(&DataTable::read(Path::new(&path)).unwrap())
    }

    /// `ARCH role=column ...`, or why not.
    fn guess(survey: &Survey, given: &[Field]) -> String {
        match survey.guess(given) {
            Ok(arch) => format!("{} {}", arch.name(), shown(&survey.fields(arch.task(), given).unwrap())),
            Err(why) => why,
        }
    }

    #[test]
    fn few_rows_are_guessed_by_name() {
        for (name, text, want) in [
            (
                "a.jsonl",
                r#"{"title": "x", "ingredients": "a", "directions": "b"}"#,
                "t5 source=ingredients, target=directions",
            ),
            ("a.jsonl", r#"{"question": "a", "answer": "b"}"#, "t5 source=question, target=answer"),
            ("a.jsonl", r#"{"text": "a", "label": 1}"#, "bert text=text, label=label"),
            (
                "a.jsonl",
                r#"{"premise": "a", "hypothesis": "b", "label": 1}"#,
                "bert text=premise, text_pair=hypothesis, label=label",
            ),
            ("a.jsonl", r#"{"file": "a.png", "caption": "b"}"#, "clip image=file, text=caption"),
            ("a.csv", "time,open,close,label\n1,2.5,3,up\n2,3,4,down\n", "hybrid-cnn-lstm label=label, time=time"),
            ("a.csv", "review,sentiment\n\"good, or so\",1\n", "bert text=review, label=sentiment"),
            ("a.txt", "Once upon a time", "mu-sota "),
            ("a.jsonl", r#"{"text": "a"}"#, "mu-sota text=text"),
            ("a.jsonl", r#"{"zeta": "a", "b": 1, "alpha": "c"}"#, "t5 source=zeta, target=alpha"),
            ("a.jsonl", r#"{"a": 1}"#, "there is neither text nor numbers with a label"),
            ("a.jsonl", "no json", "there is neither text nor numbers with a label"),
        ] {
            assert_eq!(guess(&survey(name, text), &[]), want, "{text}");
        }
    }

    /// Thirty rows, of the cells that `row` gives.
    fn rows(head: &str, row: impl Fn(usize) -> String) -> Survey {
        let lines: Vec<String> = (0..30).map(row).collect();
        survey("a.csv", &format!("{head}\n{}\n", lines.join("\n")))
    }

    #[test]
    fn values_are_guessed_whatever_their_names() {
        let (kind, told) = (["x", "y"], |row: usize| format!("a tale of {row} cities and a river"));
        for (found, want) in [
            (
                rows("nr,notiz,art", |row| format!("{row},{},{}", told(row), kind[row % 2])),
                "bert text=notiz, label=art",
            ),
            (
                rows("eins,zwei,art", |row| format!("{},{},{}", told(row), told(row + 7), kind[row % 2])),
                "bert text=eins, text_pair=zwei, label=art",
            ),
            (rows("eins,zwei", |row| format!("{},{}", told(row), told(row + 7))), "t5 source=eins, target=zwei"),
            (
                rows("lang,notiz,label", |row| format!("{},{},{}", kind[row % 2], told(row), row % 3)),
                "bert text=notiz, label=label",
            ),
            (rows("notiz,rating", |row| format!("{},{}.{row}", told(row), row % 5)), "bert text=notiz, label=rating"),
            (
                rows("wann,a,b,zustand", |row| {
                    format!("2025-01-01 10:{row:02},{row}.5,{},{}", row * row, kind[row % 2])
                }),
                "hybrid-cnn-lstm label=zustand, time=wann",
            ),
            (
                rows("nr,a,zustand", |row| format!("{row},{}.5,{}", row * row, kind[row % 2])),
                "hybrid-cnn-lstm label=zustand, time=nr",
            ),
            (
                rows("notiz,laenge", |row| format!("{},{}.{row}", told(row), row % 5)),
                "there is a text, and numbers whose names do not say which is to be predicted",
            ),
            (
                rows("notiz,art,farbe", |row| format!("{},{},{}", told(row), kind[row % 2], kind[row / 15])),
                "several columns could be the label: art, farbe",
            ),
            (
                rows("name,klasse,personen,art", |row| {
                    format!("{},{},{},{}", told(row), row % 2, row % 3, kind[row % 2])
                }),
                "several columns could be the label: klasse, personen, art",
            ),
            (
                rows("notiz;price", |row| format!("{};{row},5", told(row))),
                "the numbers in \"price\" have a decimal comma; write 3.5 and not 3,5",
            ),
            (
                rows("notiz,personen,art", |row| format!("{},{},{}", told(row), row % 3, kind[row % 2])),
                "bert text=notiz, label=art",
            ),
            (
                rows("a,b,c", |row| format!("{},{},{}", told(row), told(row + 3), told(row + 9))),
                "there are 3 columns with text, and their names do not say what they are for",
            ),
            (
                rows("wann,a,zustand", |row| format!("{}.01.2025,{row}.5,{}", row % 28 + 1, kind[row % 2])),
                "the times in \"wann\" fall; sort the rows, and write dates as 2025-11-27",
            ),
        ] {
            assert_eq!(guess(&found, &[]), want);
        }
    }

    #[test]
    fn roles_that_are_given_decide() {
        let told = |row: usize| format!("a tale of {row} cities and a river");
        let survey = rows("a,b,c,d", |row| format!("{},{},{},{}.5", told(row), told(row + 3), row % 2, row * row));
        let given = |fields: &[(&str, &str)]| -> Vec<Field> {
            fields.iter().map(|(role, name)| ((*role).to_owned(), (*name).to_owned())).collect()
        };
        for (fields, want) in [
            (given(&[("source", "b"), ("target", "a")]), "t5 source=b, target=a"),
            (given(&[("text", "b"), ("label", "d")]), "bert text=b, label=d"),
            (given(&[("text", "b"), ("label", "z")]), "there is no column \"z\""),
            (given(&[("text", "b")]), "bert text=b, label=c"),
            (given(&[("image", "b")]), "clip image=b, text=a"),
        ] {
            let found = guess(&survey, &fields);
            assert_eq!(found, want, "{fields:?}");
        }
    }
}

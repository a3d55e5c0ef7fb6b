//! Which column feeds which role of a task.

use pipe_spec::pipeline::Task;

use super::column::{Column, Kind};
use super::names;
use super::survey::{Field, Survey, is_words};
use pipe_data::Layout;

/// Roles that are filled one after the other.
pub struct Choice<'a> {
    survey: &'a Survey,
    fields: Vec<Field>,
}

impl<'a> Choice<'a> {
    /// With the roles that somebody has named.
    pub fn new(survey: &'a Survey, given: &[Field]) -> Self {
        Self { survey, fields: given.to_vec() }
    }

    /// Finds a column for every role that a task needs; otherwise says what is missing or not clear.
    pub fn fill(&mut self, task: Task) -> Result<(), String> {
        match task {
            Task::Seq2Seq => self.texts_to_texts(),
            Task::Classification => self.classes(),
            Task::Contrastive => self.pictures(),
            Task::TimeSeries => self.series(),
            Task::Language => self.language(),
        }
    }

    pub fn into_fields(self) -> Vec<Field> {
        self.fields
    }

    fn has(&self, role: &str) -> bool {
        self.fields.iter().any(|(fed, _)| fed == role)
    }

    fn feed(&mut self, role: &str, column: &Column) {
        self.fields.push((role.to_owned(), column.name.clone()));
    }

    /// Columns that feed nothing yet.
    fn free(&self, is: impl Fn(&Column) -> bool) -> Vec<&'a Column> {
        let is_used = |column: &Column| self.fields.iter().any(|(_, name)| *name == column.name);
        self.survey.columns.iter().filter(|column| is(column) && !is_used(column)).collect()
    }

    /// The one with the most usual name, or the only one.
    fn pick(&self, role: &str, is: impl Fn(&Column) -> bool) -> Option<&'a Column> {
        let free = self.free(is);
        let rank = |column: &&Column| names::rank(role, &column.name).unwrap_or(usize::MAX);
        let named = free.iter().copied().min_by_key(rank).filter(|column| rank(column) < usize::MAX);
        named.or(if let [only] = free[..] { Some(only) } else { None })
    }

    fn need(&mut self, role: &str, is: impl Fn(&Column) -> bool + Copy) -> Result<(), String> {
        if self.has(role) {
            return Ok(());
        }
        if let Some(column) = self.pick(role, is) {
            self.feed(role, column);
            return Ok(());
        }
        Err(match self.free(is).as_slice() {
            [] => format!("no column looks like {}", article(role)),
            many => {
                let names: Vec<&str> = many.iter().map(|column| column.name.as_str()).collect();
                format!("several columns could be the {role}: {}", names.join(", "))
            }
        })
    }

    fn texts_to_texts(&mut self) -> Result<(), String> {
        let is_talk = |column: &Column| column.kind == Kind::Messages;
        if self.fields.is_empty()
            && let Some(column) = self.pick("messages", is_talk)
        {
            self.feed("messages", column);
            return Ok(());
        }
        if self.has("messages") {
            return Ok(());
        }
        let named = |role: &str| self.survey.best(role, is_words).map(|column| column.name.clone());
        let (source, target) = (named("source"), named("target"));
        for (role, name) in [("source", &source), ("target", &target)] {
            let is_free = |name: &&String| !self.fields.iter().any(|(_, used)| used == *name);
            if let (false, Some(name)) = (self.has(role), name.as_ref().filter(is_free)) {
                self.fields.push((role.to_owned(), name.clone()));
            }
        }
        let texts = self.free(|column| column.kind == Kind::Text);
        match (self.has("source"), self.has("target"), texts.as_slice()) {
            (true, true, _) => {}
            (false, false, [first, last]) => {
                self.feed("source", first);
                self.feed("target", last);
            }
            _ => {
                self.need("source", is_words)?;
                self.need("target", is_words)?;
            }
        }
        // In the order in which people read them.
        self.fields.sort_by_key(|(role, _)| role != "source");
        Ok(())
    }

    fn classes(&mut self) -> Result<(), String> {
        let is_label = |column: &Column| column.kind == Kind::Label;
        let is_word = |column: &Column| column.kind == Kind::Label && column.range.is_none();
        if !self.has("label") {
            let named = self.survey.best("label", Column::can_be_label).map(|column| column.name.clone());
            let (labels, words) = (self.free(is_label).len(), self.free(is_word).len());
            match named.filter(|name| !self.fields.iter().any(|(_, used)| used == name)) {
                Some(name) => self.fields.push(("label".to_owned(), name)),
                // Of a word and a number that are repeated, the word is more often the label.
                None if (labels, words) == (2, 1) => self.need("label", is_word)?,
                None if labels > 0 => self.need("label", is_label)?,
                None => self.need("label", Column::can_be_label)?,
            }
        }
        if let Some(label) = self.survey.fed(&self.fields, "label").filter(|label| label.comma) {
            return Err(format!("the numbers in {:?} have a decimal comma; write 3.5 and not 3,5", label.name));
        }
        let is_text = |column: &Column| column.kind == Kind::Text;
        if !self.has("text_pair")
            && let Some(pair) =
                self.free(is_text).into_iter().find(|column| names::rank("text_pair", &column.name).is_some())
        {
            self.feed("text_pair", pair);
        }
        if !self.has("text") {
            match (self.has("text_pair"), self.free(is_text).as_slice()) {
                (false, [first, second]) => {
                    self.feed("text", first);
                    self.feed("text_pair", second);
                }
                _ => self.need("text", is_text)?,
            }
        }
        let order = ["text", "text_pair", "label"];
        self.fields.sort_by_key(|(role, _)| order.iter().position(|known| known == role));
        Ok(())
    }

    fn pictures(&mut self) -> Result<(), String> {
        self.need("image", |column| column.kind == Kind::Picture)?;
        match self.pick("text", |column| column.kind == Kind::Text) {
            Some(column) if !self.has("text") => self.feed("text", column),
            _ => self.need("text", is_words)?,
        }
        Ok(())
    }

    fn language(&mut self) -> Result<(), String> {
        match self.survey.layout {
            Layout::Documents => Ok(()),
            _ => self.need("text", |column| column.kind == Kind::Text),
        }
    }

    fn series(&mut self) -> Result<(), String> {
        self.need("label", |column| column.kind == Kind::Label)?;
        if !self.has("time") {
            let in_order = |kind: Kind| self.free(move |column| column.kind == kind && column.rises);
            // What numbers the rows says their order, as a time does.
            if let Some(column) = in_order(Kind::Time).first().or(in_order(Kind::Id).first()) {
                self.feed("time", column);
            }
        }
        let features = self.free(|_| true);
        if features.is_empty() {
            return Err("no column is left for the features".to_owned());
        }
        match features.iter().find(|column| column.range.is_none() || column.kind == Kind::Id || column.empty > 0) {
            None => Ok(()),
            Some(column) if column.kind == Kind::Time => {
                Err(format!("the times in {:?} fall; sort the rows, and write dates as 2025-11-27", column.name))
            }
            Some(column) if column.range.is_some() && column.empty > 0 => Err(format!(
                "{} is empty in {} rows; every feature needs a number in every row",
                column.name, column.empty
            )),
            Some(column) => Err(format!(
                "every column beside label and time is a feature, and {:?} ({}) cannot be one; leave it out of the file",
                column.name,
                column.kind.name()
            )),
        }
    }
}

fn article(role: &str) -> String {
    match role {
        "image" => "a path of a picture".to_owned(),
        "text" | "source" | "target" => format!("the {role}, a text"),
        _ => format!("a {role}"),
    }
}

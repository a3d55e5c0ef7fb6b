//! The task that the columns of the data are good for, and which column feeds which role of it.

use pipe_data::Layout;
use pipe_spec::pipeline::{Arch, CHOSEN, COMPLETION, CONTEXT, CONVERSATION, IGNORED_COLUMNS, PROMPT, REJECTED, Task};

use super::column::{Column, ColumnKind, name_rank};
use super::survey::{self, Field, Survey};

/// The first of the usual names of a label leave no doubt, even beside a question and an answer.
const SURE_LABELS: usize = 3;

/// The architecture for these columns, or why it is open. `given` are the roles that somebody has named.
pub fn guess(survey: &Survey, given: &[Field]) -> Result<Arch, String> {
    let task = if given.is_empty() { task_of_columns(survey)? } else { task_of_roles(survey, given)? };
    fields(survey, task, given).map(|_| Arch::first_for(task))
}

/// The architecture to begin with where the columns leave it open: by their kinds.
pub fn propose(survey: &Survey) -> Arch {
    let columns = |kind: ColumnKind| survey.of_kind(kind).len();
    let labels = survey.columns.iter().filter(|column| column.can_be_label()).count();
    let in_order = survey.columns.iter().any(|column| column.kind == ColumnKind::Time && column.rises);
    Arch::first_for(match task_of_columns(survey) {
        Ok(task) => task,
        Err(_) if columns(ColumnKind::Text) > 0 && labels > 0 => Task::Classification,
        Err(_) if columns(ColumnKind::Text) > 0 => Task::Seq2Seq,
        Err(_) if in_order => Task::TimeSeries,
        Err(_) => Task::Table,
    })
}

fn task_of_roles(survey: &Survey, given: &[Field]) -> Result<Task, String> {
    let has = |role: &str| given.iter().any(|(name, _)| name == role);
    let needs = |task: Task| fields(survey, task, given).is_ok();
    Ok(match () {
        () if has("tokens") || has("tags") => Task::TokenLabels,
        () if has(CHOSEN) || has(REJECTED) => Task::Preference,
        () if has("source") || has("target") || has("messages") => Task::Seq2Seq,
        () if has("image") && has("label") => Task::PictureClasses,
        () if has("image") && !has("text") => task_of_pictures(survey),
        () if has("image") => Task::Contrastive,
        () if has("time") => Task::TimeSeries,
        () if has(IGNORED_COLUMNS) || (has("label") && !has("text") && survey::is_table(survey)) => Task::Table,
        () if has("text_pair") || (has("text") && has("label")) || needs(Task::Classification) => Task::Classification,
        () if has("label") && !has("text") => Task::TimeSeries,
        () if has("text") && !has("label") => Task::Language,
        () => return Err(format!("no model takes {}", shown(given))),
    })
}

fn task_of_columns(survey: &Survey) -> Result<Task, String> {
    let columns = |kind: ColumnKind| survey.of_kind(kind).len();
    let texts = columns(ColumnKind::Text);
    let is_text = |column: &Column| column.kind == ColumnKind::Text;
    let is_pair = survey.best("source", is_text).is_some() && survey.best("target", is_text).is_some();
    let label = survey.best("label", Column::can_be_label).and_then(|column| name_rank("label", &column.name));
    let numbers = columns(ColumnKind::Label) + columns(ColumnKind::Number);
    let are_numbers = texts == 0 && survey.layout == Layout::Table && numbers > 1;
    let several = survey.columns.iter().filter(|column| is_several(column)).count();
    match () {
        () if survey.layout == Layout::Documents => Ok(Task::Language),
        () if survey.token_columns().is_some() => Ok(Task::TokenLabels),
        () if pair_of_answers(survey).is_some() => Ok(Task::Preference),
        () if columns(ColumnKind::Messages) > 0 => Ok(Task::Seq2Seq),
        () if columns(ColumnKind::Picture) > 0 => Ok(task_of_pictures(survey)),
        () if named_pair(survey).is_some() => Ok(Task::Seq2Seq),
        () if survey::is_table(survey) => Ok(Task::Table),
        () if are_numbers => Ok(Task::TimeSeries),
        () if is_pair && label.is_none_or(|rank| rank >= SURE_LABELS) => Ok(Task::Seq2Seq),
        () if texts > 0 && label.is_some() => Ok(Task::Classification),
        () if texts > 0 && columns(ColumnKind::Label) + several > 0 => Ok(Task::Classification),
        () if texts == 2 => Ok(Task::Seq2Seq),
        () if texts == 1 && columns(ColumnKind::Number) == 0 => Ok(Task::Language),
        () if texts == 1 => {
            Err("there is a text, and numbers whose names do not say which is to be predicted".to_owned())
        }
        () if texts > 2 => {
            Err(format!("there are {texts} columns with text, and their names do not say what they are for"))
        }
        () => Err("there is neither text nor numbers with a label".to_owned()),
    }
}

/// Names of a text to read and one to write, whatever the texts look like. The second pair is Alpaca's, the third Dolly's, the last
/// TRL's.
const PAIRS: [(&str, &str); 4] =
    [("source", "target"), ("instruction", "output"), ("instruction", "response"), ("prompt", "completion")];

/// The columns with the better and the worse answer, which are called so in all published data.
pub fn pair_of_answers(survey: &Survey) -> Option<[&Column; 2]> {
    let is_answer = |column: &&Column| matches!(column.kind, ColumnKind::Messages) || is_words(column);
    let find = |name: &str| survey.column(name).filter(is_answer);
    Some([find(CHOSEN)?, find(REJECTED)?])
}

/// The same where there is no label: beside one, a question and an answer are both read.
const QUESTION: (&str, &str) = ("question", "answer");

/// Names of what some rows have beside an instruction or a question: a text that it is about.
const CONTEXTS: [&str; 2] = ["input", "context"];

/// The columns of such a pair, or of texts with the times that they say.
fn named_pair(survey: &Survey) -> Option<(&Column, &Column)> {
    let find = |name: &str| survey.column(name).filter(|column| column.range.is_none());
    let pair = |(source, target): &(&str, &str)| Some((find(source)?, find(target)?));
    let has_label = survey.best("label", Column::can_be_label).is_some();
    PAIRS.iter().find_map(pair).or_else(|| pair(&QUESTION).filter(|_| !has_label)).or_else(|| written_times(survey))
}

/// A text and behind it a time, in no order and with nothing else: the time is what the text becomes.
fn written_times(survey: &Survey) -> Option<(&Column, &Column)> {
    match &survey.columns[..] {
        [text, time] if text.kind == ColumnKind::Text && time.kind == ColumnKind::Time && !time.rises => {
            Some((text, time))
        }
        _ => None,
    }
}

/// Pictures have captions, or a label where no column looks like a caption.
fn task_of_pictures(survey: &Survey) -> Task {
    let is = |kind: ColumnKind| move |column: &Column| column.kind == kind;
    let has_caption = match survey.best("label", is(ColumnKind::Label)) {
        Some(_) => survey.best("text", is(ColumnKind::Text)).is_some(),
        None => {
            let has_text = !survey.of_kind(ColumnKind::Text).is_empty();
            let has_label = !survey.of_kind(ColumnKind::Label).is_empty();
            has_text || !has_label || survey.best("text", is(ColumnKind::Label)).is_some()
        }
    };
    if has_caption { Task::Contrastive } else { Task::PictureClasses }
}

/// The column for each role of a task, or the role that has none or several.
pub fn fields(survey: &Survey, task: Task, given: &[Field]) -> Result<Vec<Field>, String> {
    for (role, name) in given {
        if !task.roles().contains(&role.as_str()) {
            return Err(format!("{:?} is no role of {}; its roles: {}", role, task.name(), task.roles().join(", ")));
        }
        if survey.column(name).is_none() && !survey.columns.is_empty() && role != IGNORED_COLUMNS {
            return Err(format!("there is no column {name:?}"));
        }
    }
    let mut choice = Choice::new(survey, given);
    choice.fill(task)?;
    Ok(choice.fields)
}

/// Roles that are filled one after the other.
struct Choice<'a> {
    survey: &'a Survey,
    fields: Vec<Field>,
}

impl<'a> Choice<'a> {
    /// Begins with the roles that somebody has named.
    fn new(survey: &'a Survey, given: &[Field]) -> Self {
        Self { survey, fields: given.to_vec() }
    }

    /// Finds a column for every role that a task needs, or fails with the role that has none or several.
    fn fill(&mut self, task: Task) -> Result<(), String> {
        match task {
            Task::Seq2Seq => self.texts_to_texts(),
            Task::Classification => self.classes(),
            Task::Contrastive => self.pictures(),
            Task::TimeSeries => self.series(),
            Task::Language => self.language(),
            Task::TokenLabels => self.token_labels(),
            Task::Table => {
                self.fields = survey::fields(self.survey, &self.fields)?;
                Ok(())
            }
            Task::PictureClasses => self.picture_classes(),
            Task::Preference => self.pairs(),
        }
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
        let rank = |column: &&Column| name_rank(role, &column.name).unwrap_or(usize::MAX);
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

    /// A prompt is needed where the answers are texts.
    fn pairs(&mut self) -> Result<(), String> {
        let found = pair_of_answers(self.survey);
        for (role, at) in [(CHOSEN, 0), (REJECTED, 1)] {
            match found {
                _ if self.has(role) => {}
                Some(columns) => self.feed(role, columns[at]),
                None => return Err(format!("no column looks like the {role} answer")),
            }
        }
        let is_talk = found.is_some_and(|columns| columns[0].kind == ColumnKind::Messages);
        if let Some(column) = self.survey.column(PROMPT).filter(|_| !is_talk && !self.has(PROMPT)) {
            self.feed(PROMPT, column);
        }
        Ok(())
    }

    fn texts_to_texts(&mut self) -> Result<(), String> {
        let is_talk = |column: &Column| column.kind == ColumnKind::Messages;
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
        let (source, target) = match named_pair(self.survey) {
            Some((source, target)) => (Some(source.name.clone()), Some(target.name.clone())),
            None => (named("source"), named("target")),
        };
        for (role, name) in [("source", &source), ("target", &target)] {
            let is_free = |name: &&String| !self.fields.iter().any(|(_, used)| used == *name);
            if let (false, Some(name)) = (self.has(role), name.as_ref().filter(is_free)) {
                self.fields.push((role.to_owned(), name.clone()));
            }
        }
        let texts = self.free(|column| column.kind == ColumnKind::Text);
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
        if !self.has(CONTEXT)
            && let Some(column) = self.context("source")
        {
            self.feed(CONTEXT, column);
        }
        // In the order in which people read them.
        self.fields.sort_by_key(|(role, _)| role != "source");
        Ok(())
    }

    /// The column that an instruction or a question is about, where some row has something in it.
    fn context(&self, asked: &str) -> Option<&'a Column> {
        let is_about = |source: &&Column| ["instruction", QUESTION.0].contains(&source.name.as_str());
        self.survey.fed(&self.fields, asked).filter(is_about)?;
        let is_filled = |column: &Column| column.range.is_none() && column.empty < self.survey.looked_at;
        let free = self.free(is_filled);
        CONTEXTS.iter().find_map(|name| free.iter().copied().find(|column| column.name == *name))
    }

    fn classes(&mut self) -> Result<(), String> {
        let is_label = |column: &Column| column.kind == ColumnKind::Label;
        let is_word = |column: &Column| column.kind == ColumnKind::Label && column.range.is_none();
        if !self.has("label") {
            let named = self.survey.best("label", Column::can_be_label).map(|column| column.name.clone());
            let (labels, words) = (self.free(is_label).len(), self.free(is_word).len());
            match named.filter(|name| !self.fields.iter().any(|(_, used)| used == name)) {
                Some(name) => self.fields.push(("label".to_owned(), name)),
                None if self.free(is_several).len() == 1 => self.need("label", is_several)?,
                // Where a word and a number are repeated, the word is more often the label.
                None if (labels, words) == (2, 1) => self.need("label", is_word)?,
                None if labels > 0 => self.need("label", is_label)?,
                None => self.need("label", Column::can_be_label)?,
            }
        }
        if let Some(label) = self.survey.fed(&self.fields, "label").filter(|label| label.comma) {
            return Err(format!("the numbers in {:?} have a decimal comma; write 3.5 and not 3,5", label.name));
        }
        let is_text = |column: &Column| column.kind == ColumnKind::Text;
        if !self.has("text_pair")
            && let Some(pair) =
                self.free(is_text).into_iter().find(|column| name_rank("text_pair", &column.name).is_some())
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

    fn token_labels(&mut self) -> Result<(), String> {
        let found = self.survey.token_columns();
        for (number, role) in ["tokens", "tags"].into_iter().enumerate() {
            match found {
                _ if self.has(role) => {}
                Some(columns) => self.feed(role, columns[number]),
                None => return Err(format!("no column looks like the {role}, a list of texts or numbers")),
            }
        }
        Ok(())
    }

    fn pictures(&mut self) -> Result<(), String> {
        self.need("image", |column| column.kind == ColumnKind::Picture)?;
        match self.pick("text", |column| column.kind == ColumnKind::Text) {
            Some(column) if !self.has("text") => self.feed("text", column),
            _ => self.need("text", is_words)?,
        }
        Ok(())
    }

    fn picture_classes(&mut self) -> Result<(), String> {
        self.need("image", |column| column.kind == ColumnKind::Picture)?;
        match self.pick("label", |column| column.kind == ColumnKind::Label) {
            Some(column) if !self.has("label") => self.feed("label", column),
            _ => self.need("label", is_words)?,
        }
        Ok(())
    }

    /// Conversations, questions with their answers, or texts.
    fn language(&mut self) -> Result<(), String> {
        if self.survey.layout == Layout::Documents || [CONVERSATION, COMPLETION].iter().any(|role| self.has(role)) {
            return Ok(());
        }
        let is_open = self.fields.is_empty();
        if is_open && let Some(column) = self.pick(CONVERSATION, |column| column.kind == ColumnKind::Messages) {
            self.feed(CONVERSATION, column);
            return Ok(());
        }
        if is_open && let Some((asked, answer)) = named_pair(self.survey) {
            self.feed(PROMPT, asked);
            self.feed(COMPLETION, answer);
            if let Some(column) = self.context(PROMPT) {
                self.feed(CONTEXT, column);
            }
            return Ok(());
        }
        self.need("text", |column| column.kind == ColumnKind::Text)
    }

    fn series(&mut self) -> Result<(), String> {
        self.need("label", |column| column.kind == ColumnKind::Label)?;
        if !self.has("time") {
            let in_order = |kind: ColumnKind| self.free(move |column| column.kind == kind && column.rises);
            // A number of the row gives the order, as a time does.
            if let Some(column) = in_order(ColumnKind::Time).first().or(in_order(ColumnKind::Id).first()) {
                self.feed("time", column);
            }
        }
        let features = self.free(|_| true);
        if features.is_empty() {
            return Err("no column is left for the features".to_owned());
        }
        match features.iter().find(|column| column.range.is_none() || column.kind == ColumnKind::Id) {
            None => Ok(()),
            Some(column) if column.kind == ColumnKind::Time => {
                Err(format!("the times in {:?} fall; sort the rows, and write dates as 2025-11-27", column.name))
            }
            Some(column) => Err(format!(
                "every column beside label and time is a feature, and {:?} ({}) cannot be one; leave it out of the file",
                column.name,
                column.kind.name()
            )),
        }
    }
}

/// A task in a few words, for the list of choices.
pub fn describe(task: Task) -> &'static str {
    match task {
        Task::Seq2Seq => "a text from a text",
        Task::Classification => "classify or score one or two texts",
        Task::Contrastive => "which picture belongs to which text",
        Task::TimeSeries => "a class for a window of a time series",
        Task::Language => "the next token of a text",
        Task::TokenLabels => "a label for each token of a text",
        Task::Table => "a class or a number for a row of a table",
        Task::PictureClasses => "a class for a picture",
        Task::Preference => "the better of two answers to a prompt",
    }
}

/// The columns that the data of a task needs.
pub fn wants(task: Task) -> &'static str {
    match task {
        Task::Seq2Seq => "two texts (source, target) or conversations (messages)",
        Task::Classification => "a text or two (text, text_pair) and a label",
        Task::Contrastive => "paths of pictures (image) and a text",
        Task::TimeSeries => "numbers, a label and perhaps a time, in a table",
        Task::Language => "a text",
        Task::TokenLabels => "lists of words (tokens) and of labels (tags), or a CoNLL file",
        Task::Table => "numbers or categories, and a label",
        Task::PictureClasses => "paths of pictures (image) and a label, or a folder of pictures for each class",
        Task::Preference => "two answers (chosen, rejected), and the prompt where they are texts",
    }
}

fn article(role: &str) -> String {
    match role {
        "image" => "a path of a picture".to_owned(),
        "text" | "source" | "target" => format!("the {role}, a text"),
        _ => format!("a {role}"),
    }
}

fn is_several(column: &Column) -> bool {
    matches!(column.kind, ColumnKind::Several(_))
}

fn is_words(column: &Column) -> bool {
    matches!(column.kind, ColumnKind::Text | ColumnKind::Label)
}

/// As `--fields` takes them.
pub fn shown(fields: &[Field]) -> String {
    fields.iter().map(|(role, name)| format!("{role}={name}")).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use pipe_data::DataTable;

    fn survey(name: &str, text: &str) -> Survey {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        Survey::of(&DataTable::read(Path::new(&path)).unwrap())
    }

    /// `ARCH role=column ...`, or why not.
    fn guess(survey: &Survey, given: &[Field]) -> String {
        match super::guess(survey, given) {
            Ok(arch) => format!("{} {}", arch.name(), shown(&fields(survey, arch.task(), given).unwrap())),
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
            ("a.jsonl", r#"{"source": "a", "target": "2025-11-27"}"#, "t5 source=source, target=target"),
            (
                "a.jsonl",
                r#"{"instruction": "a", "input": "", "output": "2025-11-27"}"#,
                "t5 source=instruction, target=output",
            ),
            (
                "a.jsonl",
                r#"{"instruction": "a", "input": "b", "output": "c"}"#,
                "t5 source=instruction, target=output, context=input",
            ),
            (
                "a.jsonl",
                r#"{"instruction": "a", "context": "b", "response": "c", "category": "d"}"#,
                "t5 source=instruction, target=response, context=context",
            ),
            (
                "a.csv",
                "context,question,answer\nThe sea is blue.,Which colour?,blue\n",
                "t5 source=question, target=answer, context=context",
            ),
            (
                "a.jsonl",
                r#"{"question": "a", "answer": "b", "label": 1}"#,
                "bert text=question, text_pair=answer, label=label",
            ),
            ("a.jsonl", r#"{"text": "a", "label": 1}"#, "bert text=text, label=label"),
            (
                "a.jsonl",
                r#"{"premise": "a", "hypothesis": "b", "label": 1}"#,
                "bert text=premise, text_pair=hypothesis, label=label",
            ),
            ("a.jsonl", r#"{"file": "a.png", "caption": "b"}"#, "clip image=file, text=caption"),
            ("a.csv", "file,label\na.png,fox\nb.png,bear\n", "resnet image=file, label=label"),
            ("a.csv", "img,class,note\na.png,3,x y z\nb.png,1,u v w\n", "resnet image=img, label=class"),
            ("a.csv", "img,class,caption\na.png,3,x y z\nb.png,1,u v w\n", "clip image=img, text=caption"),
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
            (
                rows("written;iso", |row| {
                    format!("on day {} of May;2025-05-{:02}", row * 7 % 28 + 1, row * 7 % 28 + 1)
                }),
                "t5 source=written, target=iso",
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
                "tabular label=zustand, ignore=nr",
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
    fn what_is_open_is_proposed_by_the_kinds_of_the_columns() {
        let told = |row: usize| format!("a tale of {row} cities and a river");
        for (found, want) in [
            (rows("notiz,laenge", |row| format!("{},{}.{row}", told(row), row % 5)), "bert"),
            (rows("a,b,c", |row| format!("{},{},{}", told(row), told(row + 3), told(row + 9))), "t5"),
            (
                rows("wann,a,zustand", |row| format!("2025-01-{:02},{row}.5,{}", row % 28 + 1, row % 2)),
                "hybrid-cnn-lstm",
            ),
            (survey("a.jsonl", r#"{"a": 1}"#), "tabular"),
        ] {
            assert_eq!(propose(&found).name(), want);
        }
    }

    #[test]
    fn labels_of_tokens_may_be_numbers() {
        let written = |tags: fn(usize) -> String| {
            let row =
                |row: usize| format!("{{\"tokens\": [\"Ulm\", \"is\", \"w{row}\"], \"ner_tags\": {}}}", tags(row));
            survey("a.jsonl", &(0..30).map(|number| row(number) + "\n").collect::<String>())
        };
        let found = written(|row| format!("[5, 0, {}]", row % 9));
        assert_eq!(task_of_columns(&found), Ok(Task::TokenLabels));
        assert_eq!(shown(&fields(&found, Task::TokenLabels, &[]).unwrap()), "tokens=tokens, tags=ner_tags");
        assert_eq!(found.fed(&[("tags".to_owned(), "ner_tags".to_owned())], "tags").unwrap().classes.len(), 9);
        // There is one for each token, or these are no tags.
        assert_eq!(written(|row| format!("[{}]", row % 9)).token_columns().map(|_| ()), None);
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

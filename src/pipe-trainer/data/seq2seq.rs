//! Pairs of texts: a source, and a target to be generated. Of a conversation the last turn is what the model is to write, the turns
//! before it are what it reads. And all texts of data files, for what learns from them before there is a tokenizer.

use std::cell::RefCell;
use std::sync::Arc;

use pipe_data::{Rows, kind};
use pipe_model::TaskData;
use pipe_spec::pipeline::{Paths, Task};
use serde_json::Value;

use super::rows::{Opener, during, no_text, open_documents, open_rows};
use super::source::Sources;
use super::{Column, IGNORED, Sample, Source};
use crate::error::TrainerError;
use crate::tokenizer::Tokens;

pub struct Seq2Seq {
    rows: Rows,
    /// Whether a row holds a conversation instead of two texts.
    is_conversation: bool,
    longest: Vec<usize>,
    source: Arc<Tokens>,
    target: Arc<Tokens>,
    /// Whether rows may have no target.
    predicts: bool,
}

const SOURCE: usize = 0;
const TARGET: usize = 1;
const CONTEXT: usize = 2;

impl Seq2Seq {
    fn open(
        paths: &Paths,
        opener: &Opener<'_>,
        source: Arc<Tokens>,
        target: Arc<Tokens>,
    ) -> Result<(Self, Vec<String>), TrainerError> {
        let data = &opener.spec.data;
        let columns: Vec<&str> = data.roles(Task::Seq2Seq).into_iter().map(|role| data.field(role)).collect();
        let is_conversation = columns.len() == 1;
        let rows = opener.rows(paths, &columns)?;
        let mut opened = Self { longest: Vec::new(), rows, is_conversation, source, target, predicts: opener.predicts };
        // The target may be missing in rows to predict.
        let needed = if is_conversation || opener.predicts { 1 } else { 2 };
        let checked = opener.check_rows(&opened.rows, needed, ("a text", None), |index| {
            let (source, target) = opened.texts(index)?;
            Ok([source.len(), target.map_or(0, |target| target.len())])
        })?;
        let (longest, notices) = checked.leave_out(&mut opened.rows)?;
        Ok((Self { longest, ..opened }, notices))
    }

    /// The source and the target of a row.
    fn texts(&self, index: usize) -> Result<(String, Option<String>), TrainerError> {
        let mut values = self.rows.values(index)?;
        if self.is_conversation {
            return self.turns(index, values.pop().flatten());
        }
        let mut text = |column: usize| match values[column].take() {
            Some(Value::String(text)) => Ok(Some(text)),
            None | Some(Value::Null) if self.predicts && column == TARGET => Ok(None),
            other => Err(no_text(&self.rows, index, column, other.as_ref(), self.predicts)),
        };
        let (mut source, target) = (text(SOURCE)?.unwrap_or_default(), text(TARGET)?);
        match values.get(CONTEXT) {
            None | Some(None | Some(Value::Null)) => {}
            Some(Some(Value::String(context))) if context.trim().is_empty() => {}
            Some(Some(Value::String(context))) => {
                source.push('\n');
                source.push_str(context);
            }
            Some(other) => return Err(no_text(&self.rows, index, CONTEXT, other.as_ref(), self.predicts)),
        }
        Ok((source, target))
    }

    /// The same of a row that holds a conversation. To predict is to write the answer that is not there.
    fn turns(&self, index: usize, value: Option<Value>) -> Result<(String, Option<String>), TrainerError> {
        let Some(value) = value else { return Err(self.rows.problem(index, 0, None, "a conversation").into()) };
        let fail = |why| self.rows.fail(index, format!("field {:?} {why}", self.rows.columns()[0])).into();
        match question(&value).filter(|_| self.predicts) {
            Some(question) => Ok((question, None)),
            None => pair(&value).map(|(source, target)| (source, Some(target))).map_err(fail),
        }
    }
}

pub fn open(opener: &Opener<'_>, task_data: &TaskData) -> Result<Sources, TrainerError> {
    let TaskData::Seq2Seq { vocab_size, pad_token_id, eos_token_id } = *task_data else {
        panic!("not for pairs of texts: {task_data:?}")
    };
    let data = &opener.spec.data;
    let (max_source, max_target) = (data.max_source.get(), data.max_target.get());
    let tokens = |setting: &str, length: u32| -> Result<Arc<Tokens>, TrainerError> {
        let tokens = Tokens::open(opener.tokenizer()?, opener.arch(), setting, length)?;
        let tokens = tokens.check_vocabulary(vocab_size)?.check_padding(pad_token_id)?;
        tokens.check_end(Some(eos_token_id)).map(Arc::new)
    };
    let (source, target) = (tokens("max_source", max_source)?, tokens("max_target", max_target)?);
    let notices = RefCell::new(Vec::new());
    let open = |paths: &Paths| -> Result<Arc<dyn Source>, TrainerError> {
        let (opened, said) = Seq2Seq::open(paths, opener, Arc::clone(&source), Arc::clone(&target))?;
        notices.borrow_mut().extend(said);
        Ok(Arc::new(opened))
    };
    let (train, eval) =
        (opener.part(&data.train, &open)?, data.eval.as_ref().map(|paths| opener.part(paths, &open)).transpose()?);
    Ok(Sources {
        train,
        eval,
        paddings: vec![
            opener.padding("input_ids", pad_token_id, max_source),
            opener.padding("attention_mask", 0, max_source),
            opener.padding("labels", IGNORED, max_target),
        ],
        tokens: Some(target),
        labels: None,
        classes: None,
        notices: notices.take(),
    })
}

impl Source for Seq2Seq {
    fn len(&self) -> usize {
        self.rows.len()
    }

    fn rows(&self, index: usize) -> [usize; 2] {
        [self.rows.number(index); 2]
    }

    fn sample(&self, index: usize) -> Result<Option<Sample>, TrainerError> {
        let (source, target) = during(self.rows.place(index), || {
            let (source, target) = self.texts(index)?;
            let target = target.map_or(Ok(Vec::new()), |target| self.target.encode(&target))?;
            Ok((self.source.encode(&source)?, target))
        })?;
        Ok(Some(Sample {
            targets: target.len() as u64,
            columns: vec![
                ("attention_mask", Column::Tokens(vec![1; source.len()])),
                ("input_ids", Column::Tokens(source)),
                ("labels", Column::Tokens(target)),
            ],
        }))
    }

    fn longest(&self) -> Vec<usize> {
        self.longest.clone()
    }

    fn reference_texts(&self, index: usize) -> Result<(String, String), TrainerError> {
        self.texts(index).map(|(source, target)| (source, target.unwrap_or_default()))
    }
}

/// Bytes of text that are read at most, from the beginning of the data: more changes no tokenizer noticeably.
const MOST_BYTES: usize = 256 << 20;

#[derive(Default)]
struct Texts {
    texts: Vec<String>,
    bytes: usize,
}

/// The texts in these columns of rows, or the documents of a plain text. A row may lack a column, but not every row of a file.
pub fn texts(paths: &[String], columns: &[&str]) -> Result<Vec<String>, TrainerError> {
    let mut all = Texts::default();
    for path in paths {
        // A plain text has no columns; one with a tag for each token has.
        match path.ends_with(".txt") && !columns.contains(&"tokens") {
            true => all.read_documents(path)?,
            false => all.read_rows(path, columns)?,
        }
    }
    Ok(all.texts)
}

impl Texts {
    fn is_full(&self) -> bool {
        self.bytes >= MOST_BYTES
    }

    fn push(&mut self, text: String) {
        self.bytes += text.len();
        self.texts.push(text);
    }

    fn read_documents(&mut self, path: &str) -> Result<(), TrainerError> {
        let documents = open_documents(path, "")?;
        for index in 0..documents.len() {
            if self.is_full() {
                break;
            }
            self.push(documents.text(index)?.into_owned());
        }
        Ok(())
    }

    fn read_rows(&mut self, path: &str, columns: &[&str]) -> Result<(), TrainerError> {
        let rows = open_rows(&Paths(vec![path.to_owned()]), columns)?;
        let before = self.texts.len();
        let mut wrong = None;
        for index in 0..rows.len() {
            if self.is_full() {
                return Ok(());
            }
            for value in rows.values(index)?.into_iter().flatten() {
                match value {
                    Value::String(text) => self.push(text),
                    Value::Array(words) if words.iter().all(Value::is_string) => {
                        let words: Vec<&str> = words.iter().filter_map(Value::as_str).collect();
                        self.push(words.join(" "));
                    }
                    other => match pair(&other) {
                        Ok(pair) => <[String; 2]>::from(pair).into_iter().for_each(|text| self.push(text)),
                        Err(why) => drop(wrong.get_or_insert((index, why))),
                    },
                }
            }
        }
        match self.texts.len() == before && !rows.is_empty() {
            true => Err(wrong
                .map_or_else(
                    || rows.not_a_text(0, 0, None),
                    |(index, why)| rows.fail(index, format!("field {:?} {why}", rows.columns()[0])),
                )
                .into()),
            false => Ok(()),
        }
    }
}

/// Names of the keys of a turn, in the files of various tools.
const SPEAKERS: [&str; 2] = ["role", "from"];
const TEXTS: [&str; 3] = ["content", "value", "text"];
/// Who speaks where the model is to.
const ANSWERERS: [&str; 4] = ["assistant", "gpt", "model", "bot"];

struct Turn<'a> {
    speaker: &'a str,
    text: &'a str,
}

/// Source and target; otherwise what is wrong with the conversation.
pub fn pair(value: &Value) -> Result<(String, String), String> {
    let turns = turns(value)?;
    let Some((last, before)) = turns.split_last().filter(|(_, before)| !before.is_empty()) else {
        return Err(format!("has {} turns; there must be a question and an answer", turns.len()));
    };
    if !ANSWERERS.contains(&last.speaker) {
        return Err(format!("ends with a turn of {:?}; the last turn must be the assistant's", last.speaker));
    }
    Ok((written(before), last.text.to_owned()))
}

/// All of a conversation that still waits for its answer.
pub fn question(value: &Value) -> Option<String> {
    let turns = turns(value).ok()?;
    let last = turns.last()?;
    (!ANSWERERS.contains(&last.speaker)).then(|| written(&turns))
}

fn written(turns: &[Turn<'_>]) -> String {
    match turns {
        [one] => one.text.to_owned(),
        many => many.iter().map(|turn| format!("{}: {}", turn.speaker, turn.text)).collect::<Vec<_>>().join("\n"),
    }
}

fn turns(value: &Value) -> Result<Vec<Turn<'_>>, String> {
    let Value::Array(turns) = value else {
        return Err(format!("holds {}, not a list of turns", kind(value)));
    };
    let one = |(turn, number): (_, usize)| {
        Turn::read(turn).ok_or_else(|| {
            format!("turn {number} has no speaker (\"role\" or \"from\") or no text (\"content\" or \"value\")")
        })
    };
    turns.iter().zip(1..).map(one).collect()
}

impl<'a> Turn<'a> {
    fn read(value: &'a Value) -> Option<Self> {
        let text_of = |keys: &[&str]| keys.iter().find_map(|key| value.get(key)?.as_str());
        Some(Self { speaker: text_of(&SPEAKERS)?, text: text_of(&TEXTS)? })
    }
}

#[cfg(test)]
mod conversation_tests {
    use super::*;

    #[test]
    fn a_question_waits_for_its_answer() {
        let asked = |text: &str| question(&serde_json::from_str(text).unwrap());
        let user = r#"{"role": "user", "content": "hi"}"#;
        assert_eq!(asked(&format!("[{user}]")).as_deref(), Some("hi"));
        assert_eq!(asked(&format!("[{user}, {}]", r#"{"role": "assistant", "content": "a"}"#)), None);
        assert_eq!(asked("3"), None);
    }

    #[test]
    fn the_last_turn_is_the_target() {
        for (text, want) in [
            (r#"[{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}]"#, Ok(("hi", "hello"))),
            (
                r#"[{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}, {"from": "human", "value": "c"}, {"from": "gpt", "value": "d"}]"#,
                Ok(("human: a\ngpt: b\nhuman: c", "d")),
            ),
            (r#""hi""#, Err("holds a text, not a list of turns")),
            (r#"[]"#, Err("has 0 turns; there must be a question and an answer")),
            (
                r#"[{"role": "assistant", "content": "a"}, {"role": "user", "content": "b"}]"#,
                Err("ends with a turn of \"user\"; the last turn must be the assistant's"),
            ),
            (
                r#"[{"role": "user"}, {"role": "assistant", "content": "a"}]"#,
                Err("turn 1 has no speaker (\"role\" or \"from\") or no text (\"content\" or \"value\")"),
            ),
        ] {
            let found = pair(&serde_json::from_str(text).unwrap());
            let want = want.map(|(source, target)| (source.to_owned(), target.to_owned())).map_err(str::to_owned);
            assert_eq!(found, want, "{text}");
        }
    }
}

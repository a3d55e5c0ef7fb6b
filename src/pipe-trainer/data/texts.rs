//! Texts of data files: conversations as a source and a target, and all texts for what learns from them before there is a
//! tokenizer. Of a conversation the last turn is what the model is to write, the turns before it are what it reads.

use pipe_data::kind;
use pipe_spec::pipeline::Paths;
use serde_json::Value;

use super::rows::{open_documents, open_rows};
use crate::error::TrainerError;

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

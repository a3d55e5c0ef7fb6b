//! All texts of data files, for what learns from them before there is a tokenizer.

use pipe_spec::pipeline::Paths;
use serde_json::Value;

use super::conversation;
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
        match path.ends_with(".txt") {
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
                    other => match conversation::pair(&other) {
                        Ok(pair) => <[String; 2]>::from(pair).into_iter().for_each(|text| self.push(text)),
                        Err(why) => drop(wrong.get_or_insert((index, why))),
                    },
                }
            }
        }
        match self.texts.len() == before && rows.len() > 0 {
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

//! Synthetic data to train on: rows without end, each a function of the seed and its number, in files for training and for evaluation, and
//! the tokenizers that belong to them.

pub mod cars;
mod dishes;
mod recipes;
pub mod stories;
pub mod tables;

use std::fmt::Display;
use std::fs;
use std::io::{self, Write};
use std::path::Path;

use serde_json::{Value, json};

use crate::cli::RowsArgs;
use crate::error::TrainerError;
use crate::random::{Purpose, Random};
use crate::storage;

pub use dishes::DISHES;
pub use recipes::{RECIPES, TALKS};

/// One kind of synthetic rows.
pub struct SyntheticRows {
    pub purpose: Purpose,
    /// One row, as JSON.
    pub row: fn(&mut Random) -> String,
    /// `tokenizer.json`, for rows that have one of their own.
    pub tokenizer: Option<fn() -> String>,
}

impl SyntheticRows {
    pub fn generate(&self, args: &RowsArgs) -> Result<(), TrainerError> {
        match &args.out {
            None => self.print(args),
            Some(folder) => self.write(args, folder),
        }
    }

    fn print(&self, args: &RowsArgs) -> Result<(), TrainerError> {
        let mut out = io::BufWriter::new(io::stdout().lock());
        match (0..args.rows).try_for_each(|row| writeln!(out, "{}", self.line(args.seed, Split::Train, row))) {
            // The reader has closed the pipe: that is success.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
            Err(source) => Err(TrainerError::Io { path: "stdout".into(), source }),
            Ok(()) => Ok(()),
        }
    }

    fn write(&self, args: &RowsArgs, folder: &Path) -> Result<(), TrainerError> {
        let eval_rows = args.eval_rows.unwrap_or((args.rows / 20).max(1));
        let files = [
            ("train.jsonl", self.lines(args.seed, Split::Train, args.rows)),
            ("eval.jsonl", self.lines(args.seed, Split::Eval, eval_rows)),
        ];
        let tokenizer = self.tokenizer.map(|tokenizer| ("tokenizer.json", tokenizer()));
        fs::create_dir_all(folder).map_err(|source| TrainerError::Io { path: folder.to_owned(), source })?;
        for (name, text) in files.into_iter().chain(tokenizer) {
            let path = folder.join(name);
            storage::write_whole(&path, text.as_bytes()).map_err(|source| TrainerError::Io { path, source })?;
        }
        Ok(())
    }

    /// Its own `tokenizer.json`; empty where it has none.
    #[cfg(test)]
    pub fn tokenizer(&self) -> String {
        self.tokenizer.map(|tokenizer| tokenizer()).unwrap_or_default()
    }

    pub fn lines(&self, seed: u64, split: Split, rows: u64) -> String {
        (0..rows).map(|row| self.line(seed, split, row) + "\n").collect()
    }

    fn line(&self, seed: u64, split: Split, row: u64) -> String {
        (self.row)(&mut Random::new(self.purpose, seed, &[split as u64, row]))
    }
}

/// The two never share a random number.
#[derive(Clone, Copy)]
pub enum Split {
    Train,
    Eval,
}

impl Split {
    pub fn name(self) -> &'static str {
        match self {
            Self::Train => "train",
            Self::Eval => "eval",
        }
    }
}

pub struct Unigram<'a> {
    /// Tokens of their own, by number.
    pub special: &'a [&'a str],
    /// The number of the one for what is neither word nor letter.
    pub unknown: usize,
    /// The numbers of those in front of each text, and of the one behind it.
    pub start: Option<usize>,
    pub end: Option<usize>,
    pub normalizer: &'a str,
}

impl Unigram<'_> {
    /// `tokenizer.json` in the format of Hugging Face's tokenizers. Words are preferred to letters by their scores.
    pub fn json(&self, words: impl IntoIterator<Item = impl Display>) -> String {
        let pieces = self.special.iter().map(|token| json!([token, 0.0]));
        let words = words.into_iter().map(|word| json!([format!("▁{word}"), -4.0]));
        let letters = "▁,.abcdefghijklmnopqrstuvwxyz0123456789".chars().map(|letter| json!([letter.to_string(), -8.0]));
        let metaspace = json!({ "type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": true });
        let tokenizer = json!({
            "version": "1.0",
            "truncation": null,
            "padding": null,
            "added_tokens": added_tokens(self.special),
            "normalizer": { "type": self.normalizer },
            "pre_tokenizer": metaspace,
            "post_processor": self.post_processor(),
            "decoder": metaspace,
            "model": {
                "type": "Unigram",
                "unk_id": self.unknown,
                "vocab": pieces.chain(words).chain(letters).collect::<Vec<_>>(),
                "byte_fallback": false,
            },
        });
        serde_json::to_string_pretty(&tokenizer).expect("a tokenizer is plain data") + "\n"
    }

    /// Nothing where nothing is put around a text.
    fn post_processor(&self) -> Value {
        let used: Vec<usize> = self.start.into_iter().chain(self.end).collect();
        if used.is_empty() {
            return Value::Null;
        }
        let token = |number: usize| json!({ "SpecialToken": { "id": self.special[number], "type_id": 0 } });
        let sequence = |id: &str| json!({ "Sequence": { "id": id, "type_id": 0 } });
        let end = self.end.map(token);
        let single: Vec<Value> = self.start.map(token).into_iter().chain([sequence("A")]).chain(end.clone()).collect();
        let pair: Vec<Value> = single.iter().cloned().chain([sequence("B")]).chain(end).collect();
        let known = |number: &usize| {
            let name = self.special[*number];
            (name.to_owned(), json!({ "id": name, "ids": [number], "tokens": [name] }))
        };
        let special_tokens: serde_json::Map<String, Value> = used.iter().map(known).collect();
        json!({ "type": "TemplateProcessing", "single": single, "pair": pair, "special_tokens": special_tokens })
    }
}

/// Tokens that are never taken apart, by number.
pub fn added_tokens(special: &[&str]) -> Vec<Value> {
    let added = |(id, content): (usize, &&str)| {
        json!({
            "id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false, "special": true,
        })
    };
    special.iter().enumerate().map(added).collect()
}

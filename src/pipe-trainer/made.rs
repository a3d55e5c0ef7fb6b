//! Data that is made up: endless rows, each a function of the seed and its number, to stdout or to a folder to train on.

use std::fs;
use std::io::{self, Write};
use std::path::Path;

use crate::cli::MadeArgs;
use crate::durable;
use crate::error::TrainerError;
use crate::random::{Purpose, Random};

/// Which of the endless rows; the two never share a random number.
#[derive(Clone, Copy)]
pub enum Stream {
    Train,
    Eval,
}

/// What is made.
pub struct Made {
    pub purpose: Purpose,
    /// One row, as JSON.
    pub row: fn(&mut Random) -> String,
    /// `tokenizer.json`
    pub tokenizer: fn() -> String,
}

impl Made {
    pub fn generate(&self, args: &MadeArgs) -> Result<(), TrainerError> {
        match &args.out {
            None => self.print(args),
            Some(folder) => self.write(args, folder),
        }
    }

    fn print(&self, args: &MadeArgs) -> Result<(), TrainerError> {
        let mut out = io::BufWriter::new(io::stdout().lock());
        match (0..args.rows).try_for_each(|row| writeln!(out, "{}", self.line(args.seed, Stream::Train, row))) {
            // Whoever read them has had enough.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
            Err(source) => Err(TrainerError::Io { path: "stdout".into(), source }),
            Ok(()) => Ok(()),
        }
    }

    fn write(&self, args: &MadeArgs, folder: &Path) -> Result<(), TrainerError> {
        let eval_rows = args.eval_rows.unwrap_or((args.rows / 20).max(1));
        let files = [
            ("train.jsonl", self.lines(args.seed, Stream::Train, args.rows)),
            ("eval.jsonl", self.lines(args.seed, Stream::Eval, eval_rows)),
            ("tokenizer.json", (self.tokenizer)()),
        ];
        fs::create_dir_all(folder).map_err(|source| TrainerError::Io { path: folder.to_owned(), source })?;
        for (name, text) in files {
            let path = folder.join(name);
            durable::write_whole(&path, text.as_bytes()).map_err(|source| TrainerError::Io { path, source })?;
        }
        Ok(())
    }

    pub fn lines(&self, seed: u64, stream: Stream, rows: u64) -> String {
        (0..rows).map(|row| self.line(seed, stream, row) + "\n").collect()
    }

    fn line(&self, seed: u64, stream: Stream, row: u64) -> String {
        (self.row)(&mut Random::new(self.purpose, seed, &[stream as u64, row]))
    }
}

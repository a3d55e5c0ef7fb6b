//! Synthetic rows without end, each a function of the seed and its number, written to stdout or to a folder.

use std::fs;
use std::io::{self, Write};
use std::path::Path;

use super::split::Split;
use crate::cli::RowsArgs;
use crate::error::TrainerError;
use crate::random::{Purpose, Random};
use crate::storage::durable;

/// One kind of synthetic rows.
pub struct SyntheticRows {
    pub purpose: Purpose,
    /// One row, as JSON.
    pub row: fn(&mut Random) -> String,
    /// `tokenizer.json`
    pub tokenizer: fn() -> String,
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
            ("tokenizer.json", (self.tokenizer)()),
        ];
        fs::create_dir_all(folder).map_err(|source| TrainerError::Io { path: folder.to_owned(), source })?;
        for (name, text) in files {
            let path = folder.join(name);
            durable::write_whole(&path, text.as_bytes()).map_err(|source| TrainerError::Io { path, source })?;
        }
        Ok(())
    }

    pub fn lines(&self, seed: u64, split: Split, rows: u64) -> String {
        (0..rows).map(|row| self.line(seed, split, row) + "\n").collect()
    }

    fn line(&self, seed: u64, split: Split, row: u64) -> String {
        (self.row)(&mut Random::new(self.purpose, seed, &[split as u64, row]))
    }
}

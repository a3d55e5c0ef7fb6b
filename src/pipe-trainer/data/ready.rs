//! Rows of tokens from files of tensors: `ids`, and `labels` where they are not the ids themselves.

use std::path::Path;

use pipe_spec::pipeline::Paths;

use super::tensors::TensorRows;
use super::{Column, IGNORED, Sample, Source};
use crate::error::TrainerError;

pub struct ReadyRows {
    files: Vec<TensorRows>,
    /// Of ids, and of labels.
    longest: [usize; 2],
}

impl ReadyRows {
    /// A token that the model does not have, or a row that is too long, is named.
    pub fn open(paths: &[String], vocab_size: u64, max_length: u32) -> Result<Self, TrainerError> {
        let mut rows = Self { files: Vec::new(), longest: [0; 2] };
        for path in paths {
            let file = Tensoropen_rows(&Paths(vec![path.clone()]))?;
            for index in 0..file.len() {
                rows.check(&file, index, vocab_size, max_length).map_err(|message| TrainerError::Data {
                    path: Path::new(path).to_owned(),
                    line: None,
                    message: format!("row {}: {message}", index + 1),
                })?;
            }
            rows.files.push(file);
        }
        Ok(rows)
    }

    /// The longest ids and the longest labels.
    pub fn longest(&self) -> [usize; 2] {
        self.longest
    }

    fn check(&mut self, file: &TensorRows, index: usize, vocab_size: u64, max_length: u32) -> Result<(), String> {
        let sample = file.sample(index).map_err(|error| error.to_string())?.ok_or("cannot be read")?;
        let (ids, labels) = ids_and_labels(sample)?;
        if ids.len() > max_length as usize {
            return Err(format!("ids are {} tokens, the model's max_seq_len is {max_length}", ids.len()));
        }
        let known = |token: &i64| u64::try_from(*token).is_ok_and(|token| token < vocab_size);
        if let Some(token) = ids.iter().find(|token| !known(token)) {
            return Err(format!("ids have the token {token}; allowed: 0 to {}, below vocab_size", vocab_size - 1));
        }
        if let Some(label) = labels.iter().find(|label| !known(label) && **label != IGNORED) {
            return Err(format!("labels have {label}; allowed: 0 to {}, or {IGNORED} for none", vocab_size - 1));
        }
        let [longest_ids, longest_labels] = self.longest;
        self.longest = [longest_ids.max(ids.len()), longest_labels.max(labels.len())];
        Ok(())
    }
}

fn ids_and_labels(sample: Sample) -> Result<(Vec<i64>, Vec<i64>), String> {
    let (mut ids, mut labels) = (None, None);
    for (name, column) in sample.columns {
        match (name, column) {
            ("ids", Column::Tokens(tokens)) => ids = Some(tokens),
            ("labels", Column::Tokens(tokens)) => labels = Some(tokens),
            ("ids" | "labels", _) => return Err(format!("{name} are no whole numbers, one for each position")),
            _ => {}
        }
    }
    let ids = ids.ok_or("no ids")?;
    let labels = labels.unwrap_or_else(|| ids.clone());
    Ok((ids, labels))
}

impl Source for ReadyRows {
    fn len(&self) -> usize {
        self.files.iter().map(Source::len).sum()
    }

    /// A position predicts the label after its own, so the first label is not predicted.
    fn sample(&self, index: usize) -> Result<Option<Sample>, TrainerError> {
        let mut index = index;
        let file = self.files.iter().find(|file| {
            let here = index < file.len();
            index -= if here { 0 } else { file.len() };
            here
        });
        let Some(sample) = file.map(|file| file.sample(index)).transpose()?.flatten() else { return Ok(None) };
        let (ids, labels) = ids_and_labels(sample).map_err(|message| TrainerError::Panic { message })?;
        let predicted = labels.iter().skip(1).take(ids.len()).filter(|label| **label != IGNORED).count() as u64;
        Ok(Some(Sample {
            targets: predicted,
            columns: vec![("ids", Column::Tokens(ids)), ("labels", Column::Tokens(labels))],
        }))
    }
}

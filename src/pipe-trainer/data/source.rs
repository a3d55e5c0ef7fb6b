//! Where samples come from.

use image::RgbImage;
use serde_json::{Map, Value};

use super::rows::ROWS_PER_COLUMN;
use super::sample::Sample;
use crate::error::TrainerError;

pub trait Source: Send + Sync {
    /// How many samples there are.
    fn len(&self) -> usize;

    /// The same every time. Absent where the sample cannot be read and `skip_bad` is on.
    fn sample(&self, index: usize) -> Result<Option<Sample>, TrainerError>;

    /// The same, without counting a sample that cannot be read as skipped.
    fn peek(&self, index: usize) -> Result<Option<Sample>, TrainerError> {
        self.sample(index)
    }

    /// The class of a sample, where it has one.
    fn class_of(&self, index: usize) -> Result<Option<i64>, TrainerError> {
        Ok(self.peek(index)?.and_then(|sample| sample.class()))
    }

    /// Samples that are likely the longest, if some are longer than others.
    fn longest(&self) -> Vec<usize> {
        (0..self.len().min(ROWS_PER_COLUMN)).collect()
    }

    /// The first and the last row of the data that a sample is made of, counted from 0 over all files.
    fn rows(&self, index: usize) -> [usize; 2] {
        [index, index]
    }

    /// What a model is given to write something for a sample.
    fn prompt(&self, index: usize) -> Result<Option<Sample>, TrainerError> {
        self.sample(index)
    }

    /// The source and the target text of a sample, for a model that writes texts.
    fn reference_texts(&self, _index: usize) -> Result<(String, String), TrainerError> {
        Ok((String::new(), String::new()))
    }

    /// The text of a sample, for a model that compares pictures with texts.
    fn caption(&self, _index: usize) -> Result<Option<String>, TrainerError> {
        Ok(None)
    }

    /// The picture of a sample as such a model sees it, `edge` pixels high and wide at most.
    fn thumbnail(&self, _index: usize, _edge: u32) -> Result<Option<RgbImage>, TrainerError> {
        Ok(None)
    }

    /// Keys of config.json that follow from the data, such as the scale of features.
    fn config_keys(&self) -> Map<String, Value> {
        Map::new()
    }

    /// Samples that could not be read so far.
    fn skipped(&self) -> u64 {
        0
    }
}

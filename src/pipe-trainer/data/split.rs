//! Rows that are kept for evaluation: a function of the seed, the share and the classes of the rows.

use std::collections::{BTreeMap, HashSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use image::RgbImage;
use rayon::ThreadPool;
use rayon::iter::{IntoParallelIterator, ParallelIterator};
use serde_json::{Map, Value};

use super::rows::ROWS_PER_COLUMN;
use super::{Sample, Source};
use crate::error::TrainerError;
use crate::random::{Purpose, Random};

/// The two parts of a data set.
pub struct Split {
    pub train: Arc<dyn Source>,
    pub eval: Arc<dyn Source>,
}

impl Split {
    /// `by_class` keeps the same share of every class.
    pub fn new(
        source: &Arc<dyn Source>,
        share: f64,
        seed: u64,
        by_class: bool,
        pool: &ThreadPool,
    ) -> Result<Self, TrainerError> {
        let count = source.len();
        let classes: Vec<Option<i64>> = if by_class {
            let of = |index: usize| source.class_of(index);
            pool.install(|| (0..count).into_par_iter().map(of).collect::<Result<_, _>>())?
        } else {
            vec![None; count]
        };
        let eval = choose(&classes, share, seed);
        if eval.is_empty() {
            let message = "no row can be kept for evaluation: there is one of each class at most; give data.eval";
            return Err(TrainerError::Data {
                path: PathBuf::from("data.eval_share"),
                line: None,
                message: message.to_owned(),
            });
        }
        let train = (0..count).filter(|row| eval.binary_search(row).is_err()).collect();
        Ok(Self { train: Subset::shared(source, train), eval: Subset::shared(source, eval) })
    }
}

/// The rows for evaluation, in their order. Of each class with two rows or more, one at least is on either side.
fn choose(classes: &[Option<i64>], share: f64, seed: u64) -> Vec<usize> {
    let mut by_class: BTreeMap<Option<i64>, Vec<usize>> = BTreeMap::new();
    for (row, class) in classes.iter().enumerate() {
        by_class.entry(*class).or_default().push(row);
    }
    let mut chosen = Vec::new();
    for (class, mut rows) in by_class {
        let count = match rows.len() {
            0 | 1 => 0,
            many => ((many as f64 * share).round() as usize).clamp(1, many - 1),
        };
        let number = class.map_or(0, |class| class.cast_unsigned().wrapping_add(1));
        Random::new(Purpose::Split, seed, &[number]).shuffle(&mut rows);
        chosen.extend(rows.into_iter().take(count));
    }
    chosen.sort_unstable();
    chosen
}

/// Some rows of a source.
struct Subset {
    source: Arc<dyn Source>,
    rows: Vec<usize>,
    /// Of these rows, those that could not be read.
    skipped: Mutex<HashSet<usize>>,
}

impl Subset {
    fn shared(source: &Arc<dyn Source>, rows: Vec<usize>) -> Arc<dyn Source> {
        Arc::new(Self { source: Arc::clone(source), rows, skipped: Mutex::default() })
    }
}

impl Source for Subset {
    fn len(&self) -> usize {
        self.rows.len()
    }

    fn sample(&self, index: usize) -> Result<Option<Sample>, TrainerError> {
        let sample = self.source.sample(self.rows[index])?;
        if sample.is_none() {
            self.skipped.lock().unwrap_or_else(PoisonError::into_inner).insert(index);
        }
        Ok(sample)
    }

    fn peek(&self, index: usize) -> Result<Option<Sample>, TrainerError> {
        self.source.peek(self.rows[index])
    }

    fn class_of(&self, index: usize) -> Result<Option<i64>, TrainerError> {
        self.source.class_of(self.rows[index])
    }

    fn longest(&self) -> Vec<usize> {
        let own = |row: &usize| self.rows.binary_search(row).ok();
        let longest: Vec<usize> = self.source.longest().iter().filter_map(own).collect();
        if longest.is_empty() { (0..self.len().min(ROWS_PER_COLUMN)).collect() } else { longest }
    }

    fn prompt(&self, index: usize) -> Result<Option<Sample>, TrainerError> {
        self.source.prompt(self.rows[index])
    }

    fn reference_texts(&self, index: usize) -> Result<(String, String), TrainerError> {
        self.source.reference_texts(self.rows[index])
    }

    fn caption(&self, index: usize) -> Result<Option<String>, TrainerError> {
        self.source.caption(self.rows[index])
    }

    fn thumbnail(&self, index: usize, edge: u32) -> Result<Option<RgbImage>, TrainerError> {
        self.source.thumbnail(self.rows[index], edge)
    }

    fn config_keys(&self) -> Map<String, Value> {
        self.source.config_keys()
    }

    fn skipped(&self) -> u64 {
        self.skipped.lock().unwrap_or_else(PoisonError::into_inner).len() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(counts: &[usize]) -> Vec<Option<i64>> {
        (0i64..).zip(counts).flat_map(|(class, count)| vec![Some(class); *count]).collect()
    }

    #[test]
    fn every_class_is_on_both_sides_where_it_can_be() {
        for share in [0.01, 0.1, 0.5, 0.9] {
            let classes = of(&[100, 7, 2, 1]);
            let eval = choose(&classes, share, 3);
            let count = |class: i64| eval.iter().filter(|row| classes[**row] == Some(class)).count();
            assert!((1..100).contains(&count(0)) && (1..7).contains(&count(1)), "{share}");
            assert_eq!((count(2), count(3)), (1, 0), "{share}");
            assert!((count(0) as f64 - 100.0 * share).abs() <= 1.0, "{share}");
        }
    }

    #[test]
    fn the_seed_decides() {
        let classes = vec![None; 50];
        assert_eq!(choose(&classes, 0.2, 1), choose(&classes, 0.2, 1));
        assert_ne!(choose(&classes, 0.2, 1), choose(&classes, 0.2, 2));
        // For all time: a run that goes on must find the same rows.
        assert_eq!(choose(&classes, 0.1, 42), [0, 18, 30, 45, 49]);
        assert_eq!(choose(&[None], 0.5, 1), [] as [usize; 0]);
    }
}

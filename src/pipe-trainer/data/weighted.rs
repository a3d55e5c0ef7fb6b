//! Samples whose loss counts more or less, by their class.

use std::path::PathBuf;
use std::sync::Arc;

use rayon::ThreadPool;
use rayon::iter::{IntoParallelIterator, ParallelIterator};
use serde_json::{Map, Value};

use super::{Column, LOSS_WEIGHTS, Sample, Source};
use crate::error::TrainerError;

pub struct Weighted {
    source: Arc<dyn Source>,
    /// Of each class.
    weights: Vec<f32>,
}

impl Weighted {
    /// So that every class has the same share of the loss: rows / (classes * rows of the class), as scikit-learn's
    /// `compute_class_weight("balanced")`.
    pub fn balanced(source: Arc<dyn Source>, classes: usize, pool: &ThreadPool) -> Result<Self, TrainerError> {
        let rows = (0..source.len()).into_par_iter();
        let of = |index: usize| source.class_of(index);
        let found: Vec<Option<i64>> = pool.install(|| rows.map(of).collect::<Result<_, _>>())?;
        let mut counts = vec![0; classes];
        for class in found.into_iter().flatten() {
            let count = usize::try_from(class).ok().and_then(|class| counts.get_mut(class));
            *count.ok_or_else(|| refused(&format!("a row has the class {class}, the model has {classes}")))? += 1;
        }
        Ok(Self { source, weights: balance(&counts) })
    }

    fn weigh(&self, sample: Option<Sample>) -> Option<Sample> {
        let mut sample = sample?;
        let weight = sample.class().and_then(|class| self.weights.get(usize::try_from(class).ok()?));
        sample.columns.push((LOSS_WEIGHTS, Column::Real(weight.copied().unwrap_or(0.0))));
        Some(sample)
    }
}

/// Why there are no class weights.
pub fn refused(message: &str) -> TrainerError {
    TrainerError::Data { path: PathBuf::from("train.class_weights"), line: None, message: message.to_owned() }
}

/// A class without rows has no weight, and no row that would need one.
fn balance(counts: &[u64]) -> Vec<f32> {
    let rows: u64 = counts.iter().sum();
    let weight = |count: &u64| if *count == 0 { 0.0 } else { rows as f64 / (counts.len() as f64 * *count as f64) };
    counts.iter().map(|count| weight(count) as f32).collect()
}

impl Source for Weighted {
    fn len(&self) -> usize {
        self.source.len()
    }

    fn sample(&self, index: usize) -> Result<Option<Sample>, TrainerError> {
        self.source.sample(index).map(|sample| self.weigh(sample))
    }

    fn peek(&self, index: usize) -> Result<Option<Sample>, TrainerError> {
        self.source.peek(index).map(|sample| self.weigh(sample))
    }

    fn class_of(&self, index: usize) -> Result<Option<i64>, TrainerError> {
        self.source.class_of(index)
    }

    fn longest(&self) -> Vec<usize> {
        self.source.longest()
    }

    fn config_keys(&self) -> Map<String, Value> {
        self.source.config_keys()
    }

    fn skipped(&self) -> u64 {
        self.source.skipped()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_class_has_the_same_share() {
        let weights = balance(&[6, 2, 0, 1]);
        assert_eq!(weights, [0.375, 1.125, 0.0, 2.25]);
        assert_eq!(balance(&[5, 5]), [1.0, 1.0]);
    }
}

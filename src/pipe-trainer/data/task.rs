//! Opens the data of a training: by its task, with rows that are kept for evaluation and rows that count more than others.

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use image::RgbImage;
use pipe_model::TaskData;
use pipe_spec::TrainerSpec;
use pipe_spec::pipeline::ClassWeights;
use rayon::ThreadPool;
use rayon::iter::{IntoParallelIterator, ParallelIterator};
use serde_json::{Map, Value};

use super::rows::{Opener, choose_held_out};
use super::source::{ROWS_PER_COLUMN, Sources};
use super::{
    Column, LOSS_WEIGHTS, Sample, Source, Words, classification, contrastive, language, picture_classes, preferences,
    seq2seq, table, time_series, token_labels,
};
use crate::error::TrainerError;

/// Opens the data of a training. Every row is read once, so that a broken one is named before the first step.
pub fn open(spec: &TrainerSpec, task_data: &TaskData, pool: &ThreadPool) -> Result<Sources, TrainerError> {
    let opener = Opener { spec, pool, predicts: false, uneven: Mutex::default() };
    let mut sources = open_task(&opener, task_data)?;
    // Time series are split by time, where they are opened; tables before their features are measured.
    if spec.data.eval_share > 0.0 && sources.eval.is_none() {
        let by_class = sources.classes.is_some();
        let Split { train, eval } = Split::new(&sources.train, spec.data.eval_share, spec.train.seed, by_class, pool)?;
        (sources.train, sources.eval) = (train, Some(eval));
    }
    if spec.train.class_weights == ClassWeights::Balanced {
        let classes = sources.classes.ok_or_else(|| {
            refused("only for models that predict classes, one a text; this one predicts none or several, or numbers")
        })?;
        sources.train = Arc::new(Weighted::balanced(sources.train, classes, pool)?);
    }
    Ok(sources)
}

/// Opens `data.train` as rows to predict: what is to be predicted may be missing. Every row is read once.
pub fn open_for_prediction(
    spec: &TrainerSpec,
    task_data: &TaskData,
    pool: &ThreadPool,
) -> Result<Sources, TrainerError> {
    open_task(&Opener { spec, pool, predicts: true, uneven: Mutex::default() }, task_data)
}

fn open_task(opener: &Opener<'_>, task_data: &TaskData) -> Result<Sources, TrainerError> {
    let mut sources = open_by_task(opener, task_data)?;
    let uneven = std::mem::take(&mut *opener.uneven.lock().unwrap_or_else(PoisonError::into_inner));
    sources.notices.extend(uneven);
    Ok(sources)
}

fn open_by_task(opener: &Opener<'_>, task_data: &TaskData) -> Result<Sources, TrainerError> {
    match task_data {
        TaskData::Seq2Seq { .. } => seq2seq::open(opener, task_data),
        TaskData::Classification { .. } => classification::open(opener, task_data),
        TaskData::Contrastive { .. } => contrastive::open(opener, task_data),
        TaskData::TimeSeries { .. } => time_series::open(opener, task_data),
        TaskData::Language { .. } => language::open(opener, task_data),
        TaskData::Preference { .. } => preferences::open(opener, task_data),
        TaskData::TokenLabels { .. } => token_labels::open(opener, task_data),
        TaskData::Table { .. } => table::open(opener, task_data),
        TaskData::PictureClasses { .. } => picture_classes::open(opener, task_data),
    }
}

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
        let eval = choose_held_out(&classes, share, seed)?;
        let train = (0..count).filter(|row| eval.binary_search(row).is_err()).collect();
        Ok(Self { train: Subset::shared(source, train), eval: Subset::shared(source, eval) })
    }
}

/// Some rows of a source.
struct Subset {
    source: Arc<dyn Source>,
    rows: Vec<usize>,
    /// Those of the rows that could not be read.
    skipped: Mutex<HashSet<usize>>,
}

impl Subset {
    fn shared(source: &Arc<dyn Source>, rows: Vec<usize>) -> Arc<dyn Source> {
        Arc::new(Self { source: Arc::clone(source), rows, skipped: Mutex::default() })
    }

    fn counted(&self, index: usize, sample: Option<Sample>) -> Option<Sample> {
        if sample.is_none() {
            self.skipped.lock().unwrap_or_else(PoisonError::into_inner).insert(index);
        }
        sample
    }
}

impl Source for Subset {
    fn len(&self) -> usize {
        self.rows.len()
    }

    fn sample(&self, index: usize) -> Result<Option<Sample>, TrainerError> {
        self.source.sample(self.rows[index]).map(|sample| self.counted(index, sample))
    }

    fn sample_in_epoch(&self, index: usize, epoch: u64) -> Result<Option<Sample>, TrainerError> {
        self.source.sample_in_epoch(self.rows[index], epoch).map(|sample| self.counted(index, sample))
    }

    fn peek(&self, index: usize) -> Result<Option<Sample>, TrainerError> {
        self.source.peek(self.rows[index])
    }

    fn class_of(&self, index: usize) -> Result<Option<i64>, TrainerError> {
        self.source.class_of(self.rows[index])
    }

    fn rows(&self, index: usize) -> [usize; 2] {
        self.source.rows(self.rows[index])
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

    fn sentence(&self, index: usize) -> Result<Option<Words>, TrainerError> {
        self.source.sentence(self.rows[index])
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

pub struct Weighted {
    source: Arc<dyn Source>,
    /// The weight of each class.
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

    fn sample_in_epoch(&self, index: usize, epoch: u64) -> Result<Option<Sample>, TrainerError> {
        self.source.sample_in_epoch(index, epoch).map(|sample| self.weigh(sample))
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
mod weighted_tests {
    use super::*;

    #[test]
    fn every_class_has_the_same_share() {
        let weights = balance(&[6, 2, 0, 1]);
        assert_eq!(weights, [0.375, 1.125, 0.0, 2.25]);
        assert_eq!(balance(&[5, 5]), [1.0, 1.0]);
    }
}

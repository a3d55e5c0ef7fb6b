//! Where samples come from, which of them a step takes, and threads that read the samples of steps ahead of the training.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;

use image::RgbImage;
use pipe_model::Labels;
use pipe_spec::pipeline::Train;
use rayon::ThreadPool;
use rayon::iter::{IntoParallelRefIterator, ParallelIterator};
use serde_json::{Map, Value};

use super::part::{Sample, sort_longest_first};
use super::part_shape::Padding;
use super::words::Words;
use crate::boundary;
use crate::error::TrainerError;
use crate::random::{Purpose, Random};
use crate::tokenizer::Tokens;

/// Rows that are kept as the longest for each column.
pub const ROWS_PER_COLUMN: usize = 64;

pub trait Source: Send + Sync {
    /// How many samples there are.
    fn len(&self) -> usize;

    /// The same every time. Absent where the sample cannot be read and `skip_bad` is on.
    fn sample(&self, index: usize) -> Result<Option<Sample>, TrainerError>;

    /// The sample as an epoch of a training sees it; the same every time for this epoch.
    fn sample_in_epoch(&self, index: usize, _epoch: u64) -> Result<Option<Sample>, TrainerError> {
        self.sample(index)
    }

    /// The same as `sample`, without counting one that cannot be read as skipped.
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

    /// The prompt from which a model writes something for a sample.
    fn prompt(&self, index: usize) -> Result<Option<Sample>, TrainerError> {
        self.sample(index)
    }

    /// The source and the target text of a sample, for a model that writes texts.
    fn reference_texts(&self, _index: usize) -> Result<(String, String), TrainerError> {
        Ok((String::new(), String::new()))
    }

    /// The text of a sample, where it has one that people can read.
    fn caption(&self, _index: usize) -> Result<Option<String>, TrainerError> {
        Ok(None)
    }

    /// The words of a sample, for a model that labels them.
    fn sentence(&self, _index: usize) -> Result<Option<Words>, TrainerError> {
        Ok(None)
    }

    /// The picture of a sample as the model sees it, `edge` pixels high and wide at most.
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

/// The data of a training.
pub struct Sources {
    pub train: Arc<dyn Source>,
    pub eval: Option<Arc<dyn Source>>,
    pub paddings: Vec<Padding>,
    /// The tokenizer, which writes the tokens of a model as words.
    pub tokens: Option<Arc<Tokens>>,
    /// The labels, where the data decides them.
    pub labels: Option<Labels>,
    /// How many classes there are, where classes are predicted.
    pub classes: Option<usize>,
    /// Notices for the user about the data.
    pub notices: Vec<String>,
}

#[derive(Clone, Debug)]
pub struct SampleOrder {
    rows: u64,
    shuffle: bool,
    seed: u64,
    effective_batch: u64,
    /// Samples of the whole run, counted with their repetitions.
    samples: u64,
    order: Option<EpochOrder>,
}

/// The order of one epoch, kept while its steps are taken.
#[derive(Clone, Debug)]
struct EpochOrder {
    epoch: u64,
    rows: Vec<u32>,
}

impl SampleOrder {
    pub fn new(rows: usize, shuffle: bool, train: &Train) -> Self {
        let rows = rows as u64;
        let effective_batch = u64::from(train.effective_batch);
        let samples = match (train.steps, train.epochs) {
            (Some(steps), _) => steps.saturating_mul(effective_batch),
            (None, epochs) => samples_of(epochs.unwrap_or(1.0), rows),
        };
        Self { rows, shuffle, seed: train.seed, effective_batch, samples, order: None }
    }

    pub fn steps(&self) -> u64 {
        self.samples.div_ceil(self.effective_batch)
    }

    pub fn rows(&self) -> u64 {
        self.rows
    }

    /// Samples that the first `steps` steps take.
    pub fn samples_after(&self, steps: u64) -> u64 {
        steps.saturating_mul(self.effective_batch).min(self.samples)
    }

    /// Whether the step that makes `steps` is the one in which a pass over the data ends.
    pub fn ends_epoch(&self, steps: u64) -> bool {
        steps > 0 && self.samples_after(steps) / self.rows > self.samples_after(steps - 1) / self.rows
    }

    /// Passes over the data that the first `steps` steps make.
    pub fn epochs_after(&self, steps: u64) -> f64 {
        self.samples_after(steps) as f64 / self.rows as f64
    }

    /// The rows of a step, which counts from 0.
    pub fn step(&mut self, step: u64) -> Vec<usize> {
        self.step_in_epochs(step).into_iter().map(|(row, _)| row).collect()
    }

    /// The same, each with its epoch, which counts from 0.
    pub fn step_in_epochs(&mut self, step: u64) -> Vec<(usize, u64)> {
        (self.samples_after(step)..self.samples_after(step + 1)).map(|position| self.row_at(position)).collect()
    }

    fn row_at(&mut self, position: u64) -> (usize, u64) {
        let (epoch, index) = (position / self.rows, (position % self.rows) as usize);
        if !self.shuffle {
            return (index, epoch);
        }
        let row = match &self.order {
            Some(order) if order.epoch == epoch => order.rows[index],
            _ => self.order.insert(EpochOrder::new(self.seed, epoch, self.rows)).rows[index],
        };
        (row as usize, epoch)
    }
}

impl EpochOrder {
    fn new(seed: u64, epoch: u64, rows: u64) -> Self {
        let count = u32::try_from(rows).expect("a data set has fewer than 4 billion rows");
        let mut rows: Vec<u32> = (0..count).collect();
        Random::new(Purpose::Order, seed, &[epoch]).shuffle(&mut rows);
        Self { epoch, rows }
    }
}

/// A part of a sample is taken whole, unless it is nothing but the rounding of the product.
fn samples_of(epochs: f64, rows: u64) -> u64 {
    let product = epochs * rows as f64;
    let nearest = product.round();
    let samples = if (product - nearest).abs() < 1e-6 { nearest } else { product.ceil() };
    (samples as u64).max(1)
}

/// Small, because stacks count against the memory limit.
const STACK_BYTES: usize = 1 << 20;

/// More threads than this, or than four for each core where that is more, only waste memory.
const USEFUL_WORKERS: usize = 64;

fn most_workers() -> usize {
    thread::available_parallelism().map_or(1, usize::from).saturating_mul(4).max(USEFUL_WORKERS)
}

/// Threads that read and tokenise rows: `count`, or as many as are useful.
pub fn workers(count: u32) -> Result<Arc<ThreadPool>, TrainerError> {
    rayon::ThreadPoolBuilder::new()
        .num_threads((count as usize).min(most_workers()))
        .stack_size(STACK_BYTES)
        .thread_name(|index| format!("data-{index}"))
        .build()
        .map(Arc::new)
        .map_err(|error| TrainerError::Panic { message: format!("cannot start the data workers: {error}") })
}

/// Rows to samples, in parallel and in order.
#[derive(Clone)]
pub struct Reader {
    pub source: Arc<dyn Source>,
    pub pool: Arc<ThreadPool>,
}

impl Reader {
    pub fn read(&self, indices: &[usize]) -> Result<Vec<Sample>, TrainerError> {
        Ok(self.read_rows(indices)?.into_iter().map(|(_, sample)| sample).collect())
    }

    /// The same, each sample with its index.
    pub fn read_rows(&self, indices: &[usize]) -> Result<Vec<(usize, Sample)>, TrainerError> {
        self.each(indices, |index| self.source.sample(*index))
    }

    /// Rows as their epochs see them.
    pub fn read_in_epochs(&self, rows: &[(usize, u64)]) -> Result<Vec<Sample>, TrainerError> {
        let read = self.each(rows, |(index, epoch)| self.source.sample_in_epoch(*index, *epoch))?;
        Ok(read.into_iter().map(|(_, sample)| sample).collect())
    }

    /// The same, without counting skipped samples.
    pub fn peek(&self, indices: &[usize]) -> Result<Vec<Sample>, TrainerError> {
        Ok(self.each(indices, |index| self.source.peek(*index))?.into_iter().map(|(_, sample)| sample).collect())
    }

    fn each<T: Copy + Sync>(
        &self,
        rows: &[T],
        read: impl Fn(&T) -> Result<Option<Sample>, TrainerError> + Sync,
    ) -> Result<Vec<(T, Sample)>, TrainerError> {
        let read = |row: &T| {
            let sample = read(row)?;
            boundary::check_host_memory().map(|()| sample)
        };
        let read: Result<Vec<Option<Sample>>, _> = self.pool.install(|| rows.par_iter().map(read).collect());
        Ok(rows.iter().zip(read?).filter_map(|(row, sample)| Some((*row, sample?))).collect())
    }
}

/// The samples of a step.
pub struct Loaded {
    /// Longest first, so that rows of a part are alike. Where a sample stands here decides what dropout drops of it.
    pub samples: Vec<Sample>,
    /// Samples that could not be read up to this step, however far ahead the loader is.
    pub skipped: u64,
}

pub struct Loader(Receiver<Result<Loaded, TrainerError>>);

impl Loader {
    /// Begins with step `first`, which counts from 0; holds at most `prefetch` steps that are not taken yet.
    pub fn start(reader: Reader, order: SampleOrder, first: u64, prefetch: u32) -> Result<Self, TrainerError> {
        let (sender, receiver) = sync_channel(prefetch as usize);
        thread::Builder::new()
            .name("loader".to_owned())
            .stack_size(STACK_BYTES)
            .spawn(move || prepare(&reader, order, first, &sender))
            .map_err(|error| boundary::from_thread("the loader", &error))?;
        Ok(Self(receiver))
    }

    pub fn next(&mut self) -> Result<Loaded, TrainerError> {
        let ended = |_| TrainerError::Panic { message: "the loader ended before the training".to_owned() };
        self.0.recv().map_err(ended)?
    }

    /// The same where it need not be waited for.
    pub fn next_if_ready(&mut self) -> Option<Result<Loaded, TrainerError>> {
        self.0.try_recv().ok()
    }
}

fn prepare(reader: &Reader, mut order: SampleOrder, first: u64, sender: &SyncSender<Result<Loaded, TrainerError>>) {
    for step in first..order.steps() {
        let samples = reader.read_in_epochs(&order.step_in_epochs(step));
        let loaded = samples.map(|mut samples| {
            sort_longest_first(&mut samples);
            Loaded { samples, skipped: reader.source.skipped() }
        });
        let failed = loaded.is_err();
        if sender.send(loaded).is_err() || failed {
            return;
        }
    }
}

#[cfg(test)]
mod sample_order_tests {
    use std::num::NonZeroU32;

    use pipe_spec::pipeline::{
        BatchSetting, Checkpointing, ClassWeights, Optimizer, Precision, Ranks, Schedule, Shard, Split,
    };

    use super::*;

    fn train(effective_batch: u32, steps: Option<u64>, epochs: Option<f64>) -> Train {
        Train {
            epochs,
            steps,
            batch: BatchSetting::Fixed(NonZeroU32::MIN),
            effective_batch,
            split: Split::Fixed,
            ranks: Ranks::Auto,
            shard: Shard::None,
            rank_timeout: NonZeroU32::MIN,
            precision: Precision::Fp32,
            optimizer: Optimizer::default(),
            schedule: Schedule::default(),
            clip: 1.0,
            checkpointing: Checkpointing::Off,
            dropout: None,
            seed: 42,
            deterministic: false,
            cuda_graphs: true,
            early_stop: None,
            class_weights: ClassWeights::None,
            preference: None,
        }
    }

    fn all(mut order: SampleOrder) -> Vec<usize> {
        (0..order.steps()).flat_map(|step| order.step(step)).collect()
    }

    #[test]
    fn every_epoch_takes_every_row_once_in_another_order() {
        let stream = all(SampleOrder::new(10, true, &train(4, None, Some(2.0))));
        let (first, second) = stream.split_at(10);
        for epoch in [first, second] {
            let mut sorted = epoch.to_vec();
            sorted.sort_unstable();
            assert_eq!(sorted, (0..10).collect::<Vec<_>>());
        }
        assert_ne!(first, second);
    }

    #[test]
    fn the_stream_does_not_depend_on_the_effective_batch_or_where_it_is_entered() {
        let whole = all(SampleOrder::new(10, true, &train(5, None, Some(3.0))));
        assert_eq!(whole, all(SampleOrder::new(10, true, &train(3, None, Some(3.0)))));
        assert_eq!(SampleOrder::new(10, true, &train(5, None, Some(3.0))).step(4), whole[20..25]);
    }

    #[test]
    fn the_order_is_fixed_for_all_time() {
        assert_eq!(all(SampleOrder::new(8, true, &train(8, Some(1), None))), [2, 3, 7, 1, 4, 0, 5, 6]);
        assert_eq!(all(SampleOrder::new(3, false, &train(2, Some(3), None))), [0, 1, 2, 0, 1, 2]);
    }

    #[test]
    fn steps_and_the_smaller_last_step() {
        let cases = [(10, 4, Some(1.0), 3, 2), (10, 5, Some(2.0), 4, 5), (30, 1, Some(0.1), 3, 1), (5, 8, None, 7, 8)];
        for (rows, effective, epochs, steps, last) in cases {
            let mut order = SampleOrder::new(rows, true, &train(effective, epochs.is_none().then_some(7), epochs));
            assert_eq!(order.steps(), steps, "{rows} rows, effective batch {effective}");
            assert_eq!(order.step(steps - 1).len(), last);
        }
    }
}

#[cfg(test)]
mod loader_tests {
    use super::*;

    #[test]
    fn no_more_threads_than_are_useful() {
        assert_eq!(workers(3).unwrap().current_num_threads(), 3);
        assert_eq!(workers(1_000_000).unwrap().current_num_threads(), most_workers());
    }
}

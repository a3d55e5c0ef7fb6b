//! Which samples a step takes: a function of seed, epoch and step alone, never of the batch.

use pipe_spec::pipeline::Train;

use crate::random::{Purpose, Random};

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
        (self.samples_after(step)..self.samples_after(step + 1)).map(|position| self.row_at(position)).collect()
    }

    fn row_at(&mut self, position: u64) -> usize {
        let (epoch, index) = (position / self.rows, (position % self.rows) as usize);
        if !self.shuffle {
            return index;
        }
        match &self.order {
            Some(order) if order.epoch == epoch => order.rows[index] as usize,
            _ => self.order.insert(EpochOrder::new(self.seed, epoch, self.rows)).rows[index] as usize,
        }
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

#[cfg(test)]
mod tests {
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

//! Steps on the longest samples whose update is discarded: they need as much memory as the largest step of the training.

use std::time::Instant;

use pipe_spec::event::{Point, Rehearsed};
use pipe_spec::pipeline;

use super::accumulation::Accumulation;
use super::session::Session;
use super::state::{State, milliseconds};
use super::step_splitter::StepSplitter;
use crate::boundary;
use crate::data::{Column, Reader, Sample, sort_longest_first};
use crate::error::TrainerError;
use crate::torch;

/// A step without its update. It leaves everything as it was.
pub struct Rehearsal<'a> {
    pub session: &'a Session,
    pub state: &'a State,
    /// Splits steps into parts of the training's batch.
    pub splitter: &'a StepSplitter,
    pub longest_samples: &'a LongestSamples,
}

impl Rehearsal<'_> {
    /// Everything of a step but its update. With several passes in a step two are enough: the second finds the gradients of
    /// the first.
    pub fn run(&self, batch: u32) -> Result<Rehearsed, TrainerError> {
        let Self { session, state, splitter, .. } = *self;
        let clock = Instant::now();
        let samples = self.samples(batch);
        let gradients = self.gradients(&samples, batch)?;
        // Only after waiting for the device is it known that all of it fitted.
        torch::total_norm(&gradients)?.f_double_value(&[])?;
        state.optimizer.rehearse(state.model.weights())?;
        drop(gradients);
        state.model.step_ended(false)?;
        state.model.weights().forget_gradients()?;
        let usage = session.hardware.usage();
        let longest = splitter.shape().lengths(&samples);
        Ok(Rehearsed { batch, longest, peak: usage.peak, reserved: usage.reserved, ms: milliseconds(clock) })
    }

    /// The samples of a step, two passes of it at most.
    pub fn samples(&self, batch: u32) -> Vec<Sample> {
        let spec = &self.session.spec;
        let samples = self.splitter(batch).room(&self.longest_samples.part(batch));
        let passes = pipeline::accum(spec.train.effective_batch, samples, spec.rank.count).min(2);
        (0..passes).flat_map(|_| self.longest_samples.part(samples)).collect()
    }

    fn splitter(&self, batch: u32) -> StepSplitter {
        self.splitter.with_batch(batch, self.session.spec.train.effective_batch)
    }

    pub fn gradients(&self, samples: &[Sample], batch: u32) -> Result<Vec<tch::Tensor>, TrainerError> {
        let Self { session, state, .. } = *self;
        Accumulation { session, state, splitter: &self.splitter(batch), graphs: None, sums: None }.of(samples, None)?;
        Ok(state.model.weights().gradients()?)
    }

    /// The peaks of an eighth and a quarter of the batch that did not fit, as far as they fit. On a card alone: a process does
    /// not give host memory back.
    pub fn smaller(&self, failed: u32) -> Vec<Point> {
        let mut batches: Vec<u32> = [failed / 8, failed / 4].into_iter().filter(|batch| *batch > 0).collect();
        batches.dedup();
        let point = |batch: u32| {
            let measured = boundary::guard(|| {
                self.state.model.weights().forget_gradients()?;
                torch::empty_cache()?;
                self.session.hardware.reset_peaks()?;
                self.run(batch)
            });
            measured.ok().map(|measured| Point { batch, peak: measured.peak })
        };
        batches.into_iter().map_while(point).collect()
    }
}

/// The longest samples, those that are longest in some column first.
pub struct LongestSamples(Vec<Sample>);

impl LongestSamples {
    pub fn find(reader: &Reader) -> Result<Self, TrainerError> {
        let mut samples = reader.peek(&reader.source.longest())?;
        sort_longest_first(&mut samples);
        // A part is as long as its longest row in each column: after the longest sample come those.
        for column in 0..samples.first().map_or(0, |sample| sample.columns.len()) {
            let length = |position: usize| samples[position].lengths().nth(column).unwrap_or(0);
            let longest = (0..samples.len()).rev().max_by_key(|position| length(*position)).unwrap_or(0);
            if length(longest) > length(0) {
                let sample = samples.remove(longest);
                samples.insert(1, sample);
            }
        }
        Ok(Self(samples))
    }

    /// Whether no sample could be read.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// As many samples as a pass has, over and over where there are fewer. One of them is a little shorter, so that there is
    /// padding as there is in the training.
    pub fn part(&self, batch: u32) -> Vec<Sample> {
        let mut part: Vec<Sample> = self.0.iter().cycle().take(batch as usize).cloned().collect();
        if let [_, .., last] = part.as_mut_slice() {
            shorten(last);
        }
        part
    }
}

fn shorten(sample: &mut Sample) {
    for (name, column) in &mut sample.columns {
        match column {
            Column::Tokens(tokens) if *name != "labels" && tokens.len() > 1 => drop(tokens.pop()),
            Column::PerToken(labels) if labels.len() > 1 => drop(labels.pop()),
            _ => {}
        }
    }
}

#[cfg(test)]
mod longest_samples_tests {
    use super::*;

    fn sample(source: usize, target: usize) -> Sample {
        let tokens = |length| Column::Tokens(vec![1; length]);
        let columns =
            vec![("input_ids", tokens(source)), ("attention_mask", tokens(source)), ("labels", tokens(target))];
        Sample { columns, targets: 1 }
    }

    struct Rows(Vec<(usize, usize)>);

    impl crate::data::Source for Rows {
        fn len(&self) -> usize {
            self.0.len()
        }

        fn sample(&self, index: usize) -> Result<Option<Sample>, TrainerError> {
            Ok(Some(sample(self.0[index].0, self.0[index].1)))
        }
    }

    #[test]
    fn a_part_is_as_long_as_any_can_be() {
        let rows = Rows(vec![(9, 9), (30, 2), (29, 4), (31, 1), (3, 12), (2, 2)]);
        let reader = Reader { source: std::sync::Arc::new(rows), pool: crate::data::workers(1).unwrap() };
        let longest_samples = LongestSamples::find(&reader).unwrap();
        let longest = |batch: u32, column: usize| {
            longest_samples.part(batch).iter().map(|sample| sample.lengths().nth(column).unwrap()).max().unwrap()
        };
        assert_eq!((longest(1, 0), longest(1, 2)), (29, 4), "one sample is the longest in all");
        assert_eq!((longest(4, 0), longest(4, 2)), (31, 12), "several have the longest of each column");
        assert_eq!(longest_samples.part(20).len(), 20);
        let part = longest_samples.part(4);
        assert!(part[3].lengths().next() < Some(31), "there is padding");
    }
}

//! Steps on the longest samples whose update is discarded: they need as much memory as the largest step of the training.

use std::time::Instant;

use pipe_spec::event::{Point, Rehearsed};
use pipe_spec::pipeline;

use super::accumulation::Accumulation;
use super::cut::Cut;
use super::longest_samples::LongestSamples;
use super::session::Session;
use super::state::{State, milliseconds};
use crate::data::Sample;
use crate::error::TrainerError;
use crate::{boundary, torch};

/// What a rehearsal works on. It leaves everything as it was.
pub struct Rehearsal<'a> {
    pub session: &'a Session,
    pub state: &'a State,
    /// Of the batch of the training.
    pub cut: &'a Cut,
    pub longest_samples: &'a LongestSamples,
}

impl Rehearsal<'_> {
    /// Everything of a step but its update. With several passes in a step two are enough: the second finds the gradients of
    /// the first.
    pub fn run(&self, batch: u32) -> Result<Rehearsed, TrainerError> {
        let Self { session, state, cut, .. } = *self;
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
        let longest = cut.shape().lengths(&samples);
        Ok(Rehearsed { batch, longest, peak: usage.peak, reserved: usage.reserved, ms: milliseconds(clock) })
    }

    /// The samples of a step, two passes of it at most.
    pub fn samples(&self, batch: u32) -> Vec<Sample> {
        let spec = &self.session.spec;
        let samples = self.cut(batch).room(&self.longest_samples.part(batch));
        let passes = pipeline::accum(spec.train.effective_batch, samples, spec.rank.count).min(2);
        (0..passes).flat_map(|_| self.longest_samples.part(samples)).collect()
    }

    fn cut(&self, batch: u32) -> Cut {
        self.cut.with_batch(batch, self.session.spec.train.effective_batch)
    }

    pub fn gradients(&self, samples: &[Sample], batch: u32) -> Result<Vec<tch::Tensor>, TrainerError> {
        let Self { session, state, .. } = *self;
        Accumulation { session, state, cut: &self.cut(batch), graphs: None, sums: None }.of(samples)?;
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

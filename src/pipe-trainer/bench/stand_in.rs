//! Steps as one of several ranks takes them, on a card that is alone: in place of the sum over the ranks something that takes as long.

use std::thread;

use crate::cli::BenchArgs;
use crate::error::TrainerError;
use crate::model::{Model, Weights};
use crate::torch::{BucketSums, Link};
use crate::train::FlatGradients;

pub struct StandIn {
    gradients: FlatGradients,
    buckets: BucketSums,
    link: Link,
    /// Pieces of the last step whose sum began during its last backward pass.
    pub early: usize,
}

impl StandIn {
    /// Sums at so many gigabytes of gradients a second.
    pub fn new(model: &dyn Model, card: usize, gigabytes: f64, args: &BenchArgs) -> Result<Self, TrainerError> {
        let gradients = FlatGradients::of(model.weights())?;
        let link = Link::stand_in(card, gigabytes, args.sum_latency * 1000.0, args.sum_blocks)?;
        let parameters: Vec<_> = model.weights().trained().map(|(_, parameter)| parameter).collect();
        let buckets =
            BucketSums::new(link, &gradients.buckets.iter().collect::<Vec<_>>(), &parameters, &gradients.bucket_of)?;
        Ok(Self { gradients, buckets, link, early: 0 })
    }

    pub fn buckets(&self) -> usize {
        self.gradients.buckets.len()
    }

    pub fn begin(&self, weights: &Weights) -> Result<(), TrainerError> {
        self.gradients.begin(weights)
    }

    /// Before the last backward pass of a step.
    pub fn watch(&self, recomputes: bool) -> Result<(), TrainerError> {
        Ok(self.buckets.watch(recomputes, true)?)
    }

    /// Waits until everything is summed.
    pub fn finish(&mut self) -> Result<(), TrainerError> {
        self.early = self.buckets.finish()?.unwrap_or(0);
        while !self.link.done()? {
            thread::yield_now();
        }
        Ok(())
    }
}

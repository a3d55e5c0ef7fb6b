//! The gradients of all ranks as one sum, which begins while the last part of a step is still computed.

use std::cell::{Cell, RefCell};

use super::last_part::{LastPart, Way};
use super::session::Session;
use super::state::State;
use crate::error::TrainerError;
use crate::torch::BucketSums;

pub struct Sums {
    buckets: BucketSums,
    /// Not any more where a gradient came later than expected.
    overlaps: Cell<bool>,
    /// Whether a sum of this step may have begun.
    begun: Cell<bool>,
    last_part: RefCell<LastPart>,
}

impl Sums {
    /// Absent where there is one rank.
    pub fn new(session: &Session, state: &State) -> Result<Option<Self>, TrainerError> {
        let Some(gradients) = &state.gradients else { return Ok(None) };
        if session.peers.is_nobody() {
            return Ok(None);
        }
        let parameters: Vec<_> = state.model.weights().trained().map(|(_, parameter)| parameter).collect();
        let buckets: Vec<_> = gradients.buckets.iter().collect();
        let link = session.peers.link(session.hardware.device);
        // Where a model sums inside too, the order of sums must not depend on which part is the last of a rank.
        let overlaps = state.shared_sum.is_none();
        let buckets = BucketSums::new(link, &buckets, &parameters, &gradients.bucket_of)?;
        Ok(Some(Self {
            buckets,
            overlaps: Cell::new(overlaps),
            begun: Cell::new(false),
            last_part: RefCell::default(),
        }))
    }

    /// A new step. Whatever was watched is not any more.
    pub fn begin_step(&self) -> Result<(), TrainerError> {
        self.begun.set(false);
        Ok(self.buckets.forget()?)
    }

    /// Before the backward pass of the last part.
    pub fn watch(&self, recomputes: bool) -> Result<(), TrainerError> {
        self.begun.set(true);
        Ok(self.buckets.watch(recomputes, self.overlaps.get())?)
    }

    /// After the last part, or where there is none. Whether the sum will be right: a gradient may have come when its bucket was being
    /// summed already. That is so once at most.
    pub fn finish(&self) -> Result<bool, TrainerError> {
        self.begun.set(true);
        Ok(self.buckets.finish()?.is_some())
    }

    /// Whether the last part may be launched as a graph, and summed afterwards.
    pub fn last_part_is_a_graph(&self) -> bool {
        self.last_part.borrow().way() == Way::Graph
    }

    /// The slowest rank took so long for a step of so many tokens.
    pub fn step_took(&self, ms: f64, tokens: u64) {
        self.last_part.borrow_mut().took(ms, tokens);
    }

    pub fn stop_overlapping(&self) {
        self.overlaps.set(false);
    }

    /// Whether the parts of this step can still be computed again.
    pub fn have_begun(&self) -> bool {
        self.begun.get()
    }
}

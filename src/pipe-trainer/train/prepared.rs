//! A step as it is cut, and its first part on its device. The next step is prepared while the card computes: otherwise the card would wait for that.

use std::ops::Range;

use pipe_model::memory::Layout;
use pipe_spec::Rank;

use super::step_splitter::{StepPart, StepSplitter};
use crate::data::{Part, Sample};
use crate::error::TrainerError;

pub struct Prepared {
    /// The samples of each part, of each rank.
    shares: Vec<Vec<Range<usize>>>,
    pub filled: Option<f64>,
    /// The first part of this rank, where that was made ahead.
    pub first: Option<Part>,
}

impl Prepared {
    pub fn new(samples: &[Sample], splitter: &StepSplitter, rank: Rank) -> Self {
        let shares = splitter.shares(samples, rank.count);
        let filled = splitter.filled(shares.iter().flatten().map(|part| part.samples));
        let range = |part: &StepPart<'_>| part.first_sample as usize..part.first_sample as usize + part.samples.len();
        let shares = shares.iter().map(|share| share.iter().map(range).collect()).collect();
        Self { shares, filled, first: None }
    }

    /// The same with its first part, where that is tokens alone: a part of pictures would be in the way of the one before.
    pub fn ahead(samples: &[Sample], splitter: &StepSplitter, rank: Rank) -> Result<Self, TrainerError> {
        let prepared = Self::new(samples, splitter, rank);
        let first = match prepared.share(samples, rank.index).first() {
            Some(part) if splitter.shape().layout() == Layout::Packed => Some(splitter.shape().collate(part.samples)?),
            _ => None,
        };
        Ok(Self { first, ..prepared })
    }

    /// Parts of all ranks.
    pub fn parts(&self) -> u32 {
        self.shares.iter().map(|share| share.len() as u32).sum()
    }

    /// The parts of one rank, in order.
    pub fn share<'s>(&self, samples: &'s [Sample], rank: u32) -> Vec<StepPart<'s>> {
        let part =
            |range: &Range<usize>| StepPart { samples: &samples[range.clone()], first_sample: range.start as u32 };
        self.shares[rank as usize].iter().map(part).collect()
    }
}

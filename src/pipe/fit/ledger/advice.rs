//! The batch to start with, from the measurements. Pure.

use pipe_model::memory;
use pipe_spec::pipeline::accum;
use pipe_spec::text::human_bytes;

use super::{Fact, LedgerEntry};

/// The advice for a requested batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Advice {
    /// Keep the requested batch.
    Keep,
    /// The requested batch is known to fail: start with this one.
    Instead { batch: u32, why: String },
}

/// The driver and torch do not call quite the same the whole of a card.
const CAPACITY_TOLERANCE: f64 = 0.02;

/// The requested batch and its limits.
#[derive(Clone, Copy, Debug)]
pub struct BatchRequest {
    pub batch: u32,
    pub effective_batch: u32,
    pub ranks: u32,
    pub min_batch: u32,
    /// Bytes of memory; unknown means the same as when the facts were recorded.
    pub capacity: Option<u64>,
}

impl LedgerEntry {
    /// The largest batch that is known to fit, where a search found it for as much memory as there is. A search that ended
    /// at its effective batch says nothing about larger ones.
    pub fn largest(&self, request: &BatchRequest) -> Option<u32> {
        let there = |fact: &&Fact| {
            request
                .capacity
                .is_none_or(|capacity| fact.capacity.abs_diff(capacity) as f64 <= capacity as f64 * CAPACITY_TOLERANCE)
        };
        let reaches = |fact: &&Fact| !fact.is_capped() || fact.batch >= request.effective_batch;
        let found = self.facts.iter().filter(|fact| fact.fits && fact.largest).filter(there).filter(reaches);
        found.map(|fact| fact.batch.min(request.effective_batch)).max()
    }

    pub fn advise(&self, request: &BatchRequest) -> Advice {
        let Some(failed) = self.failure(request.batch, request) else { return Advice::Keep };
        let (batch, because) = match (self.known_to_fit(request), self.on_the_line(request)) {
            // What was measured at small batches alone may lie far below what fits.
            (Some(known), line) if line.is_none_or(|line| line <= known + known / 4) => {
                (known, "which is known to fit")
            }
            (_, Some(line)) => (line, "which fits according to smaller batches"),
            (_, None) => (self.untried(request), "which was not tried yet"),
        };
        let why = format!(
            "a batch of {} did not fit in {}: starting at {batch}, {because}",
            failed.batch,
            human_bytes(failed.capacity)
        );
        Advice::Instead { batch, why }
    }

    /// What shows that `batch` will fail: it, or a smaller one, failed in as much memory. Gradients that are held through
    /// several passes make a step larger, never smaller.
    fn failure(&self, batch: u32, request: &BatchRequest) -> Option<&Fact> {
        let accumulates = accum(request.effective_batch, batch, request.ranks) > 1;
        let shows = |fact: &&Fact| {
            !fact.fits
                && fact.batch <= batch
                && fact.accumulates <= accumulates
                && request
                    .capacity
                    .is_none_or(|capacity| fact.capacity as f64 * (1.0 + CAPACITY_TOLERANCE) >= capacity as f64)
        };
        self.facts.iter().find(shows)
    }

    /// The largest known batch below the requested one whose peak fits.
    fn known_to_fit(&self, request: &BatchRequest) -> Option<u32> {
        let fits = |fact: &&Fact| {
            fact.fits
                && fact.batch < request.batch
                && fact.batch >= request.min_batch
                && fact.accumulates >= (accum(request.effective_batch, fact.batch, request.ranks) > 1)
                && request.capacity.is_none_or(|capacity| fact.peak.unwrap_or(fact.capacity) <= capacity)
                && self.failure(fact.batch, request).is_none()
        };
        self.facts.iter().filter(fits).map(|fact| fact.batch).max()
    }

    fn on_the_line(&self, request: &BatchRequest) -> Option<u32> {
        let most = self.failure(request.batch, request)?.batch - 1;
        let capacity = request.capacity.or(self.facts.first().map(|fact| fact.capacity))?;
        let batch = memory::largest(&self.points(true), capacity)?.min(most);
        (batch >= request.min_batch && self.failure(batch, request).is_none()).then_some(batch)
    }

    /// Halves the batch until no failure is known for it.
    fn untried(&self, request: &BatchRequest) -> u32 {
        let mut batch = request.batch;
        while batch > request.min_batch && self.failure(batch, request).is_some() {
            batch = (batch / 2).max(request.min_batch);
        }
        batch
    }
}

#[cfg(test)]
mod tests {
    use std::slice::from_ref;

    use super::*;
    use crate::fit::ledger::tests::{entry, fact};

    fn request(batch: u32, capacity: u64) -> BatchRequest {
        BatchRequest { batch, effective_batch: 512, ranks: 1, min_batch: 1, capacity: Some(capacity) }
    }

    fn start(facts: &[Fact], request: &BatchRequest) -> u32 {
        match entry(facts).advise(request) {
            Advice::Keep => request.batch,
            Advice::Instead { batch, .. } => batch,
        }
    }

    #[test]
    fn never_where_it_is_known_to_fail() {
        let failed = fact(128, false, 12);
        let fitted = fact(64, true, 12);
        let cases: [(&[Fact], u32, u64, u32); 9] = [
            (&[], 128, 12, 128),
            (from_ref(&failed), 128, 12, 64),
            (from_ref(&failed), 256, 12, 64),
            (from_ref(&failed), 100, 12, 100),
            // Less memory than then, and more.
            (from_ref(&failed), 128, 8, 64),
            (from_ref(&failed), 128, 24, 128),
            (&[failed.clone(), fitted.clone()], 128, 12, 64),
            (&[failed.clone(), fact(96, true, 12), fitted.clone()], 128, 12, 96),
            (&[failed.clone(), fact(64, false, 12), fact(32, false, 12)], 128, 12, 16),
        ];
        for (facts, batch, capacity, want) in cases {
            assert_eq!(start(facts, &request(batch, capacity)), want, "{facts:?} {batch} in {capacity}");
        }
    }

    #[test]
    fn what_smaller_batches_held_names_the_largest() {
        let held = |batch, peak| Fact { peak: Some(peak), ..fact(batch, true, 1000) };
        let facts = [held(8, 200), held(16, 300), fact(128, false, 1000)];
        assert_eq!(start(&facts, &request(128, 1000)), 70);
        assert_eq!(start(&facts, &request(128, 350)), 16, "what is known is as good as what is a little larger");
    }

    #[test]
    fn one_pass_that_fails_says_nothing_of_fewer_gradients_but_of_more() {
        let several = fact(128, false, 12);
        assert_eq!(start(from_ref(&several), &BatchRequest { effective_batch: 128, ..request(128, 12) }), 128);
        let one = Fact { accumulates: false, ..several };
        assert_eq!(start(&[one], &request(128, 12)), 64);
    }

    #[test]
    fn the_largest_is_one_that_was_searched_for() {
        let found = Fact { largest: true, ..fact(90, true, 12) };
        assert_eq!(entry(&[fact(64, true, 12)]).largest(&request(256, 12)), None);
        assert_eq!(entry(from_ref(&found)).largest(&request(256, 12)), Some(90));
        assert_eq!(entry(from_ref(&found)).largest(&request(256, 24)), None);
        assert_eq!(entry(&[found]).largest(&BatchRequest { effective_batch: 32, ..request(32, 12) }), Some(32));
    }

    #[test]
    fn the_effective_batch_of_a_search_is_no_limit() {
        let capped = Fact { largest: true, capped: true, accumulates: false, ..fact(8, true, 12) };
        let old = Fact { capped: false, ..capped.clone() };
        let limit = Fact { largest: true, ..fact(90, true, 12) };
        let cases: [(&[Fact], u32, Option<u32>); 6] = [
            (from_ref(&capped), 8, Some(8)),
            (from_ref(&capped), 4, Some(4)),
            (from_ref(&capped), 64, None),
            (from_ref(&old), 8, Some(8)),
            (from_ref(&old), 64, None),
            (&[capped.clone(), limit], 512, Some(90)),
        ];
        for (facts, effective_batch, want) in cases {
            let request = BatchRequest { effective_batch, ..request(effective_batch, 12) };
            assert_eq!(entry(facts).largest(&request), want, "{facts:?} for {effective_batch}");
        }
    }
}

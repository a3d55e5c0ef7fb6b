//! Where to start, from what is known. Pure.

use pipe_model::memory;
use pipe_spec::pipeline::accum;
use pipe_spec::text::human_bytes;

use super::{Entry, Fact};

/// What the ledger says about a batch that is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Advice {
    /// Nothing speaks against it.
    Go,
    /// It is known to fail: start here instead.
    Instead { batch: u32, why: String },
}

/// The driver and torch do not call quite the same the whole of a card.
const SLACK: f64 = 0.02;

/// What is asked for.
#[derive(Clone, Copy, Debug)]
pub struct Wanted {
    pub batch: u32,
    pub effective_batch: u32,
    pub min_batch: u32,
    /// Bytes that there are; where nobody can tell, as many as when it was learned.
    pub capacity: Option<u64>,
}

impl Entry {
    /// The largest batch that is known to fit, where a search found it for as much memory as there is.
    pub fn largest(&self, wanted: &Wanted) -> Option<u32> {
        let there = |fact: &&Fact| {
            wanted.capacity.is_none_or(|capacity| fact.capacity.abs_diff(capacity) as f64 <= capacity as f64 * SLACK)
        };
        let found = self.facts.iter().filter(|fact| fact.fits && fact.largest).filter(there);
        found.map(|fact| fact.batch.min(wanted.effective_batch)).max()
    }

    pub fn advise(&self, wanted: &Wanted) -> Advice {
        let Some(failed) = self.failure(wanted.batch, wanted) else { return Advice::Go };
        let (batch, because) = match (self.known_to_fit(wanted), self.on_the_line(wanted)) {
            // What was measured at small batches alone may lie far below what fits.
            (Some(known), line) if line.is_none_or(|line| line <= known + known / 4) => {
                (known, "which is known to fit")
            }
            (_, Some(line)) => (line, "which fits by what smaller ones held"),
            (_, None) => (self.untried(wanted), "which nobody has tried"),
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
    fn failure(&self, batch: u32, wanted: &Wanted) -> Option<&Fact> {
        let accumulates = accum(wanted.effective_batch, batch) > 1;
        let shows = |fact: &&Fact| {
            !fact.fits
                && fact.batch <= batch
                && fact.accumulates <= accumulates
                && wanted.capacity.is_none_or(|capacity| fact.capacity as f64 * (1.0 + SLACK) >= capacity as f64)
        };
        self.facts.iter().find(shows)
    }

    /// The largest below the one that is asked for that held no more than there is.
    fn known_to_fit(&self, wanted: &Wanted) -> Option<u32> {
        let fits = |fact: &&Fact| {
            fact.fits
                && fact.batch < wanted.batch
                && fact.batch >= wanted.min_batch
                && fact.accumulates >= (accum(wanted.effective_batch, fact.batch) > 1)
                && wanted.capacity.is_none_or(|capacity| fact.peak.unwrap_or(fact.capacity) <= capacity)
                && self.failure(fact.batch, wanted).is_none()
        };
        self.facts.iter().filter(fits).map(|fact| fact.batch).max()
    }

    fn on_the_line(&self, wanted: &Wanted) -> Option<u32> {
        let most = self.failure(wanted.batch, wanted)?.batch - 1;
        let capacity = wanted.capacity.or(self.facts.first().map(|fact| fact.capacity))?;
        let batch = memory::largest(&self.points(true), capacity)?.min(most);
        (batch >= wanted.min_batch && self.failure(batch, wanted).is_none()).then_some(batch)
    }

    /// Half, and half of that, until nothing speaks against it.
    fn untried(&self, wanted: &Wanted) -> u32 {
        let mut batch = wanted.batch;
        while batch > wanted.min_batch && self.failure(batch, wanted).is_some() {
            batch = (batch / 2).max(wanted.min_batch);
        }
        batch
    }
}

#[cfg(test)]
mod tests {
    use std::slice::from_ref;

    use super::super::tests::{entry, fact};
    use super::*;

    fn wanted(batch: u32, capacity: u64) -> Wanted {
        Wanted { batch, effective_batch: 512, min_batch: 1, capacity: Some(capacity) }
    }

    fn start(facts: &[Fact], wanted: &Wanted) -> u32 {
        match entry(facts).advise(wanted) {
            Advice::Go => wanted.batch,
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
            assert_eq!(start(facts, &wanted(batch, capacity)), want, "{facts:?} {batch} in {capacity}");
        }
    }

    #[test]
    fn what_smaller_batches_held_names_the_largest() {
        let held = |batch, peak| Fact { peak: Some(peak), ..fact(batch, true, 1000) };
        let facts = [held(8, 200), held(16, 300), fact(128, false, 1000)];
        assert_eq!(start(&facts, &wanted(128, 1000)), 70);
        assert_eq!(start(&facts, &wanted(128, 350)), 16, "what is known is as good as what is a little larger");
    }

    #[test]
    fn one_pass_that_fails_says_nothing_of_fewer_gradients_but_of_more() {
        let several = fact(128, false, 12);
        assert_eq!(start(from_ref(&several), &Wanted { effective_batch: 128, ..wanted(128, 12) }), 128);
        let one = Fact { accumulates: false, ..several };
        assert_eq!(start(&[one], &wanted(128, 12)), 64);
    }

    #[test]
    fn the_largest_is_one_that_was_searched_for() {
        let found = Fact { largest: true, ..fact(90, true, 12) };
        assert_eq!(entry(&[fact(64, true, 12)]).largest(&wanted(256, 12)), None);
        assert_eq!(entry(from_ref(&found)).largest(&wanted(256, 12)), Some(90));
        assert_eq!(entry(from_ref(&found)).largest(&wanted(256, 24)), None);
        assert_eq!(entry(&[found]).largest(&Wanted { effective_batch: 32, ..wanted(32, 12) }), Some(32));
    }
}

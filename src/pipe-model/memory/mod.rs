//! The memory of a training on a card: the estimate of a step, how its samples are split into parts that fit, and the largest batch, by
//! what smaller ones hold: peaks grow with the batch along a line.

mod part_budget;
mod part_sizes;

use pipe_spec::event::Point;

pub use part_budget::{PartBudget, Recompute};
pub use part_sizes::{Layout, Lengths, even_part_sizes, part_sizes, rounded_tokens};

pub use crate::estimate::{
    AdapterWork, Estimate, MOMENT_BLOCK, Peak, ROW_MULTIPLE, SMALLEST_OF_8_BITS, Stage, StepMemory, WORKSPACE, Work,
    has_attention_kernel, owners, peak, usable,
};

/// The share of the capacity that stays free: what the allocator holds beyond what it has handed out, and what another order
/// of lengths may need.
pub const MARGIN: f64 = 0.02;

/// The largest batch whose peak, on the line through the two largest points, leaves the margin free. Nothing where there are
/// not two points, or where they do not rise.
pub fn largest(points: &[Point], capacity: u64) -> Option<u32> {
    let mut points = points.to_vec();
    points.sort_by_key(|point| point.batch);
    points.dedup_by_key(|point| point.batch);
    let [.., small, large] = points.as_slice() else { return None };
    let slope =
        large.peak.checked_sub(small.peak).filter(|rise| *rise > 0)? as f64 / f64::from(large.batch - small.batch);
    let room = capacity as f64 * (1.0 - MARGIN) - large.peak as f64;
    let batch = f64::from(large.batch) + (room / slope).floor();
    Some(batch.clamp(0.0, f64::from(u32::MAX)) as u32)
}

/// A search for the largest batch: which one to try next, after what was seen.
#[derive(Clone, Debug)]
pub struct Search {
    /// No batch beyond this is of use.
    most: u32,
    capacity: Option<u64>,
    fitted: Vec<Point>,
    /// The smallest that did not fit.
    failed: Option<u32>,
}

/// A batch this much larger than the largest that fits is not worth another try.
const MIN_GAIN: f64 = 0.04;

impl Search {
    pub fn new(most: u32, capacity: Option<u64>) -> Self {
        Self { most, capacity, fitted: Vec::new(), failed: None }
    }

    pub fn record(&mut self, batch: u32, peak: Option<u64>) {
        match peak {
            Some(peak) => self.fitted.push(Point { batch, peak }),
            None => self.failed = Some(self.failed.map_or(batch, |failed| failed.min(batch))),
        }
    }

    /// The largest that fitted so far.
    pub fn best(&self) -> Option<Point> {
        self.fitted.iter().copied().max_by_key(|point| point.batch)
    }

    /// The batch to try next; nothing when the best is good enough, or nothing fits at all.
    pub fn next(&self) -> Option<u32> {
        let end = self.failed.map_or(self.most, |failed| failed - 1);
        let Some(best) = self.best() else {
            // Two small ones first, for the line.
            return (end > 0).then(|| end.min(2));
        };
        if self.fitted.len() == 1 && self.failed.is_none() {
            return (end > best.batch).then(|| end.min(best.batch * 2));
        }
        let line = self.capacity.and_then(|capacity| largest(&self.fitted, capacity));
        let middle = best.batch + (end.saturating_sub(best.batch)).div_ceil(2);
        let next = match (line, self.failed) {
            (Some(line), None) => line.min(end),
            // The line led too far once: halfway to where it failed at most.
            (Some(line), Some(_)) => line.min(middle),
            (None, Some(_)) => middle,
            (None, None) => end.min(best.batch.saturating_mul(2)),
        };
        let worth = f64::from(next) > f64::from(best.batch) * (1.0 + MIN_GAIN);
        (next > best.batch && (worth || next <= 16)).then_some(next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    /// Searches where a batch holds `fixed + each * batch` (and `curve * batch^2`), and returns the answer with the tries.
    fn search(most: u32, capacity: u64, known: bool, held: impl Fn(u32) -> u64) -> (Option<u32>, usize) {
        let mut search = Search::new(most, known.then_some(capacity));
        let mut tries = 0;
        while let Some(batch) = search.next() {
            tries += 1;
            assert!(tries < 20, "it never ends");
            let peak = held(batch);
            search.record(batch, (peak <= capacity).then_some(peak));
        }
        (search.best().map(|point| point.batch), tries)
    }

    #[test]
    fn the_answer_fits_and_a_tenth_more_does_not() {
        for each in [1 << 20, 7 << 20, 55 << 20, 333 << 20, 3 << 30] {
            for fixed in [0, GIB, 10 * GIB] {
                for bend in [0, each / 200] {
                    for known in [true, false] {
                        let held = |batch: u32| fixed + each * u64::from(batch) + bend * u64::from(batch).pow(2);
                        let (found, tries) = search(100_000, 16 * GIB, known, held);
                        let batch = found.unwrap();
                        let more = (f64::from(batch) * 1.1).ceil().max(f64::from(batch + 1)) as u32;
                        let case = format!("each {each} fixed {fixed} bend {bend} known {known}: {batch} in {tries}");
                        let kept_free = (16.0 * GIB as f64 * MARGIN) as u64;
                        assert!(held(batch) <= 16 * GIB && held(more) > 16 * GIB - kept_free, "{case}");
                        assert!(tries <= if known { 9 } else { 19 }, "{case}");
                    }
                }
            }
        }
    }

    #[test]
    fn no_more_than_is_of_use_and_nothing_where_nothing_fits() {
        assert_eq!(search(64, GIB, true, u64::from), (Some(64), 3));
        assert_eq!(search(1, GIB, true, u64::from), (Some(1), 1));
        assert_eq!(search(64, GIB, true, |_| 2 * GIB), (None, 2));
        assert_eq!(search(64, 3 * GIB, true, |batch| u64::from(batch) * 2 * GIB).0, Some(1));
    }

    #[test]
    fn a_line_needs_two_points_that_rise() {
        let point = |batch, peak| Point { batch, peak };
        assert_eq!(largest(&[point(8, GIB)], 4 * GIB), None);
        assert_eq!(largest(&[point(8, GIB), point(16, GIB)], 4 * GIB), None);
        assert_eq!(largest(&[point(8, GIB), point(8, GIB)], 4 * GIB), None);
        let line = [point(10, 2 * GIB), point(20, 3 * GIB)];
        assert_eq!(largest(&line, 4 * GIB), Some(29), "30 would leave no margin");
        assert_eq!(largest(&line, 2 * GIB), Some(9));
        assert_eq!(largest(&line, GIB / 2), Some(0));
    }
}

//! The next point of a study. [`suggest`] is a pure function: the same study gives the same point on every machine, for random numbers are
//! the same on each.

mod grid;
#[cfg(test)]
mod tests;
mod tpe;

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use serde::{Deserialize, Serialize};

use crate::axis::{Axis, Point, Space, same};
use crate::trial::{Direction, Trial};

pub use grid::grid_size;

/// How the next point is chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Sampler {
    /// Tree-structured Parzen estimator: where good trials are dense and others are not.
    #[default]
    Tpe,
    /// Each value with equal chances.
    Random,
    /// Every combination once.
    Grid,
}

/// How often a point is drawn again because an earlier trial has it.
const REDRAWS: usize = 24;

/// The point of the trial that will have this number. Absent where every combination of a grid was tried.
///
/// `trials` are the earlier ones of the study, also those that run. Those of other spaces may be among them: a value that this space
/// does not have is left out of account.
pub fn suggest(
    sampler: Sampler,
    space: &Space,
    directions: &[Direction],
    trials: &[Trial],
    number: u64,
    seed: u64,
) -> Option<Point> {
    match sampler {
        Sampler::Tpe => Some(tpe::suggest(space, directions, trials, number, seed)),
        Sampler::Random => Some(draw_untried(space, trials, &mut Stream::new(seed, number))),
        Sampler::Grid => grid::suggest(space, trials),
    }
}

/// Whether a trial has this point, whatever became of it.
fn was_tried(point: &Point, trials: &[Trial]) -> bool {
    trials.iter().any(|trial| same_point(&trial.point, point))
}

fn same_point(left: &Point, right: &Point) -> bool {
    left.len() == right.len()
        && left.iter().all(|(name, value)| right.get(name).is_some_and(|other| same(value, other)))
}

/// A point that no trial has, where there seems to be one.
fn draw_untried(space: &Space, trials: &[Trial], stream: &mut Stream) -> Point {
    let mut point = draw(space, || stream.uniform());
    for _ in 0..REDRAWS {
        if !was_tried(&point, trials) {
            break;
        }
        point = draw(space, || stream.uniform());
    }
    point
}

/// A point that is spread out evenly with those of the numbers near this one: of every `count` in a row, each has another part of every
/// range (a Latin hypercube). McKay et al., "A Comparison of Three Methods for Selecting Values of Input Variables" (1979).
fn suggest_spread(space: &Space, trials: &[Trial], number: u64, seed: u64, count: usize) -> Point {
    let own = (number % count as u64) as usize;
    // The same for all numbers of the row.
    let mut shared = Stream::new(seed, u64::MAX - number / count as u64);
    let orders: Vec<Vec<usize>> = space.parameters.iter().map(|_| shared.shuffled(count)).collect();
    let mut stream = Stream::new(seed, number);
    let mut index = 0;
    let point = draw(space, || {
        let part = (orders[index][own] as f64 + stream.uniform()) / count as f64;
        index += 1;
        part
    });
    if was_tried(&point, trials) { draw_untried(space, trials, &mut stream) } else { point }
}

/// `part` says for each parameter, also those without a value, which part of the way from its first value to the last is taken.
fn draw(space: &Space, mut part: impl FnMut() -> f64) -> Point {
    let mut point = Point::new();
    for parameter in &space.parameters {
        let part = part();
        if parameter.applies(&point) {
            let axis = Axis::new(&parameter.domain);
            point.insert(parameter.name.clone(), axis.value(axis.at(part)));
        }
    }
    point
}

/// The random numbers of one trial.
pub(crate) struct Stream(ChaCha8Rng);

impl Stream {
    pub(crate) fn new(seed: u64, number: u64) -> Self {
        let mut key = *b"................pipe-search tune";
        key[..8].copy_from_slice(&seed.to_le_bytes());
        key[8..16].copy_from_slice(&number.to_le_bytes());
        Self(ChaCha8Rng::from_seed(key))
    }

    /// From 0 to below 1.
    pub(crate) fn uniform(&mut self) -> f64 {
        (self.0.next_u64() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// From 0 to below `count`.
    pub(crate) fn index(&mut self, count: usize) -> usize {
        ((u128::from(self.0.next_u64()) * count as u128) >> 64) as usize
    }

    /// The numbers from 0 to below `count` in any order.
    pub(crate) fn shuffled(&mut self, count: usize) -> Vec<usize> {
        let mut numbers: Vec<usize> = (0..count).collect();
        for last in (1..count).rev() {
            numbers.swap(last, self.index(last + 1));
        }
        numbers
    }

    /// An index, each with the chance that its weight has among all.
    pub(crate) fn weighted(&mut self, weights: &[f64]) -> usize {
        let mut left = self.uniform() * weights.iter().sum::<f64>();
        for (index, weight) in weights.iter().enumerate() {
            left -= weight;
            if left < 0.0 {
                return index;
            }
        }
        weights.len().saturating_sub(1)
    }

    /// Standard normal, by the method of Box and Muller.
    pub(crate) fn normal(&mut self) -> f64 {
        let radius = (-2.0 * libm::log(1.0 - self.uniform())).sqrt();
        radius * libm::cos(std::f64::consts::TAU * self.uniform())
    }
}

#[cfg(test)]
mod random_tests {
    use super::*;

    /// Changing these changes what every study tries.
    #[test]
    fn the_numbers_stay_what_they_are() {
        let mut stream = Stream::new(7, 3);
        let first = [stream.uniform(), stream.uniform()];
        assert_eq!(first, [0.15252578697943198, 0.775478231497109]);
    }

    #[test]
    fn normal_numbers_have_mean_0_and_variance_1() {
        let mut stream = Stream::new(0, 0);
        let numbers: Vec<f64> = (0..20_000).map(|_| stream.normal()).collect();
        let mean = numbers.iter().sum::<f64>() / 20_000.0;
        let variance = numbers.iter().map(|number| number * number).sum::<f64>() / 20_000.0;
        assert!(mean.abs() < 0.03 && (variance - 1.0).abs() < 0.05, "{mean} {variance}");
    }

    #[test]
    fn weights_are_chances() {
        let mut stream = Stream::new(0, 1);
        let mut counts = [0; 3];
        for _ in 0..10_000 {
            counts[stream.weighted(&[1.0, 0.0, 3.0])] += 1;
        }
        assert_eq!(counts[1], 0);
        assert!((2_300..2_700).contains(&counts[0]), "{counts:?}");
    }
}

//! The next point of a study. [`suggest`] is a pure function: the same study gives the same point on every machine.

mod grid;
mod random;
#[cfg(test)]
mod tests;
mod tpe;

use serde::{Deserialize, Serialize};

use crate::axis::{Point, Space, same};
use crate::trial::{Direction, Trial};

pub use grid::grid_size;
use random::Stream;

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
        Sampler::Random => Some(random::suggest(space, trials, &mut Stream::new(seed, number))),
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

//! The tree-structured Parzen estimator, with the settings of Optuna 5.
//!
//! Good trials make one density over the space, all the others a second one. Of some candidates from the first, that
//! one is taken where the first is largest in comparison with the second. Bergstra et al., "Algorithms for
//! Hyper-Parameter Optimization" (2011); Watanabe, "Tree-Structured Parzen Estimator: Understanding Its Algorithm
//! Components" (2023). Trials that could not run say which points are probably not allowed.

mod mixture;
mod split;

use mixture::{Candidate, Mixture};

use super::{REDRAWS, Stream, random, was_tried};
use crate::axis::{Axis, Point, Space};
use crate::trial::{Direction, Trial, TrialState};

/// So many trials must have ended, complete or pruned, before anything is learned from them.
const STARTUP_TRIALS: usize = 10;
const CANDIDATES: usize = 24;

pub(super) fn suggest(space: &Space, directions: &[Direction], trials: &[Trial], number: u64, seed: u64) -> Point {
    let learned = trials.iter().filter(|trial| matches!(trial.state, TrialState::Complete | TrialState::Pruned));
    if learned.count() < STARTUP_TRIALS {
        return random::suggest_spread(space, trials, number, seed, STARTUP_TRIALS);
    }
    let stream = &mut Stream::new(seed, number);
    let axes: Vec<Axis> = space.parameters.iter().map(|parameter| Axis::new(&parameter.domain)).collect();
    let groups = split::split(trials, directions);
    let several = directions.len() > 1;
    let good_weights = if several { vec![1.0; groups.good.len()] } else { fading_weights(groups.good.len()) };
    let good = Mixture::of(space, &axes, &groups.good, &good_weights);
    let bad = Mixture::of(space, &axes, &groups.bad, &fading_weights(groups.bad.len()));

    let allowed = Allowed::of(space, &axes, trials);

    let mut candidates = Vec::new();
    for _ in 0..CANDIDATES {
        let candidate = good.draw(stream);
        let gain = good.log_density(&candidate) - bad.log_density(&candidate);
        let score = gain + allowed.as_ref().map_or(0.0, |allowed| allowed.log_probability(&candidate));
        candidates.push((if score.is_nan() { f64::NEG_INFINITY } else { score }, candidate.point));
    }
    // A stable sort: of equal ones the first.
    candidates.sort_by(|left, right| right.0.total_cmp(&left.0));
    let best = candidates.iter().position(|(_, point)| !was_tried(point, trials));
    if let Some(index) = best {
        return candidates.swap_remove(index).1;
    }
    // The good region was tried out.
    for _ in 0..REDRAWS {
        let point = good.draw(stream).point;
        if !was_tried(&point, trials) {
            return point;
        }
    }
    random::suggest(space, trials, stream)
}

/// The weights of trials in the order of their numbers: the last 25 count fully, those before them less the older they are.
fn fading_weights(count: usize) -> Vec<f64> {
    const FULL: usize = 25;
    let fading = count.saturating_sub(FULL);
    let oldest = 1.0 / count.max(1) as f64;
    let weight = |index: usize| match index {
        _ if index >= fading => 1.0,
        0 => oldest,
        _ => oldest + (1.0 - oldest) * index as f64 / (fading - 1) as f64,
    };
    (0..count).map(weight).collect()
}

/// How probable it is that a candidate is allowed, judging from the trials near it that were and were not. The gain is multiplied by it:
/// Gelbart et al., "Bayesian Optimization with Unknown Constraints" (2014).
struct Allowed<'a> {
    feasible: Mixture<'a>,
    infeasible: Mixture<'a>,
    /// How many were for each one that was not.
    odds: f64,
}

impl<'a> Allowed<'a> {
    /// Absent where all trials were allowed, or none.
    fn of(space: &'a Space, axes: &'a [Axis<'a>], trials: &[Trial]) -> Option<Self> {
        let ended = trials.iter().filter(|trial| matches!(trial.state, TrialState::Complete | TrialState::Pruned));
        let (feasible, infeasible): (Vec<&Trial>, Vec<&Trial>) = ended.partition(|trial| trial.is_feasible());
        if feasible.is_empty() || infeasible.is_empty() {
            return None;
        }
        let mixture = |trials: &[&Trial]| Mixture::of(space, axes, trials, &vec![1.0; trials.len()]);
        let odds = feasible.len() as f64 / infeasible.len() as f64;
        Some(Self { feasible: mixture(&feasible), infeasible: mixture(&infeasible), odds })
    }

    fn log_probability(&self, candidate: &Candidate) -> f64 {
        let against = self.infeasible.log_density(candidate) - self.feasible.log_density(candidate);
        -libm::log1p(libm::exp(against) / self.odds)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_trials_fade() {
        assert_eq!(fading_weights(0), Vec::<f64>::new());
        assert_eq!(fading_weights(3), [1.0; 3]);
        assert_eq!(fading_weights(26)[..2], [1.0 / 26.0, 1.0]);
        assert_eq!(fading_weights(28)[..4], [1.0 / 28.0, (1.0 + 1.0 / 28.0) / 2.0, 1.0, 1.0]);
    }
}

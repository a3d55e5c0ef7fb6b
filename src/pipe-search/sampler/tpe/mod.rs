//! The tree-structured Parzen estimator, with the settings of Optuna 5.
//!
//! Good trials make one density over the space, all the others a second one. Of some candidates from the first, that
//! one is taken where the first is largest in comparison with the second. Bergstra et al., "Algorithms for
//! Hyper-Parameter Optimization" (2011); Watanabe, "Tree-Structured Parzen Estimator: Understanding Its Algorithm
//! Components" (2023). Trials that could not run say which points are probably not allowed.
//!
//! Good trials and all others, by rank and, with several objectives, by the hypervolume that they add.

mod mixture;

use mixture::{Candidate, Mixture};

use super::{REDRAWS, Stream, was_tried};
use crate::axis::{Axis, Point, Space};
use crate::sampler;
use crate::trial::{self, Direction, Trial, TrialState};

/// So many trials must have ended, complete or pruned, before anything is learned from them.
const STARTUP_TRIALS: usize = 10;
const CANDIDATES: usize = 24;

pub(super) fn suggest(space: &Space, directions: &[Direction], trials: &[Trial], number: u64, seed: u64) -> Point {
    let learned = trials.iter().filter(|trial| matches!(trial.state, TrialState::Complete | TrialState::Pruned));
    if learned.count() < STARTUP_TRIALS {
        return sampler::suggest_spread(space, trials, number, seed, STARTUP_TRIALS);
    }
    let stream = &mut Stream::new(seed, number);
    let axes: Vec<Axis> = space.parameters.iter().map(|parameter| Axis::new(&parameter.domain)).collect();
    let groups = split(trials, directions);
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
    sampler::draw_untried(space, trials, stream)
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

/// Both in the order of their numbers.
pub(super) struct Groups<'a> {
    pub(super) good: Vec<&'a Trial>,
    pub(super) bad: Vec<&'a Trial>,
}

/// The best tenth is good: of those that are complete first, then of those that were given up, then of those that are not allowed.
/// One that runs or waits counts as bad, so that trials beside each other differ. One that failed counts not at all.
pub(super) fn split<'a>(trials: &'a [Trial], directions: &[Direction]) -> Groups<'a> {
    let mut complete = Vec::new();
    let mut pruned = Vec::new();
    let mut infeasible = Vec::new();
    let mut running = Vec::new();
    for trial in trials {
        match trial.state {
            TrialState::Failed => {}
            TrialState::Running | TrialState::Waiting => running.push(trial),
            _ if !trial.is_feasible() => infeasible.push(trial),
            TrialState::Complete => complete.push(trial),
            TrialState::Pruned => pruned.push(trial),
        }
    }
    let left = good_count(complete.len() + pruned.len() + infeasible.len(), directions.len());
    let complete = order_complete(complete, directions, left);
    pruned.sort_by(|one, other| compare_pruned(one, other, directions));
    infeasible.sort_by(|one, other| loss(one.violation()).total_cmp(&loss(other.violation())));

    let mut good: Vec<&Trial> = complete.into_iter().chain(pruned).chain(infeasible).collect();
    let mut bad = good.split_off(left.min(good.len()));
    bad.extend(running);
    good.sort_by_key(|trial| trial.number);
    bad.sort_by_key(|trial| trial.number);
    Groups { good, bad }
}

fn good_count(ended: usize, objectives: usize) -> usize {
    let tenth = ended.div_ceil(10);
    if objectives > 1 { tenth } else { tenth.min(25) }
}

/// The best `count` first.
fn order_complete<'a>(trials: Vec<&'a Trial>, directions: &[Direction], count: usize) -> Vec<&'a Trial> {
    let (mut measured, unmeasured): (Vec<_>, Vec<_>) = trials
        .into_iter()
        .map(|trial| (trial, trial::losses(trial, directions)))
        .partition(|(_, losses)| losses.is_some());
    if directions.len() > 1 {
        let losses: Vec<Vec<f64>> = measured.iter().map(|(_, losses)| losses.clone().unwrap_or_default()).collect();
        let mut first = best_of_several(&losses, count);
        let rest: Vec<usize> = (0..measured.len()).filter(|index| !first.contains(index)).collect();
        first.extend(rest);
        measured = first.into_iter().map(|index| measured[index].clone()).collect();
    } else {
        measured.sort_by(|(_, one), (_, other)| {
            let first = |losses: &Option<Vec<f64>>| losses.as_ref().map_or(f64::INFINITY, |losses| losses[0]);
            first(one).total_cmp(&first(other))
        });
    }
    measured.into_iter().chain(unmeasured).map(|(trial, _)| trial).collect()
}

/// Front after front; of the one that is too large those that cover the most together.
fn best_of_several(losses: &[Vec<f64>], count: usize) -> Vec<usize> {
    let mut left: Vec<usize> = (0..losses.len()).collect();
    let mut best = Vec::new();
    while best.len() < count && !left.is_empty() {
        let front = trial::front(losses, &left);
        left.retain(|index| !front.contains(index));
        if best.len() + front.len() <= count {
            best.extend(front);
        } else {
            best.extend(largest_subset(losses, &front, count - best.len()));
        }
    }
    best
}

/// The later it was given up the better, and of those at the same step the better value.
fn compare_pruned(one: &Trial, other: &Trial, directions: &[Direction]) -> std::cmp::Ordering {
    let direction = directions.first().copied().unwrap_or(Direction::Minimize);
    let last = |trial: &Trial| trial.intermediate.last_key_value().map(|(step, value)| (*step, *value));
    match (last(one), last(other)) {
        (Some((step, value)), Some((other_step, other_value))) => other_step
            .cmp(&step)
            .then_with(|| loss(direction.loss(value)).total_cmp(&loss(direction.loss(other_value)))),
        (one, other) => other.is_some().cmp(&one.is_some()),
    }
}

/// A NaN is worse than all numbers.
fn loss(value: f64) -> f64 {
    if value.is_nan() { f64::INFINITY } else { value }
}

/// So many of `among` as `size` says, each next one that adds most to the volume which those before it dominate. Guerreiro et al.,
/// "Greedy Hypervolume Subset Selection in Low Dimensions" (2016).
pub(super) fn largest_subset(losses: &[Vec<f64>], among: &[usize], size: usize) -> Vec<usize> {
    let reference = reference_point(losses, among);
    if reference.iter().any(|one| !one.is_finite())
        || among.iter().any(|one| losses[*one].iter().any(|v| !v.is_finite()))
    {
        return among.iter().copied().take(size).collect();
    }
    // The volume that a point adds becomes less with each one that is chosen, never more: an old figure is a bound.
    let mut left: Vec<(usize, f64)> =
        among.iter().map(|index| (*index, volume_of(&losses[*index], &reference))).collect();
    let mut chosen: Vec<usize> = Vec::new();
    while chosen.len() < size && !left.is_empty() {
        let mut best: Option<(usize, f64)> = None;
        let mut order: Vec<usize> = (0..left.len()).collect();
        order.sort_by(|one, other| left[*other].1.total_cmp(&left[*one].1));
        for candidate in order {
            if best.is_some_and(|(_, added)| left[candidate].1 <= added) {
                break;
            }
            let added = added_volume(losses, &chosen, left[candidate].0, &reference);
            left[candidate].1 = added;
            if best.is_none_or(|(_, most)| added > most) {
                best = Some((candidate, added));
            }
        }
        let Some((candidate, _)) = best else { break };
        chosen.push(left.remove(candidate).0);
    }
    chosen
}

/// A little worse than the worst of each objective.
fn reference_point(losses: &[Vec<f64>], among: &[usize]) -> Vec<f64> {
    let objectives = among.first().map_or(0, |index| losses[*index].len());
    (0..objectives)
        .map(|objective| {
            let worst = among.iter().map(|index| losses[*index][objective]).fold(f64::NEG_INFINITY, f64::max);
            let reference = (1.1 * worst).max(0.9 * worst);
            if reference == 0.0 { 1e-12 } else { reference }
        })
        .collect()
}

fn volume_of(point: &[f64], reference: &[f64]) -> f64 {
    point.iter().zip(reference).map(|(value, reference)| (reference - value).max(0.0)).product()
}

/// The volume that a point dominates and the chosen ones do not.
fn added_volume(losses: &[Vec<f64>], chosen: &[usize], point: usize, reference: &[f64]) -> f64 {
    let within: Vec<Vec<f64>> = chosen.iter().map(|other| worse_of(&losses[*other], &losses[point])).collect();
    volume_of(&losses[point], reference) - volume(&within, reference)
}

/// The volume that all of them dominate together: one after the other, each without what the following ones dominate too. While et al., "A Fast
/// Way of Calculating Exact Hypervolumes" (2012).
fn volume(points: &[Vec<f64>], reference: &[f64]) -> f64 {
    let mut sum = 0.0;
    for (index, point) in points.iter().enumerate() {
        let mut within: Vec<Vec<f64>> = Vec::new();
        for other in &points[index + 1..] {
            let limited = worse_of(other, point);
            if within.iter().any(|one| covers(one, &limited)) {
                continue;
            }
            within.retain(|one| !covers(&limited, one));
            within.push(limited);
        }
        sum += volume_of(point, reference) - volume(&within, reference);
    }
    sum
}

fn worse_of(one: &[f64], other: &[f64]) -> Vec<f64> {
    one.iter().zip(other).map(|(one, other)| one.max(*other)).collect()
}

fn covers(one: &[f64], other: &[f64]) -> bool {
    one.iter().zip(other).all(|(one, other)| one <= other)
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

#[cfg(test)]
mod split_tests {
    use super::*;
    use crate::axis::Point;

    /// The numbers of the good trials, of as many as fill the rest with worse ones up to `count`.
    fn good(mut trials: Vec<Trial>, count: usize, directions: &[Direction]) -> Vec<u64> {
        while trials.len() < count {
            let mut worst = trial(trials.len() as u64, TrialState::Pruned);
            worst.constraints = vec![1000.0];
            trials.push(worst);
        }
        split(&trials, directions).good.iter().map(|trial| trial.number).collect()
    }

    fn trial(number: u64, state: TrialState) -> Trial {
        let mut trial = Trial::new(number, Point::new());
        trial.state = state;
        trial
    }

    fn complete(number: u64, values: &[f64]) -> Trial {
        Trial { values: values.to_vec(), ..trial(number, TrialState::Complete) }
    }

    fn pruned(number: u64, step: u64, value: f64) -> Trial {
        Trial { intermediate: [(step, value)].into(), ..trial(number, TrialState::Pruned) }
    }

    #[test]
    fn a_tenth_is_good() {
        for (ended, objectives, expected) in [(0, 1, 0), (1, 1, 1), (10, 1, 1), (11, 1, 2), (900, 1, 25), (900, 2, 90)]
        {
            assert_eq!(good_count(ended, objectives), expected, "{ended}");
        }
    }

    #[test]
    fn complete_before_pruned_before_infeasible() {
        let one = [Direction::Minimize];
        let trials = || {
            vec![
                complete(0, &[9.0]),
                pruned(1, 5, f64::NAN),
                pruned(2, 5, 3.0),
                pruned(3, 7, 99.0),
                Trial { constraints: vec![0.1], ..complete(4, &[0.0]) },
                complete(5, &[f64::NAN]),
                complete(6, &[8.0]),
                trial(7, TrialState::Pruned),
                trial(8, TrialState::Running),
                trial(9, TrialState::Failed),
            ]
        };
        let table: [(usize, &[u64]); 5] =
            [(10, &[6]), (20, &[0, 6]), (40, &[0, 3, 5, 6]), (50, &[0, 2, 3, 5, 6]), (80, &[0, 1, 2, 3, 4, 5, 6, 7])];
        for (count, expected) in table {
            // Two of them have not ended.
            assert_eq!(good(trials(), count + 2, &one), expected, "{count}");
        }
        let greatest = good(trials(), 12, &[Direction::Maximize]);
        assert_eq!(greatest, [0]);
    }

    #[test]
    fn those_that_run_are_bad_and_those_that_failed_nothing() {
        let trials = [
            trial(2, TrialState::Running),
            complete(1, &[1.0]),
            trial(0, TrialState::Waiting),
            trial(3, TrialState::Failed),
        ];
        let groups = split(&trials, &[Direction::Minimize]);
        let numbers = |trials: &[&Trial]| trials.iter().map(|trial| trial.number).collect::<Vec<_>>();
        assert_eq!((numbers(&groups.good), numbers(&groups.bad)), (vec![1], vec![0, 2]));
    }

    #[test]
    fn fronts_come_one_after_the_other() {
        let two = [Direction::Minimize, Direction::Maximize];
        let trials = || {
            vec![
                complete(0, &[1.0, 1.0]),
                complete(1, &[2.0, 0.5]),
                complete(2, &[5.0, 9.0]),
                complete(3, &[6.0, 8.0]),
                complete(4, &[f64::NAN, 9.0]),
            ]
        };
        assert_eq!(good(trials(), 20, &two), [0, 2]);
        assert_eq!(good(trials(), 40, &two), [0, 1, 2, 3]);
        assert_eq!(good(trials(), 50, &two), [0, 1, 2, 3, 4]);
    }

    #[test]
    fn volumes_of_overlapping_boxes() {
        let table: [(&[[f64; 3]], f64); 3] = [
            (&[[0.0, 0.0, 0.0]], 8.0),
            (&[[0.0, 0.0, 1.0], [0.0, 1.0, 0.0]], 6.0),
            (&[[0.0, 0.0, 1.0], [0.0, 1.0, 0.0], [1.0, 0.0, 0.0], [1.0, 1.0, 1.0]], 7.0),
        ];
        for (points, expected) in table {
            let points: Vec<Vec<f64>> = points.iter().map(|point| point.to_vec()).collect();
            assert_eq!(volume(&points, &[2.0, 2.0, 2.0]), expected, "{points:?}");
        }
    }

    #[test]
    fn the_subset_covers_the_front() {
        // Three close to each other in the middle, and both ends.
        let losses: Vec<Vec<f64>> =
            [[0.0, 10.0], [4.9, 5.1], [5.0, 5.0], [5.1, 4.9], [10.0, 0.0]].iter().map(|one| one.to_vec()).collect();
        let chosen = largest_subset(&losses, &[0, 1, 2, 3, 4], 3);
        assert_eq!(chosen[0], 2);
        assert!(chosen.contains(&0) && chosen.contains(&4), "{chosen:?}");
        assert_eq!(largest_subset(&[vec![f64::INFINITY, 0.0], vec![0.0, 1.0]], &[0, 1], 1), [0]);
    }
}

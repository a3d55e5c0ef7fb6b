//! When a trial is given up before its end.

use serde::{Deserialize, Serialize};

use crate::trial::{Direction, Trial, TrialState};

/// The rule by which trials are given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Pruner {
    None,
    /// A trial whose best value so far is worse than the median of the complete trials at the same step.
    Median {
        /// So many trials must be complete.
        startup_trials: u64,
        /// The first step at which a trial may be given up.
        warmup_steps: u64,
    },
    /// Asynchronous successive halving: on reaching step `min_steps`, and `reduction` times as many steps each next time, a trial goes
    /// on only where it is among the best of those that came so far. Li et al., "A System for Massively Parallel Hyperparameter
    /// Tuning" (2020).
    Asha {
        min_steps: u64,
        /// One in so many goes on.
        reduction: u64,
    },
}

impl Pruner {
    pub const MEDIAN: Self = Self::Median { startup_trials: 5, warmup_steps: 0 };
    pub const ASHA: Self = Self::Asha { min_steps: 1, reduction: 4 };
}

/// The first step of the trial's intermediate values after `judged` at which it is given up: those up to there it has been kept at, when
/// fewer others had come as far. What is not a number ends a trial at once.
///
/// `others` may hold the trial itself, which is left out.
pub fn prunes_at(
    pruner: Pruner,
    direction: Direction,
    trial: &Trial,
    others: &[Trial],
    judged: Option<u64>,
) -> Option<u64> {
    let others: Vec<&Trial> = others.iter().filter(|other| other.number != trial.number).collect();
    let by_rule = match pruner {
        Pruner::None => return None,
        Pruner::Median { startup_trials, warmup_steps } => {
            let first_step = judged.map_or(0, |judged| judged + 1).max(warmup_steps);
            median_step(startup_trials, first_step, direction, trial, &others)
        }
        Pruner::Asha { min_steps, reduction } => {
            let first_step = judged.map_or(0, |judged| judged + 1);
            halving_step((min_steps, reduction), first_step, direction, trial, &others)
        }
    };
    let not_a_number = trial.intermediate.iter().find(|(_, value)| value.is_nan()).map(|(step, _)| *step);
    by_rule.into_iter().chain(not_a_number).min()
}

fn median_step(
    startup_trials: u64,
    first_step: u64,
    direction: Direction,
    trial: &Trial,
    others: &[&Trial],
) -> Option<u64> {
    let complete: Vec<&&Trial> = others.iter().filter(|other| other.state == TrialState::Complete).collect();
    if (complete.len() as u64) < startup_trials {
        return None;
    }
    let mut best = f64::INFINITY;
    for (step, value) in &trial.intermediate {
        best = best.min(direction.loss(*value));
        if *step < first_step {
            continue;
        }
        let at_step = complete.iter().filter_map(|other| other.intermediate.get(step));
        if median(at_step.map(|value| direction.loss(*value)).collect()).is_some_and(|median| best > median) {
            return Some(*step);
        }
    }
    None
}

fn median(mut values: Vec<f64>) -> Option<f64> {
    values.retain(|value| !value.is_nan());
    values.sort_by(f64::total_cmp);
    let upper = *values.get(values.len() / 2)?;
    let lower = values[(values.len() - 1) / 2];
    Some(if lower == upper { upper } else { f64::midpoint(lower, upper) })
}

fn halving_step(
    (min_steps, reduction): (u64, u64),
    first_step: u64,
    direction: Direction,
    trial: &Trial,
    others: &[&Trial],
) -> Option<u64> {
    let reduction = reduction.max(2);
    let mut rung = min_steps.max(1);
    while let Some((step, value)) = arrival(trial, rung) {
        let loss = direction.loss(value);
        let mut reached: Vec<f64> = others
            .iter()
            .filter_map(|other| arrival(other, rung))
            .map(|(_, value)| direction.loss(value))
            .filter(|loss| !loss.is_nan())
            .chain([loss])
            .collect();
        reached.sort_by(f64::total_cmp);
        // With fewer than one in `reduction`, only the best goes on.
        let kept = (reached.len() / reduction as usize).max(1);
        if step >= first_step && (loss.is_nan() || loss > reached[kept - 1]) {
            return Some(step);
        }
        rung = rung.checked_mul(reduction)?;
    }
    None
}

/// The first value at this step or later.
fn arrival(trial: &Trial, rung: u64) -> Option<(u64, f64)> {
    trial.intermediate.range(rung..).next().map(|(step, value)| (*step, *value))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::axis::Point;
    use Direction::{Maximize, Minimize};

    /// As `prunes_at` for a trial of which no step has been judged.
    fn prunes_at(pruner: Pruner, direction: Direction, trial: &Trial, others: &[Trial]) -> Option<u64> {
        super::prunes_at(pruner, direction, trial, others, None)
    }

    fn trial(number: u64, state: TrialState, intermediate: &[(u64, f64)]) -> Trial {
        let mut trial = Trial::new(number, Point::new());
        trial.state = state;
        trial.intermediate = intermediate.iter().copied().collect();
        trial
    }

    /// 40 trials of up to 20 steps, one after the other: at which step each is given up; -1 where it is not.
    fn steps_of_a_study(pruner: Pruner, direction: Direction) -> Vec<i64> {
        let value = |number: u64, step: u64| {
            ((number * 37) % 101) as f64 / 10.0 + ((number * number + step * 17) % 23) as f64 / (step as f64 + 1.0)
        };
        let mut others: Vec<Trial> = Vec::new();
        let mut steps = Vec::new();
        for number in 0..40 {
            let mut running = trial(number, TrialState::Running, &[]);
            let mut given_up = None;
            for step in 0..20 {
                running.intermediate.insert(step, value(number, step));
                given_up = prunes_at(pruner, direction, &running, &others);
                if given_up.is_some() {
                    assert_eq!(given_up, Some(step), "as soon as it can be");
                    break;
                }
            }
            running.state = if given_up.is_some() { TrialState::Pruned } else { TrialState::Complete };
            assert_eq!(prunes_at(pruner, direction, &running, &others), given_up, "the same decision afterwards");
            steps.push(given_up.map_or(-1, |step| step as i64));
            others.push(running);
        }
        steps
    }

    /// The decisions of Optuna 5.0.0's `MedianPruner` and `SuccessiveHalvingPruner` about the same study.
    #[test]
    #[rustfmt::skip]
    fn the_same_trials_are_given_up_as_by_optuna() {
        let late_median = Pruner::Median { startup_trials: 2, warmup_steps: 3 };
        let thirds = Pruner::Asha { min_steps: 2, reduction: 3 };
        let table = [
            (Pruner::MEDIAN, Minimize, [-1, -1, -1, -1, -1, 0, 0, 2, 0, 0, 0, -1, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, -1, 4, 0, 19, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 3]),
            (Pruner::MEDIAN, Maximize, [-1, -1, -1, -1, -1, -1, -1, 0, -1, -1, -1, 0, 0, -1, 0, -1, 0, -1, 0, -1, 0, 0, 0, 0, 0, 0, 0, -1, 0, -1, 0, -1, -1, 0, 0, 0, 0, -1, -1, 0]),
            (late_median, Minimize, [-1, -1, 3, -1, 3, 3, 9, 3, 3, 5, 3, -1, 3, 3, 15, 3, 3, 7, 3, 3, 3, 3, -1, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 15, 3, 3, 4, 3, 3, 3]),
            (late_median, Maximize, [-1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, 3, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1]),
            (Pruner::ASHA, Minimize, [-1, 1, 1, 16, 1, 1, 1, 1, 1, 1, 1, -1, 4, 1, 1, 1, 1, 1, 1, 1, 4, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 4, 4, 1, 4, 1, 1, 1]),
            (Pruner::ASHA, Maximize, [-1, 4, -1, 1, 1, -1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, -1, 1, 1, 1, 1, 4, 1, 1, 4, 1, 1, 1, 1, 1, -1, 1, 1, 1, 1, 1, 1, 1, 1, 1]),
            (thirds, Minimize, [-1, 2, 2, 2, 2, 2, 6, 2, 2, 6, 2, 6, 2, 2, 6, 2, 2, 6, 2, 2, 2, 2, 6, 2, 2, 2, 2, 2, 2, 6, 2, 6, 2, 2, 2, 2, 2, 6, 2, 2]),
            (thirds, Maximize, [-1, -1, -1, 2, 2, -1, 2, 2, -1, 2, 6, 2, 2, 18, 2, 2, -1, 2, 2, 2, 2, 6, 2, 2, 6, 2, 6, 2, 2, 2, -1, 2, 2, 2, 2, 18, 2, 2, 6, 2]),
        ];
        for (pruner, direction, expected) in table {
            assert_eq!(steps_of_a_study(pruner, direction), expected, "{pruner:?} {direction:?}");
        }
    }

    #[test]
    fn only_complete_trials_count_for_the_median() {
        use TrialState::{Complete, Pruned, Running};
        let pruner = Pruner::Median { startup_trials: 2, warmup_steps: 0 };
        let worst = trial(9, Running, &[(1, 5.0), (2, 9.0)]);
        let table: [([TrialState; 3], Option<u64>); 3] = [
            ([Complete, Complete, Pruned], Some(1)),
            ([Complete, Pruned, Running], None),
            ([Running, Running, Complete], None),
        ];
        for (states, expected) in table {
            let others: Vec<Trial> = states
                .iter()
                .enumerate()
                .map(|(number, state)| trial(number as u64, *state, &[(1, 1.0), (2, 1.0)]))
                .collect();
            assert_eq!(prunes_at(pruner, Minimize, &worst, &others), expected, "{states:?}");
        }
    }

    #[test]
    fn steps_that_no_other_has_are_passed() {
        let others: Vec<Trial> = (0..5).map(|number| trial(number, TrialState::Complete, &[(10, 1.0)])).collect();
        let worse = trial(9, TrialState::Running, &[(5, 8.0), (9, 8.0), (10, 8.0)]);
        assert_eq!(prunes_at(Pruner::MEDIAN, Minimize, &worse, &others), Some(10));
        assert_eq!(prunes_at(Pruner::MEDIAN, Maximize, &worse, &others), None);
    }

    #[test]
    fn what_is_not_a_number_ends_a_trial() {
        let nan = trial(0, TrialState::Running, &[(1, 1.0), (2, f64::NAN), (3, 1.0)]);
        let warming_up = Pruner::Median { startup_trials: 5, warmup_steps: 100 };
        let table = [
            (Pruner::None, None),
            (Pruner::MEDIAN, Some(2)),
            (warming_up, Some(2)),
            (Pruner::Asha { min_steps: 50, reduction: 4 }, Some(2)),
        ];
        for (pruner, expected) in table {
            assert_eq!(prunes_at(pruner, Minimize, &nan, &[]), expected, "{pruner:?}");
        }
    }

    #[test]
    fn values_of_others_that_are_not_numbers_do_not_count() {
        let mut others: Vec<Trial> =
            (0..6).map(|number| trial(number, TrialState::Complete, &[(1, f64::NAN), (4, f64::INFINITY)])).collect();
        let running = trial(9, TrialState::Running, &[(1, 1.0), (4, 2.0)]);
        assert_eq!(prunes_at(Pruner::MEDIAN, Minimize, &running, &others), None);
        assert_eq!(prunes_at(Pruner::ASHA, Minimize, &running, &others), None);
        others[0].intermediate.insert(1, 0.5);
        assert_eq!(prunes_at(Pruner::MEDIAN, Minimize, &running, &others), Some(1));
        assert_eq!(prunes_at(Pruner::ASHA, Minimize, &running, &others), Some(1));
    }

    #[test]
    fn steps_that_jump_over_rungs_are_judged_at_the_next() {
        let others: Vec<Trial> =
            (0..8).map(|number| trial(number, TrialState::Complete, &[(7, number as f64)])).collect();
        let pruner = Pruner::Asha { min_steps: 5, reduction: 4 };
        let table = [(0.5, None), (1.0, None), (1.5, Some(9))];
        for (value, expected) in table {
            let running = trial(9, TrialState::Running, &[(3, 99.0), (9, value)]);
            assert_eq!(prunes_at(pruner, Minimize, &running, &others), expected, "{value}");
        }
    }

    #[test]
    fn a_step_is_judged_once() {
        let of = |number: u64, values: &[(u64, f64)]| {
            let mut trial = Trial::new(number, crate::axis::Point::new());
            trial.intermediate = values.iter().copied().collect();
            trial
        };
        // It was alone when it came to steps 1 and 2; one that came later was better there.
        let first = of(0, &[(1, 1.0), (2, 0.9), (3, 0.5), (4, 0.1)]);
        let later = [of(1, &[(1, 0.5), (2, 0.4)])];
        let asha = Pruner::Asha { min_steps: 1, reduction: 2 };
        assert_eq!(super::prunes_at(asha, Direction::Minimize, &first, &later, None), Some(1));
        assert_eq!(super::prunes_at(asha, Direction::Minimize, &first, &later, Some(2)), None);
    }
}

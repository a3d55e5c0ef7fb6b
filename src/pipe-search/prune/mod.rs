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
mod tests;

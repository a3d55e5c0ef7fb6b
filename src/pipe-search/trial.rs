//! One trial of a study, as the journal keeps it and samplers learn from it, and which trials are the best.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::axis::{Domain, Point};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Direction {
    Minimize,
    Maximize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TrialState {
    /// Asked for, and not begun.
    Waiting,
    Running,
    Complete,
    /// Given up before its end, or never begun because it cannot fit.
    Pruned,
    Failed,
}

impl Direction {
    /// The value with the sign that makes smaller ones better.
    pub fn loss(self, value: f64) -> f64 {
        match self {
            Self::Minimize => value,
            Self::Maximize => -value,
        }
    }
}

impl TrialState {
    pub fn has_ended(self) -> bool {
        matches!(self, Self::Complete | Self::Pruned | Self::Failed)
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct Trial {
    /// Counted from 0 in the study.
    pub number: u64,
    pub state: TrialState,
    pub point: Point,
    /// The domain that each value of the point was taken from.
    pub domains: BTreeMap<String, Domain>,
    /// One for each objective, of a trial that is complete.
    pub values: Vec<f64>,
    /// The first objective by step, where it is measured on the way.
    pub intermediate: BTreeMap<u64, f64>,
    /// How far it is from being allowed: of each constraint, above 0 where it does not hold.
    pub constraints: Vec<f64>,
    pub user_attrs: BTreeMap<String, Value>,
    pub system_attrs: BTreeMap<String, Value>,
    /// Seconds since the Unix epoch.
    pub began: Option<f64>,
    pub ended: Option<f64>,
}

impl Trial {
    pub fn new(number: u64, point: Point) -> Self {
        Self {
            number,
            state: TrialState::Running,
            point,
            domains: BTreeMap::new(),
            values: Vec::new(),
            intermediate: BTreeMap::new(),
            constraints: Vec::new(),
            user_attrs: BTreeMap::new(),
            system_attrs: BTreeMap::new(),
            began: None,
            ended: None,
        }
    }

    /// The sum of what does not hold; 0 where all constraints do.
    pub fn violation(&self) -> f64 {
        self.constraints.iter().filter(|constraint| **constraint > 0.0).sum()
    }

    pub fn is_feasible(&self) -> bool {
        self.violation() == 0.0
    }
}

/// The complete and allowed trials than which no other is better in all objectives. With one objective the best, of equal ones the
/// earliest.
pub fn best(trials: &[Trial], directions: &[Direction]) -> Vec<usize> {
    let mut measured: Vec<usize> = Vec::new();
    let mut all: Vec<Vec<f64>> = vec![Vec::new(); trials.len()];
    for (index, trial) in trials.iter().enumerate() {
        if trial.state == TrialState::Complete
            && trial.is_feasible()
            && let Some(losses) = losses(trial, directions)
        {
            all[index] = losses;
            measured.push(index);
        }
    }
    if directions.len() > 1 {
        return front(&all, &measured);
    }
    let first = |index: &usize| all[*index][0];
    let number = |index: &usize| trials[*index].number;
    let best = measured
        .into_iter()
        .min_by(|one, other| first(one).total_cmp(&first(other)).then_with(|| number(one).cmp(&number(other))));
    best.into_iter().collect()
}

/// The values of a trial, smaller ones better. Absent where one is missing or not a number.
pub(crate) fn losses(trial: &Trial, directions: &[Direction]) -> Option<Vec<f64>> {
    if trial.values.is_empty() || trial.values.len() != directions.len() || trial.values.iter().any(|one| one.is_nan())
    {
        return None;
    }
    // Adding 0 makes -0 the same as 0.
    Some(trial.values.iter().zip(directions).map(|(value, direction)| direction.loss(*value) + 0.0).collect())
}

/// Those of `among` that none of the others dominates.
pub(crate) fn front(losses: &[Vec<f64>], among: &[usize]) -> Vec<usize> {
    let is_dominated = |index: usize| among.iter().any(|other| dominates(&losses[*other], &losses[index]));
    among.iter().copied().filter(|index| !is_dominated(*index)).collect()
}

fn dominates(one: &[f64], other: &[f64]) -> bool {
    let pairs = || one.iter().zip(other);
    pairs().all(|(one, other)| one <= other) && pairs().any(|(one, other)| one < other)
}

#[cfg(test)]
mod tests {
    use Direction::{Maximize, Minimize};

    use super::*;
    use crate::axis::Point;

    fn trial(number: u64, values: &[f64]) -> Trial {
        let mut trial = Trial::new(number, Point::new());
        trial.state = TrialState::Complete;
        trial.values = values.to_vec();
        trial
    }

    #[test]
    fn the_best_of_one_objective() {
        let table: [(&[f64], Direction, &[usize]); 6] = [
            (&[], Minimize, &[]),
            (&[3.0, 1.0, 1.0, 2.0], Minimize, &[1]),
            (&[3.0, 1.0, 3.0], Maximize, &[0]),
            (&[f64::NAN, 5.0], Minimize, &[1]),
            (&[f64::NAN], Maximize, &[]),
            (&[f64::INFINITY, f64::NEG_INFINITY], Maximize, &[0]),
        ];
        for (values, direction, expected) in table {
            let trials: Vec<Trial> =
                values.iter().enumerate().map(|(index, one)| trial(index as u64, &[*one])).collect();
            assert_eq!(best(&trials, &[direction]), expected, "{values:?} {direction:?}");
        }
    }

    #[test]
    fn only_complete_and_allowed_trials_count() {
        let mut trials = vec![trial(0, &[1.0]), trial(1, &[2.0]), trial(2, &[3.0]), trial(3, &[4.0])];
        trials[0].state = TrialState::Pruned;
        trials[1].constraints = vec![-1.0, 0.5];
        trials[2].constraints = vec![-1.0, 0.0];
        assert_eq!(best(&trials, &[Minimize]), [2]);
    }

    #[test]
    fn the_front_of_two_objectives() {
        let trials = vec![
            trial(0, &[1.0, 1.0]),
            trial(1, &[2.0, 5.0]),
            trial(2, &[2.0, 4.0]),
            trial(3, &[3.0, 9.0]),
            trial(4, &[1.0, 1.0]),
            trial(5, &[0.5, f64::NAN]),
            trial(6, &[0.5]),
        ];
        assert_eq!(best(&trials, &[Minimize, Maximize]), [0, 1, 3, 4]);
    }
}

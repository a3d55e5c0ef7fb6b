//! How the trials of a study ended, which are the best, and what the runner recorded about them.

use std::collections::{BTreeMap, BTreeSet};

use pipe_search::{Direction, Trial, TrialState};
use serde_json::Value;

use crate::report::html::axis::usable;

/// The complete trials in order.
pub struct Ranking<'a> {
    /// Those with a number for each objective: the best, then the others by their first objective.
    pub ranked: Vec<&'a Trial>,
    /// One trial; of several objectives, those that no other dominates, by the first objective.
    pub best: Vec<&'a Trial>,
    levels: BTreeMap<u64, Level>,
}

/// How strong a trial is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    Poor,
    Fair,
    Good,
    Best,
}

impl Level {
    pub const ALL: [Self; 4] = [Self::Poor, Self::Fair, Self::Good, Self::Best];

    pub fn class(self) -> &'static str {
        match self {
            Self::Poor => "poor",
            Self::Fair => "fair",
            Self::Good => "good",
            Self::Best => "best",
        }
    }
}

impl<'a> Ranking<'a> {
    pub fn new(trials: &'a [Trial], objectives: &[(String, Direction)]) -> Self {
        let counts = |trial: &&Trial| {
            Outcome::of(trial) == Outcome::Complete && (0..objectives.len()).all(|index| value(trial, index).is_some())
        };
        let mut ranked: Vec<&Trial> = trials.iter().filter(counts).collect();
        let first = objectives.first().map_or(Direction::Minimize, |objective| objective.1);
        ranked.sort_by(|a, b| cost(a, 0, first).total_cmp(&cost(b, 0, first)).then(a.number.cmp(&b.number)));
        let best = match objectives.len() {
            0 => Vec::new(),
            1 => ranked.iter().take(1).copied().collect(),
            _ => {
                let directions: Vec<(usize, Direction)> =
                    objectives.iter().map(|objective| objective.1).enumerate().collect();
                front(&ranked, &directions)
            }
        };
        let on_front: BTreeSet<u64> = best.iter().map(|trial| trial.number).collect();
        ranked.sort_by_key(|trial| !on_front.contains(&trial.number));
        let level = |index: usize, trial: &Trial| match index * 10 / ranked.len() {
            _ if on_front.contains(&trial.number) => Level::Best,
            _ if objectives.len() > 1 => Level::Fair,
            0 => Level::Good,
            1..4 => Level::Fair,
            _ => Level::Poor,
        };
        let levels = ranked.iter().enumerate().map(|(index, trial)| (trial.number, level(index, trial))).collect();
        Self { ranked, best, levels }
    }

    /// The level of a trial; absent where it is not ranked.
    pub fn level(&self, trial: &Trial) -> Option<Level> {
        self.levels.get(&trial.number).copied()
    }

    pub fn is_best(&self, trial: &Trial) -> bool {
        self.level(trial) == Some(Level::Best)
    }

    /// At most `most` of `trials` in their order: a third are the best, the others an even selection.
    pub fn select(&self, trials: Vec<&'a Trial>, most: usize) -> Vec<&'a Trial> {
        if trials.len() <= most {
            return trials;
        }
        let present: BTreeSet<u64> = trials.iter().map(|trial| trial.number).collect();
        let ranked = self.ranked.iter().map(|trial| trial.number).filter(|number| present.contains(number));
        let mut kept: BTreeSet<u64> = ranked.take(most / 3).collect();
        let others: Vec<u64> =
            trials.iter().map(|trial| trial.number).filter(|number| !kept.contains(number)).collect();
        let free = most.saturating_sub(kept.len());
        kept.extend((0..free).map(|index| others[index * others.len() / free]));
        trials.into_iter().filter(|trial| kept.contains(&trial.number)).collect()
    }
}

/// A sentence where not all trials are drawn.
pub fn selection_note(drawn: usize, all: usize) -> String {
    if drawn >= all {
        return String::new();
    }
    format!(" Drawn: {drawn} of {all} trials, the best and an even selection of the others.")
}

/// The value of an objective, less always better.
fn cost(trial: &Trial, objective: usize, direction: Direction) -> f64 {
    let value = value(trial, objective).unwrap_or(f64::INFINITY);
    if direction == Direction::Maximize { -value } else { value }
}

/// The trials that no other dominates, in their order. The first of several trials with the same training stands for all.
pub fn front<'a>(trials: &[&'a Trial], objectives: &[(usize, Direction)]) -> Vec<&'a Trial> {
    let costs = |trial: &Trial| -> Vec<f64> { objectives.iter().map(|(index, to)| cost(trial, *index, *to)).collect() };
    let mut front: Vec<(&Trial, Vec<f64>)> = Vec::new();
    for trial in trials.iter().filter(|trial| same_as(trial).is_none()) {
        let own = costs(trial);
        if front.iter().any(|(_, other)| dominates(other, &own)) {
            continue;
        }
        front.retain(|(_, other)| !dominates(&own, other));
        front.push((trial, own));
    }
    front.into_iter().map(|(trial, _)| trial).collect()
}

/// Whether `one` is nowhere worse, and somewhere better.
fn dominates(one: &[f64], other: &[f64]) -> bool {
    let pairs = || one.iter().zip(other);
    pairs().all(|(one, other)| one <= other) && pairs().any(|(one, other)| one < other)
}

/// How a trial ended. Unlike the state of the journal, it tells what cannot fit from what was given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Complete,
    Pruned,
    /// Never launched since it cannot fit, or launched and outside a constraint.
    Infeasible,
    Failed,
    Running,
    Waiting,
}

impl Outcome {
    pub const ALL: [Self; 6] =
        [Self::Complete, Self::Pruned, Self::Infeasible, Self::Failed, Self::Running, Self::Waiting];

    pub fn of(trial: &Trial) -> Self {
        let infeasible = flag(trial, "infeasible") || !trial.is_feasible();
        match trial.state {
            TrialState::Complete | TrialState::Pruned if infeasible => Self::Infeasible,
            TrialState::Complete => Self::Complete,
            TrialState::Pruned => Self::Pruned,
            TrialState::Failed => Self::Failed,
            TrialState::Running => Self::Running,
            TrialState::Waiting => Self::Waiting,
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::Complete => "complete",
            Self::Pruned => "pruned",
            Self::Infeasible => "infeasible",
            Self::Failed => "failed",
            Self::Running => "running",
            Self::Waiting => "waiting",
        }
    }

    /// The tag with its name, coloured as outcomes of runs are.
    pub fn tag(self) -> String {
        let class = match self {
            Self::Complete => "finished",
            Self::Infeasible => "oom",
            other => other.name(),
        };
        format!("<span class=\"tag {class}\">{}</span>", self.name())
    }
}

/// The value of an objective, if it can be drawn.
pub fn value(trial: &Trial, objective: usize) -> Option<f64> {
    trial.values.get(objective).copied().and_then(usable)
}

/// The last of the values on the way that can be drawn.
pub fn last_intermediate(trial: &Trial) -> Option<f64> {
    trial.intermediate.values().rev().find_map(|value| usable(*value))
}

/// A number that the runner recorded. It may be absent: Optuna records nothing.
pub fn attribute(trial: &Trial, name: &str) -> Option<f64> {
    trial.user_attrs.get(name).and_then(Value::as_f64).and_then(usable).filter(|number| *number >= 0.0)
}

/// A text that the runner recorded.
pub fn text_attribute<'a>(trial: &'a Trial, name: &str) -> Option<&'a str> {
    trial.user_attrs.get(name).and_then(Value::as_str)
}

/// Whether the runner recorded this fact.
pub fn flag(trial: &Trial, name: &str) -> bool {
    trial.user_attrs.get(name).and_then(Value::as_bool).unwrap_or(false)
}

pub fn seconds(trial: &Trial) -> Option<f64> {
    let between = || Some(trial.ended? - trial.began?).filter(|seconds| seconds.is_finite() && *seconds >= 0.0);
    attribute(trial, "seconds").or_else(between)
}

/// Whether it ran more than once because memory ran out.
pub fn was_retried(trial: &Trial) -> bool {
    attribute(trial, "attempts").is_some_and(|attempts| attempts > 1.0)
}

/// The trial whose training this one would have repeated.
pub fn same_as(trial: &Trial) -> Option<u64> {
    trial.user_attrs.get("same_as").and_then(Value::as_u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::html::study::samples::{infeasible, trial};
    use serde_json::json;

    fn numbers(trials: &[&Trial]) -> Vec<u64> {
        trials.iter().map(|trial| trial.number).collect()
    }

    #[test]
    fn the_best_of_one_objective() {
        let mut trials = [trial(0, 3.0), trial(1, 1.0), trial(2, f64::NAN), trial(3, 2.0), trial(4, 0.5)];
        trials[4].constraints = vec![1.0];
        let order = |direction| {
            let objectives = [("loss".to_owned(), direction)];
            let ranking = Ranking::new(&trials, &objectives);
            (numbers(&ranking.best), numbers(&ranking.ranked))
        };
        assert_eq!(order(Direction::Minimize), (vec![1], vec![1, 3, 0]));
        assert_eq!(order(Direction::Maximize), (vec![0], vec![0, 3, 1]));
    }

    #[test]
    fn the_front_of_two_objectives() {
        let pairs = [(1.0, 1.0), (2.0, 5.0), (3.0, 4.0), (4.0, 9.0), (4.0, 9.0)];
        let mut trials: Vec<Trial> = (0..).zip(pairs).map(|(number, pair)| trial(number, pair.0)).collect();
        for (one, pair) in trials.iter_mut().zip(pairs) {
            one.values = vec![pair.0, pair.1];
        }
        trials[4].user_attrs.insert("same_as".to_owned(), json!(3));
        let objectives = [("loss".to_owned(), Direction::Minimize), ("accuracy".to_owned(), Direction::Maximize)];
        let ranking = Ranking::new(&trials, &objectives);
        assert_eq!(numbers(&ranking.best), [0, 1, 3]);
        assert_eq!(numbers(&ranking.ranked), [0, 1, 3, 2, 4]);
        assert_eq!(ranking.level(&trials[2]), Some(Level::Fair));
    }

    #[test]
    fn a_selection_keeps_the_best() {
        let trials: Vec<Trial> = (0..1000).map(|number| trial(number, 1000.0 - number as f64)).collect();
        let objectives = [("loss".to_owned(), Direction::Minimize)];
        let ranking = Ranking::new(&trials, &objectives);
        let kept = ranking.select(trials.iter().collect(), 90);
        assert!(kept.len() == 90 && numbers(&kept).ends_with(&[998, 999]) && kept[0].number == 0);
        assert!(selection_note(90, 1000).contains("90 of 1000") && selection_note(3, 3).is_empty());
    }

    #[test]
    fn what_cannot_fit_is_not_what_was_given_up() {
        assert_eq!(Outcome::of(&infeasible(3)), Outcome::Infeasible);
        let mut one = trial(0, 0.5);
        assert_eq!(Outcome::of(&one), Outcome::Complete);
        one.constraints = vec![-1.0, 0.5];
        assert_eq!(Outcome::of(&one), Outcome::Infeasible);
        one.state = TrialState::Failed;
        assert_eq!(Outcome::of(&one), Outcome::Failed);
        one.state = TrialState::Pruned;
        one.constraints = vec![-1.0];
        assert_eq!(Outcome::of(&one), Outcome::Pruned);
    }

    #[test]
    fn attributes_of_any_kind() {
        let mut one = trial(0, f64::NAN);
        assert_eq!((value(&one, 0), value(&one, 7), seconds(&one)), (None, None, None));
        (one.began, one.ended) = (Some(10.0), Some(12.5));
        assert_eq!(seconds(&one), Some(2.5));
        for (name, value) in [("seconds", json!("soon")), ("attempts", json!(2)), ("same_as", json!(-1))] {
            one.user_attrs.insert(name.to_owned(), value);
        }
        assert_eq!((seconds(&one), was_retried(&one), same_as(&one)), (Some(2.5), true, None));
        one.intermediate = [(1, 3.0), (2, f64::NAN)].into();
        assert_eq!(last_intermediate(&one), Some(3.0));
    }
}

//! Which trials are the best, and how good the others are beside them.

use std::collections::{BTreeMap, BTreeSet};

use pipe_search::{Direction, Trial};

use super::attributes::{same_as, value};
use super::outcome::Outcome;

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

    /// Absent where a trial is not ranked.
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
        let room = most.saturating_sub(kept.len());
        kept.extend((0..room).map(|index| others[index * others.len() / room]));
        trials.into_iter().filter(|trial| kept.contains(&trial.number)).collect()
    }
}

/// A sentence where not all trials are drawn.
pub fn selection_note(drawn: usize, all: usize) -> String {
    match drawn < all {
        true => format!(" Drawn: {drawn} of {all} trials, the best and an even selection of the others."),
        false => String::new(),
    }
}

/// The value of an objective, less always better.
fn cost(trial: &Trial, objective: usize, direction: Direction) -> f64 {
    let value = value(trial, objective).unwrap_or(f64::INFINITY);
    if direction == Direction::Maximize { -value } else { value }
}

/// Those that no other dominates, in their order. Of trials with the same training the first stands for all.
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

/// Nowhere worse, and somewhere better.
fn dominates(one: &[f64], other: &[f64]) -> bool {
    let pairs = || one.iter().zip(other);
    pairs().all(|(one, other)| one <= other) && pairs().any(|(one, other)| one < other)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::html::study::samples::trial;
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
}

//! Which parameters the result depends on: PED-ANOVA, the default of Optuna 5.
//!
//! A parameter matters as much as the values of the best tenth of all trials lie differently from those of all.
//! Watanabe et al., "PED-ANOVA: Efficiently Quantifying Hyperparameter Importance in Arbitrary Subspaces" (2023); a
//! parameter that only some trials have is weighed as in its extension to conditional spaces (2026).

use std::collections::BTreeMap;

use crate::axis::{Axis, Domain, Scale, Space, log_mass, log_sum};
use crate::trial::{Direction, Trial, TrialState};

/// Fewer complete trials say nothing.
const FEWEST_TRIALS: usize = 4;
/// The part of all trials that counts as the best.
const BEST_PART: f64 = 0.1;
/// So many trials must have a value of a parameter.
const FEWEST_WITH_VALUE: usize = 2;
/// A range is divided into so many cells at most.
const CELLS: usize = 50;

/// The importance of each parameter of the space for one objective, which together are 1. Empty where too few trials are complete.
pub fn importances(space: &Space, trials: &[Trial], objective: usize, direction: Direction) -> BTreeMap<String, f64> {
    let measured: Vec<(&Trial, f64)> = trials
        .iter()
        .filter(|trial| trial.state == TrialState::Complete)
        .filter_map(|trial| Some((trial, direction.loss(*trial.values.get(objective)?))))
        .filter(|(_, loss)| loss.is_finite())
        .collect();
    if measured.len() < FEWEST_TRIALS || space.parameters.is_empty() {
        return BTreeMap::new();
    }
    let best = best_part(&measured);
    let best_count = best.iter().filter(|best| **best).count();
    let mut importances: BTreeMap<String, f64> = BTreeMap::new();
    for parameter in &space.parameters {
        let axis = Axis::new(&parameter.domain);
        let located: Vec<(f64, bool)> = measured
            .iter()
            .zip(&best)
            .filter_map(|((trial, _), best)| {
                let value = trial.point.get(&parameter.name)?;
                Some((axis.locate(value)?, *best))
            })
            .collect();
        let share_of_best = located.iter().filter(|(_, best)| *best).count() as f64 / best_count as f64;
        let share_of_all = located.len() as f64 / measured.len() as f64;
        let importance = if located.len() < FEWEST_WITH_VALUE || share_of_best == 0.0 {
            0.0
        } else {
            share_of_best * share_of_best / share_of_all * divergence(&axis, &parameter.domain, &located)
        };
        importances.insert(parameter.name.clone(), importance);
    }
    let sum: f64 = importances.values().sum();
    let equal = 1.0 / importances.len() as f64;
    for importance in importances.values_mut() {
        *importance = if sum > 0.0 { *importance / sum } else { equal };
    }
    importances
}

/// Which of them are as good as the last of the best tenth.
fn best_part(measured: &[(&Trial, f64)]) -> Vec<bool> {
    let mut losses: Vec<f64> = measured.iter().map(|(_, loss)| *loss).collect();
    losses.sort_by(f64::total_cmp);
    let last = losses[((BEST_PART * losses.len() as f64).ceil() as usize).max(1) - 1];
    measured.iter().map(|(_, loss)| *loss <= last).collect()
}

/// How differently (Pearson) the values of the best lie from those of all.
fn divergence(axis: &Axis, domain: &Domain, located: &[(f64, bool)]) -> f64 {
    let Some(cells) = Cells::of(axis, domain) else { return 0.0 };
    let best: Vec<f64> = located.iter().filter(|(_, best)| *best).map(|(coordinate, _)| *coordinate).collect();
    let all: Vec<f64> = located.iter().map(|(coordinate, _)| *coordinate).collect();
    let best = cells.probabilities(&best);
    let all = cells.probabilities(&all);
    best.iter()
        .zip(&all)
        .map(|(best, all)| {
            let (best, all) = (best + 1e-12, all + 1e-12);
            all * (best / all - 1.0) * (best / all - 1.0)
        })
        .sum()
}

/// A domain as a small number of cells.
enum Cells {
    Categories(usize),
    Line { low: f64, high: f64, count: usize },
}

impl Cells {
    /// Absent where there is nothing to choose.
    fn of(axis: &Axis, domain: &Domain) -> Option<Self> {
        match axis.scale() {
            Scale::Fixed => None,
            Scale::Categories(count) => Some(Self::Categories(count)),
            Scale::Line { .. } => {
                let count = match domain {
                    Domain::Int { low, high, log: true, .. } => {
                        let values = (i128::from(*high) - i128::from(*low) + 1) as u128;
                        values.next_power_of_two().trailing_zeros() as usize + 1
                    }
                    domain => domain.count().map_or(CELLS, |count| count.min(CELLS as u64) as usize),
                };
                let first = axis.locate(&axis.value(f64::NEG_INFINITY))?;
                let last = axis.locate(&axis.value(f64::INFINITY))?;
                Some(Self::Line { low: first, high: last, count: count.min(CELLS) })
            }
        }
    }

    /// How probable each cell is, judging from these coordinates and a little of everything.
    fn probabilities(&self, coordinates: &[f64]) -> Vec<f64> {
        let cell_of = |coordinate: f64| match self {
            Self::Categories(_) => coordinate as usize,
            Self::Line { low, high, count } => {
                let width = (high - low) / (count - 1) as f64;
                (((coordinate - low) / width - 0.5).ceil().max(0.0) as usize).min(count - 1)
            }
        };
        let mut counts: BTreeMap<usize, f64> = BTreeMap::new();
        for coordinate in coordinates {
            *counts.entry(cell_of(*coordinate)).or_default() += 1.0;
        }
        let counts: Vec<(usize, f64)> = counts.into_iter().collect();
        match self {
            Self::Categories(categories) => category_probabilities(&counts, *categories),
            Self::Line { count, .. } => line_probabilities(&counts, *count),
        }
    }
}

fn category_probabilities(counts: &[(usize, f64)], categories: usize) -> Vec<f64> {
    let kernels = counts.len() as f64 + 1.0;
    let weights = counts.iter().map(|(_, count)| count).sum::<f64>() + 1.0;
    let base = 1.0 / kernels;
    let sum = categories as f64 * base + 1.0;
    (0..categories)
        .map(|category| {
            let own = |observed: usize| if observed == category { 1.0 } else { 0.0 };
            let observed: f64 = counts.iter().map(|(observed, count)| count * (base + own(*observed)) / sum).sum();
            (observed + 1.0 / categories as f64) / weights
        })
        .collect()
}

/// Normal kernels on the cells, as wide as Scott's rule says ("Multivariate Density Estimation", 1992).
fn line_probabilities(counts: &[(usize, f64)], cells: usize) -> Vec<f64> {
    let weight: f64 = counts.iter().map(|(_, count)| count).sum();
    let deviation = deviation_by_scott(counts, weight);
    let middle = (cells - 1) as f64 / 2.0;
    let kernels: Vec<(f64, f64, f64)> = counts
        .iter()
        .map(|(cell, count)| (*cell as f64, deviation, *count))
        .chain([(middle, cells as f64, 1.0)])
        .collect();
    let (low, high) = (-0.5, cells as f64 - 0.5);
    (0..cells)
        .map(|cell| {
            let terms: Vec<f64> = kernels
                .iter()
                .map(|(mean, deviation, count)| {
                    let at = |position: f64| (position - mean) / deviation;
                    let own = log_mass(at(cell as f64 - 0.5), at(cell as f64 + 0.5));
                    own - log_mass(at(low), at(high)) + libm::log(*count / (weight + 1.0))
                })
                .collect();
            libm::exp(log_sum(&terms))
        })
        .collect()
}

fn deviation_by_scott(counts: &[(usize, f64)], weight: f64) -> f64 {
    let mean = counts.iter().map(|(cell, count)| *cell as f64 * count).sum::<f64>() / weight;
    let squares = counts.iter().map(|(cell, count)| (*cell as f64 - mean) * (*cell as f64 - mean) * count).sum::<f64>();
    let deviation = (squares / (weight - 1.0).max(1.0)).sqrt();
    let mut sums = Vec::new();
    for (_, count) in counts {
        sums.push(sums.last().unwrap_or(&0.0) + count);
    }
    let first = sums.iter().position(|sum| *sum >= (weight / 4.0).floor()).unwrap_or(0);
    let third = sums.iter().position(|sum| *sum > (weight * 3.0 / 4.0).floor()).unwrap_or(counts.len() - 1);
    let quartiles = counts[third].0 as f64 - counts[first].0 as f64;
    let rule = 1.059 * (quartiles / 1.34).min(deviation) * libm::pow(weight, -0.2);
    // Nine tenths of the narrowest kernel are in its own cell.
    rule.max(0.5 / 1.64)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::axis::{Condition, Parameter, Point, Test};

    fn space() -> Space {
        let parameter = |name: &str, domain| Parameter { name: name.to_owned(), domain, when: vec![] };
        let float = |low, high, log, step| Domain::Float { low, high, log, step };
        let mut parameters = vec![
            parameter("kind", Domain::Choices(vec![json!("a"), json!("b"), json!("c")])),
            parameter("rate", float(1e-4, 1.0, true, None)),
            parameter("depth", Domain::Int { low: 1, high: 9, log: false, step: 2 }),
            parameter("width", Domain::Int { low: 1, high: 300, log: true, step: 1 }),
            parameter("drop", float(0.0, 0.5, false, Some(0.1))),
            parameter("x", float(-3.0, 3.0, false, None)),
            parameter("extra", float(0.0, 1.0, false, None)),
        ];
        parameters[6].when = vec![Condition { parameter: "kind".to_owned(), test: Test::OneOf(vec![json!("b")]) }];
        Space { parameters }
    }

    fn trial(number: u64) -> Trial {
        let part = |factor: u64, of: u64| ((number * factor) % of) as f64;
        let kind = ["a", "b", "c"][(number * 7 % 3) as usize];
        let power = -4.0 + 4.0 * part(37, 101) / 101.0;
        let (depth, width) = (1 + 2 * ((number * 13) % 5), 1 + number * 71 % 300);
        let x = -3.0 + 6.0 * part(53, 97) / 97.0;
        let values: [(&str, Value); 6] = [
            ("kind", json!(kind)),
            ("rate", json!(libm::pow(10.0, power))),
            ("depth", json!(depth)),
            ("width", json!(width)),
            ("drop", json!(0.1 * part(17, 6))),
            ("x", json!(x)),
        ];
        let mut point: Point = values.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
        let mut value = (power + 2.0) * (power + 2.0) + 0.1 * depth as f64 + 0.5 * (x - 1.0) * (x - 1.0);
        value += 0.001 * width as f64 + if kind == "c" { 2.0 } else { 0.0 };
        if kind == "b" {
            let extra = part(29, 89) / 89.0;
            point.insert("extra".to_owned(), json!(extra));
            value += 4.0 * extra * extra;
        }
        let mut trial = Trial::new(number, point);
        trial.state = TrialState::Complete;
        trial.values = vec![value];
        trial
    }

    /// The figures of Optuna 5.0.0's `get_param_importances` for the same study.
    #[test]
    fn importances_are_those_of_optuna() {
        let table = [
            (
                Direction::Minimize,
                [
                    ("rate", 0.4613134810771366),
                    ("x", 0.26950591481224806),
                    ("extra", 0.08935303432924252),
                    ("width", 0.07250253915144982),
                    ("depth", 0.047212678137320045),
                    ("kind", 0.044013518323345935),
                    ("drop", 0.01609883416925704),
                ],
            ),
            (
                Direction::Maximize,
                [
                    ("rate", 0.18289136417753424),
                    ("x", 0.5067252727641536),
                    ("extra", 0.1330097433387906),
                    ("width", 0.17680001395623032),
                    ("depth", 0.00022038832594998008),
                    ("kind", 0.0),
                    ("drop", 0.0003532174373411143),
                ],
            ),
        ];
        let trials: Vec<Trial> = (0..60).map(trial).collect();
        for (direction, expected) in table {
            let found = importances(&space(), &trials, 0, direction);
            assert!((found.values().sum::<f64>() - 1.0).abs() < 1e-12);
            for (name, expected) in expected {
                assert!((found[name] - expected).abs() < 1e-9, "{direction:?} {name}: {}, not {expected}", found[name]);
            }
        }
    }

    #[test]
    fn few_trials_say_nothing_and_equal_ones_the_same_of_each() {
        let mut trials: Vec<Trial> = (0..3).map(trial).collect();
        assert!(importances(&space(), &trials, 0, Direction::Minimize).is_empty());
        trials = (0..8).map(trial).collect();
        for (index, trial) in trials.iter_mut().enumerate() {
            trial.values = vec![if index < 5 { 1.0 } else { f64::NAN }];
        }
        let found = importances(&space(), &trials, 0, Direction::Minimize);
        assert!(found.values().all(|importance| (importance - 1.0 / 7.0).abs() < 1e-12), "{found:?}");
        assert!(importances(&space(), &trials, 1, Direction::Minimize).is_empty());
    }
}

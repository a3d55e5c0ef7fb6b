//! Every combination once.

use std::collections::BTreeMap;

use crate::axis::{Axis, Point, Space};
use crate::trial::{Trial, TrialState};

/// A combination that failed is tried this often.
const ATTEMPTS: usize = 2;

/// The number of each parameter's value; absent where it has none.
type Combination = Vec<Option<u64>>;

/// How many combinations there are, or the name of the parameter whose values cannot be counted.
pub fn grid_size(space: &Space) -> Result<u64, String> {
    match space.parameters.iter().find(|parameter| parameter.domain.count().is_none()) {
        Some(parameter) => Err(parameter.name.clone()),
        None => Ok(size_after(space, &mut Point::new(), 0)),
    }
}

/// The combinations of the parameters from `index` on, where those before it have the values of `point`.
fn size_after(space: &Space, point: &mut Point, index: usize) -> u64 {
    let Some(parameter) = space.parameters.get(index) else { return 1 };
    if !parameter.applies(point) {
        return size_after(space, point, index + 1);
    }
    let count = parameter.domain.count().unwrap_or(0);
    let has_dependents = space.parameters[index + 1..]
        .iter()
        .any(|other| other.when.iter().any(|condition| condition.parameter == parameter.name));
    if !has_dependents {
        return count.saturating_mul(size_after(space, point, index + 1));
    }
    let axis = Axis::new(&parameter.domain);
    let mut size = 0_u64;
    for value in 0..count {
        point.insert(parameter.name.clone(), axis.nth(value));
        size = size.saturating_add(size_after(space, point, index + 1));
    }
    point.remove(&parameter.name);
    size
}

/// The first combination that no trial has; one that failed once comes after all the others. Absent where none is left.
pub(super) fn suggest(space: &Space, trials: &[Trial]) -> Option<Point> {
    let axes: Vec<Axis> = space.parameters.iter().map(|parameter| Axis::new(&parameter.domain)).collect();
    let mut tried: BTreeMap<Combination, Vec<TrialState>> = BTreeMap::new();
    for trial in trials {
        if let Some(combination) = combination_of(space, &axes, &trial.point) {
            tried.entry(combination).or_default().push(trial.state);
        }
    }
    let mut failed = None;
    let mut next = complete(space, &axes, Vec::new());
    while let Some((combination, point)) = next {
        match tried.get(&combination) {
            None => return Some(point),
            Some(states) => {
                let only_failed = states.iter().all(|state| *state == TrialState::Failed);
                if only_failed && states.len() < ATTEMPTS && failed.is_none() {
                    failed = Some(point);
                }
            }
        }
        next = following(space, &axes, combination);
    }
    failed
}

/// Absent where a value is not one of the grid, or a parameter has one that should have none.
fn combination_of(space: &Space, axes: &[Axis], point: &Point) -> Option<Combination> {
    let combination = space
        .parameters
        .iter()
        .zip(axes)
        .map(|(parameter, axis)| match point.get(&parameter.name) {
            Some(value) => axis.index_of(value).map(Some),
            None => Some(None),
        })
        .collect::<Option<Combination>>()?;
    let has_all = space.parameters.iter().all(|one| one.applies(point) == point.contains_key(&one.name));
    has_all.then_some(combination)
}

/// The first combination that begins like this; absent where a parameter has no values at all.
fn complete(space: &Space, axes: &[Axis], mut combination: Combination) -> Option<(Combination, Point)> {
    let mut point = Point::new();
    for (index, (parameter, axis)) in space.parameters.iter().zip(axes).enumerate() {
        if index == combination.len() {
            combination.push(parameter.applies(&point).then_some(0));
        }
        if let Some(value) = combination[index] {
            if parameter.domain.count().is_none_or(|count| count == 0) {
                return None;
            }
            point.insert(parameter.name.clone(), axis.nth(value));
        }
    }
    Some((combination, point))
}

/// The next combination: the values of the last parameter change first.
fn following(space: &Space, axes: &[Axis], mut combination: Combination) -> Option<(Combination, Point)> {
    while let Some(last) = combination.pop() {
        let count = space.parameters[combination.len()].domain.count().unwrap_or(0);
        if let Some(value) = last
            && value + 1 < count
        {
            combination.push(Some(value + 1));
            return complete(space, axes, combination);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::axis::{Condition, Domain, Parameter, Test};

    fn space() -> Space {
        let parameter = |name: &str, domain, when| Parameter { name: name.to_owned(), domain, when };
        let is = |name: &str, value: Value| Condition { parameter: name.to_owned(), test: Test::OneOf(vec![value]) };
        Space {
            parameters: vec![
                parameter("kind", Domain::Choices(vec![json!("adam"), json!("sgd"), json!("none")]), vec![]),
                parameter(
                    "momentum",
                    Domain::Float { low: 0.0, high: 0.9, log: false, step: Some(0.3) },
                    vec![is("kind", json!("sgd"))],
                ),
                parameter(
                    "nesterov",
                    Domain::Choices(vec![json!(true), json!(false)]),
                    vec![Condition { parameter: "momentum".to_owned(), test: Test::Above(0.5) }],
                ),
                parameter("layers", Domain::Int { low: 1, high: 6, log: true, step: 2 }, vec![]),
            ],
        }
    }

    #[test]
    fn every_combination_comes_once() {
        let space = space();
        let mut trials: Vec<Trial> = Vec::new();
        while let Some(point) = suggest(&space, &trials) {
            for parameter in &space.parameters {
                assert_eq!(parameter.applies(&point), point.contains_key(&parameter.name), "{point:?}");
            }
            assert!(trials.iter().all(|trial| trial.point != point), "{point:?} again");
            trials.push(Trial::new(trials.len() as u64, point));
        }
        // adam, none; sgd with momentum 0 or 0.3; sgd with momentum 0.6 or 0.9, with and without nesterov. Each with 1, 3 or 5 layers.
        assert_eq!(trials.len(), (2 + 2 + 4) * 3);
        assert_eq!(grid_size(&space), Ok(24));
    }

    #[test]
    fn what_failed_comes_again_once_and_last() {
        let space = Space { parameters: vec![space().parameters[0].clone()] };
        let mut trials = Vec::new();
        let mut order = Vec::new();
        while let Some(point) = suggest(&space, &trials) {
            order.push(point["kind"].as_str().unwrap().to_owned());
            let mut trial = Trial::new(trials.len() as u64, point);
            trial.state = if trial.point["kind"] == "adam" { TrialState::Failed } else { TrialState::Complete };
            trials.push(trial);
        }
        assert_eq!(order, ["adam", "sgd", "none", "adam"]);
    }

    #[test]
    fn trials_of_other_spaces_do_not_count() {
        let space = Space { parameters: vec![space().parameters[0].clone()] };
        let foreign = Trial::new(0, Point::from([("kind".to_owned(), json!("lion"))]));
        let partial = Trial::new(1, Point::new());
        assert_eq!(suggest(&space, &[foreign, partial]).unwrap()["kind"], "adam");
    }

    #[test]
    fn a_range_without_steps_is_named() {
        let mut space = space();
        space.parameters[1].domain = Domain::Float { low: 0.0, high: 0.9, log: false, step: None };
        assert_eq!(grid_size(&space), Err("momentum".to_owned()));
    }

    #[test]
    fn large_grids_are_counted_without_listing_them() {
        let many = Domain::Int { low: 0, high: i64::from(i32::MAX), log: false, step: 1 };
        let parameter = |name: &str| Parameter { name: name.to_owned(), domain: many.clone(), when: vec![] };
        let space = Space { parameters: vec![parameter("a"), parameter("b"), parameter("c")] };
        assert_eq!(grid_size(&space), Ok(u64::MAX));
        assert!(suggest(&space, &[]).is_some());
    }
}

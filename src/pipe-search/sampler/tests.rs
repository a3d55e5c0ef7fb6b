use serde_json::{Value, json};

use super::*;
use crate::axis::{Condition, Domain, Parameter, Test};
use crate::trial::TrialState;

const MINIMIZE: [Direction; 1] = [Direction::Minimize];

fn parameter(name: &str, domain: Domain) -> Parameter {
    Parameter { name: name.to_owned(), domain, when: vec![] }
}

fn float(low: f64, high: f64) -> Domain {
    Domain::Float { low, high, log: false, step: None }
}

/// One parameter of each kind, and one that only some points have.
fn space() -> Space {
    let mut parameters = vec![
        parameter("kind", Domain::Choices(vec![json!("a"), json!(2), json!(null), json!(true)])),
        parameter("rate", Domain::Float { low: 1e-5, high: 0.1, log: true, step: None }),
        parameter("drop", Domain::Float { low: 0.1, high: 0.65, log: false, step: Some(0.1) }),
        parameter("x", float(-2.0, 2.0)),
        parameter("depth", Domain::Int { low: 2, high: 15, log: false, step: 4 }),
        parameter("width", Domain::Int { low: 1, high: 4096, log: true, step: 1 }),
        parameter("only", Domain::Choices(vec![json!("one")])),
        parameter("fixed", Domain::Int { low: 7, high: 7, log: false, step: 1 }),
        parameter("extra", float(0.0, 1.0)),
    ];
    let condition = |parameter: &str, test| Condition { parameter: parameter.to_owned(), test };
    parameters[8].when = vec![
        condition("kind", Test::OneOf(vec![json!("a"), json!(null)])),
        condition("depth", Test::Above(5.0)),
        condition("x", Test::Below(1.0)),
    ];
    Space { parameters }
}

fn ended(number: u64, point: Point, values: &[f64]) -> Trial {
    let mut trial = Trial::new(number, point);
    trial.state = TrialState::Complete;
    trial.values = values.to_vec();
    trial
}

fn number(point: &Point, name: &str) -> f64 {
    point[name].as_f64().unwrap()
}

/// A study whose trials end as `end` says.
fn study(sampler: Sampler, space: &Space, count: u64, seed: u64, end: impl Fn(&mut Trial)) -> Vec<Trial> {
    let mut trials = Vec::new();
    for number in 0..count {
        let point = suggest(sampler, space, &MINIMIZE, &trials, number, seed).unwrap();
        let mut trial = ended(number, point, &[]);
        end(&mut trial);
        trials.push(trial);
    }
    trials
}

fn assert_within(space: &Space, point: &Point) {
    for parameter in &space.parameters {
        assert_eq!(parameter.applies(point), point.contains_key(&parameter.name), "{} in {point:?}", parameter.name);
        let Some(value) = point.get(&parameter.name) else { continue };
        assert!(parameter.domain.contains(value), "{} = {value}", parameter.name);
        match &parameter.domain {
            Domain::Choices(choices) => assert!(choices.contains(value), "{value} is the choice itself"),
            Domain::Float { low, step, .. } => {
                assert!(value.is_f64(), "{value}");
                let steps = step.map_or(0.0, |step| (value.as_f64().unwrap() - low) / step);
                assert!((steps - steps.round()).abs() < 1e-9, "{} = {value}", parameter.name);
            }
            Domain::Int { low, step, .. } => assert_eq!((value.as_i64().unwrap() - low) % step, 0, "{value}"),
        }
    }
    assert!(point.keys().all(|name| space.parameter(name).is_some()), "{point:?}");
}

#[test]
fn points_are_within_the_space() {
    let space = space();
    let mut seen: Vec<(String, Value)> = Vec::new();
    for (sampler, seeds, count) in [(Sampler::Random, 1, 3000), (Sampler::Tpe, 20, 120)] {
        for seed in 0..seeds {
            for trial in study(sampler, &space, count, seed, |trial| trial.values = vec![number(&trial.point, "x")]) {
                assert_within(&space, &trial.point);
                seen.extend(trial.point.into_iter().filter(|(name, _)| name != "x" && name != "rate"));
            }
        }
    }
    // The ends are reached too.
    for (name, value) in
        [("depth", json!(2)), ("depth", json!(14)), ("width", json!(1)), ("drop", json!(0.6)), ("drop", json!(0.3))]
    {
        assert!(seen.contains(&(name.to_owned(), value.clone())), "{name} = {value}");
    }
}

#[test]
fn logarithmic_ranges_have_equal_chances_for_each_order_of_magnitude() {
    let space = space();
    let trials = study(Sampler::Random, &space, 4000, 1, |_| {});
    let below = |name: &str, bound: f64| trials.iter().filter(|trial| number(&trial.point, name) < bound).count();
    assert!((850..1150).contains(&below("rate", 1e-4)), "{}", below("rate", 1e-4));
    assert!((1850..2250).contains(&below("width", 50.0)), "{}", below("width", 50.0));
    assert!((1850..2150).contains(&below("x", 0.0)), "{}", below("x", 0.0));
}

#[test]
fn the_same_study_gives_the_same_point() {
    let space = space();
    let end = |trial: &mut Trial| trial.values = vec![number(&trial.point, "x").abs()];
    for sampler in [Sampler::Tpe, Sampler::Random] {
        let trials = study(sampler, &space, 40, 5, end);
        assert_eq!(trials, study(sampler, &space, 40, 5, end));
        assert_ne!(trials, study(sampler, &space, 40, 6, end));
        // The order in which a journal lists them is no matter.
        let mut reversed = trials.clone();
        reversed.reverse();
        let next = |trials: &[Trial], number| suggest(sampler, &space, &MINIMIZE, trials, number, 5);
        assert_eq!(next(&trials, 40), next(&reversed, 40));
        assert_ne!(next(&trials, 40), next(&trials, 41));
    }
}

/// Changing this changes what every study tries.
#[test]
fn the_points_stay_what_they_are() {
    let space = Space { parameters: vec![parameter("x", float(-2.0, 2.0)), space().parameters[5].clone()] };
    let trials = study(Sampler::Tpe, &space, 30, 11, |trial| trial.values = vec![number(&trial.point, "x").abs()]);
    let expected: [(usize, f64, i64); 3] =
        [(0, 0.034279288959104814, 10), (10, -1.6499708844716783, 1), (29, 0.606477261544675, 378)];
    for (index, x, width) in expected {
        assert_eq!(trials[index].point["x"], json!(x), "trial {index}");
        assert_eq!(trials[index].point["width"], json!(width), "trial {index}");
    }
}

#[test]
fn the_first_trials_are_spread_out() {
    let space = Space { parameters: vec![parameter("x", float(0.0, 10.0)), space().parameters[0].clone()] };
    let trials = study(Sampler::Tpe, &space, 10, 3, |trial| trial.values = vec![0.0]);
    let mut tenths: Vec<u64> = trials.iter().map(|trial| number(&trial.point, "x").floor() as u64).collect();
    tenths.sort_unstable();
    assert_eq!(tenths, (0..10).collect::<Vec<_>>());
    for kind in [json!("a"), json!(2), json!(null), json!(true)] {
        assert!(trials.iter().any(|trial| trial.point["kind"] == kind), "{kind}");
    }
}

/// Half of the space cannot run, and the best values lie at its edge.
#[test]
fn what_is_not_allowed_is_learned() {
    let space = Space { parameters: vec![parameter("x", float(0.0, 1.0)), parameter("y", float(0.0, 1.0))] };
    let end = |trial: &mut Trial| {
        let (x, y) = (number(&trial.point, "x"), number(&trial.point, "y"));
        trial.constraints = vec![x - 0.5];
        if x > 0.5 {
            trial.state = TrialState::Pruned;
        } else {
            trial.values = vec![(x - 0.45) * (x - 0.45) + (y - 0.5) * (y - 0.5)];
        }
    };
    let share = |sampler| {
        let infeasible =
            |seed| study(sampler, &space, 60, seed, end)[10..].iter().filter(|trial| !trial.is_feasible()).count();
        (0..20).map(infeasible).sum::<usize>() as f64 / (20.0 * 50.0)
    };
    let (tpe, random) = (share(Sampler::Tpe), share(Sampler::Random));
    assert!((0.4..0.6).contains(&random), "{random}");
    assert!(tpe < 0.2, "{tpe} of TPE's trials are not allowed");
}

#[test]
fn trials_beside_each_other_differ() {
    let space = Space { parameters: vec![parameter("x", float(0.0, 1.0)), parameter("y", float(0.0, 1.0))] };
    let grid = Domain::Int { low: 0, high: 3, log: false, step: 1 };
    let small = Space { parameters: vec![parameter("x", grid.clone()), parameter("y", grid)] };
    let end = |trial: &mut Trial| trial.values = vec![number(&trial.point, "x") + number(&trial.point, "y")];

    // All of the 16 combinations are tried before one comes again.
    for sampler in [Sampler::Tpe, Sampler::Random] {
        let mut trials = study(sampler, &small, 10, 2, end);
        for number in 10..15 {
            let point = suggest(sampler, &small, &MINIMIZE, &trials, number, 2).unwrap();
            assert!(trials.iter().all(|trial| trial.point != point), "{sampler:?}: {point:?} again");
            trials.push(Trial::new(number, point));
        }
    }

    // The nearest of those that run is further away than if they were not known.
    let mut known = 0.0;
    let mut unknown = 0.0;
    for seed in 0..20 {
        let ended = study(Sampler::Tpe, &space, 30, seed, end);
        let mut with_running = ended.clone();
        let mut without = Vec::new();
        for number in 30..38 {
            let point = suggest(Sampler::Tpe, &space, &MINIMIZE, &with_running, number, seed).unwrap();
            with_running.push(Trial::new(number, point));
            let point = suggest(Sampler::Tpe, &space, &MINIMIZE, &ended, number, seed).unwrap();
            without.push(Trial::new(number, point));
        }
        known += nearest_distances(&with_running[30..]);
        unknown += nearest_distances(&without);
    }
    assert!(known > 1.1 * unknown, "{known} with those that run, {unknown} without");
}

fn nearest_distances(trials: &[Trial]) -> f64 {
    let distance = |one: &Trial, other: &Trial| {
        let of = |name: &str| number(&one.point, name) - number(&other.point, name);
        of("x").hypot(of("y"))
    };
    let others = |one: usize| (0..trials.len()).filter(move |other| *other != one);
    let nearest = |one: usize| others(one).map(|other| distance(&trials[one], &trials[other])).fold(f64::MAX, f64::min);
    (0..trials.len()).map(nearest).sum::<f64>() / trials.len() as f64
}

#[test]
fn pruned_trials_teach() {
    // None is ever complete: the later one was given up the better.
    let space = Space { parameters: vec![parameter("x", float(0.0, 1.0))] };
    let end = |trial: &mut Trial| {
        let x = number(&trial.point, "x");
        trial.state = TrialState::Pruned;
        trial.intermediate = [(1, 1.0), (2 + (10.0 * x) as u64, 1.0 - x)].into();
    };
    let late = |trials: &[Trial]| trials.iter().filter(|trial| number(&trial.point, "x") > 0.8).count();
    let found: usize = (0..10).map(|seed| late(&study(Sampler::Tpe, &space, 50, seed, end)[10..])).sum();
    assert!(found > 200, "{found} of 400; chance finds 80");
}

#[test]
fn several_objectives_are_learned_together() {
    let space = Space { parameters: vec![parameter("x", float(-5.0, 5.0)), parameter("y", float(-5.0, 5.0))] };
    let directions = [Direction::Minimize, Direction::Maximize];
    let near_front = |sampler, seed| {
        let mut trials = Vec::new();
        for number in 0..80 {
            let point = suggest(sampler, &space, &directions, &trials, number, seed).unwrap();
            let (x, y) = (self::number(&point, "x"), self::number(&point, "y"));
            trials.push(ended(number, point, &[x * x + y * y, -(x - 2.0).powi(2) - y * y]));
        }
        let is_near = |trial: &&Trial| {
            let (x, y) = (self::number(&trial.point, "x"), self::number(&trial.point, "y"));
            (-0.5..2.5).contains(&x) && y.abs() < 1.0
        };
        trials[10..].iter().filter(is_near).count()
    };
    let count = |sampler| (0..10).map(|seed| near_front(sampler, seed)).sum::<usize>();
    let (tpe, random) = (count(Sampler::Tpe), count(Sampler::Random));
    assert!(tpe > 4 * random, "{tpe} near the front, random {random}");
}

#[test]
fn nothing_that_a_journal_may_hold_stops_it() {
    let space = space();
    let directions = [Direction::Minimize, Direction::Maximize, Direction::Minimize];
    let values = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 0.0, -0.0, 1e308, -1e308, 1.0];
    let points = [
        json!({}),
        json!({"kind": "z", "rate": 5.0, "x": "text", "depth": 1.5, "width": -3}),
        json!({"kind": "a", "rate": 1e-5, "drop": 0.1, "x": -2.0, "depth": 6, "width": 1, "extra": 0.5, "other": [1]}),
        json!({"x": 2.0, "extra": null, "width": 4096.0, "fixed": 7}),
    ];
    for objectives in 0..=3 {
        let directions = &directions[..objectives];
        let mut trials = Vec::new();
        for number in 0..64_usize {
            let point = serde_json::from_value(points[number % 4].clone()).unwrap();
            let own: Vec<f64> = (0..number % 5).map(|index| values[(number * 3 + index) % 8]).collect();
            let mut trial = ended(number as u64, point, &own);
            trial.constraints = if number % 7 == 0 { vec![values[number % 8]] } else { vec![] };
            trial.intermediate = (0..number as u64 % 3).map(|step| (step, values[number % 8])).collect();
            trial.state = [
                TrialState::Complete,
                TrialState::Pruned,
                TrialState::Complete,
                TrialState::Running,
                TrialState::Failed,
                TrialState::Waiting,
            ][number % 6];
            trials.push(trial);
            let point = suggest(Sampler::Tpe, &space, directions, &trials, 1000 + number as u64, 1).unwrap();
            assert_within(&space, &point);
        }
    }
    let empty = Space { parameters: vec![] };
    assert_eq!(suggest(Sampler::Tpe, &empty, &MINIMIZE, &[], 0, 0), Some(Point::new()));
    assert_eq!(suggest(Sampler::Grid, &empty, &MINIMIZE, &[], 0, 0), Some(Point::new()));
}

/// A study of another program had other parameters: those that both have still teach.
#[test]
fn trials_of_other_spaces_teach_what_they_can() {
    let space = Space { parameters: vec![parameter("x", float(0.0, 1.0)), parameter("new", float(0.0, 1.0))] };
    let mut stream = Stream::new(9, 9);
    let trials: Vec<Trial> = (0..60)
        .map(|number| {
            let x = stream.uniform() * 1.2;
            ended(number, Point::from([("x".to_owned(), json!(x)), ("old".to_owned(), json!("z"))]), &[(x - 0.2).abs()])
        })
        .collect();
    let near = (0..100).filter(|seed| {
        let point = suggest(Sampler::Tpe, &space, &MINIMIZE, &trials, 60, *seed).unwrap();
        (number(&point, "x") - 0.2).abs() < 0.15
    });
    assert!(near.count() > 60);
}

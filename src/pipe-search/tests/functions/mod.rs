//! Functions with a known minimum, for measuring how well a sampler searches. `tests/bench_tune.py` has the same ones
//! in Python.

use pipe_search::{Condition, Direction, Domain, Parameter, Point, Sampler, Space, Test, Trial, TrialState, suggest};
use serde_json::json;

/// A space and what is to be minimised over it.
pub struct Function {
    pub name: &'static str,
    pub space: Space,
    pub optimum: f64,
    evaluate: fn(&Point) -> f64,
}

pub fn all() -> Vec<Function> {
    let lines = |count: usize, low: f64, high: f64| {
        (0..count).map(|index| parameter(&format!("x{index}"), float(low, high, false))).collect()
    };
    vec![
        Function { name: "sphere5", space: Space { parameters: lines(5, -5.0, 5.0) }, optimum: 0.0, evaluate: sphere5 },
        Function {
            name: "branin",
            space: Space {
                parameters: vec![parameter("x0", float(-5.0, 10.0, false)), parameter("x1", float(0.0, 15.0, false))],
            },
            optimum: 0.397_887_357_729_739,
            evaluate: branin,
        },
        Function {
            name: "hartmann6",
            space: Space { parameters: lines(6, 0.0, 1.0) },
            optimum: -3.322_368_011_415_51,
            evaluate: hartmann6,
        },
        Function {
            name: "rosenbrock2",
            space: Space { parameters: lines(2, -5.0, 10.0) },
            optimum: 0.0,
            evaluate: rosenbrock2,
        },
        Function { name: "training", space: training_space(), optimum: 0.1, evaluate: training },
    ]
}

impl Function {
    pub fn value(&self, point: &Point) -> f64 {
        (self.evaluate)(point)
    }

    /// So many trials, one after the other.
    pub fn search(&self, sampler: Sampler, count: u64, seed: u64) -> Vec<Trial> {
        let mut trials = Vec::new();
        for number in 0..count {
            let point = suggest(sampler, &self.space, &[Direction::Minimize], &trials, number, seed);
            let point = point.expect("a sampler that is not a grid always has a point");
            let mut trial = Trial::new(number, point);
            trial.values = vec![self.value(&trial.point)];
            trial.state = TrialState::Complete;
            trials.push(trial);
        }
        trials
    }
}

pub fn best_value(trials: &[Trial]) -> f64 {
    trials.iter().map(|trial| trial.values[0]).fold(f64::INFINITY, f64::min)
}

fn parameter(name: &str, domain: Domain) -> Parameter {
    Parameter { name: name.to_owned(), domain, when: vec![] }
}

fn float(low: f64, high: f64, log: bool) -> Domain {
    Domain::Float { low, high, log, step: None }
}

fn number(point: &Point, name: &str) -> f64 {
    point[name].as_f64().expect("a number")
}

fn sphere5(point: &Point) -> f64 {
    let centre = [1.3, -2.1, 0.4, 3.0, -0.7];
    (0..5).map(|index| (number(point, &format!("x{index}")) - centre[index]).powi(2)).sum()
}

fn branin(point: &Point) -> f64 {
    use std::f64::consts::PI;
    let (x, y) = (number(point, "x0"), number(point, "x1"));
    let bend = y - 5.1 / (4.0 * PI * PI) * x * x + 5.0 / PI * x - 6.0;
    bend * bend + 10.0 * (1.0 - 1.0 / (8.0 * PI)) * x.cos() + 10.0
}

fn rosenbrock2(point: &Point) -> f64 {
    let (x, y) = (number(point, "x0"), number(point, "x1"));
    100.0 * (y - x * x).powi(2) + (1.0 - x).powi(2)
}

fn hartmann6(point: &Point) -> f64 {
    const HEIGHTS: [f64; 4] = [1.0, 1.2, 3.0, 3.2];
    const WIDTHS: [[f64; 6]; 4] = [
        [10.0, 3.0, 17.0, 3.5, 1.7, 8.0],
        [0.05, 10.0, 17.0, 0.1, 8.0, 14.0],
        [3.0, 3.5, 1.7, 10.0, 17.0, 8.0],
        [17.0, 8.0, 0.05, 10.0, 0.1, 14.0],
    ];
    const CENTRES: [[f64; 6]; 4] = [
        [0.1312, 0.1696, 0.5569, 0.0124, 0.8283, 0.5886],
        [0.2329, 0.4135, 0.8307, 0.3736, 0.1004, 0.9991],
        [0.2348, 0.1451, 0.3522, 0.2883, 0.3047, 0.6650],
        [0.4047, 0.8828, 0.8732, 0.5743, 0.1091, 0.0381],
    ];
    let x: Vec<f64> = (0..6).map(|index| number(point, &format!("x{index}"))).collect();
    let hill = |hill: usize| {
        let distance: f64 = (0..6).map(|index| WIDTHS[hill][index] * (x[index] - CENTRES[hill][index]).powi(2)).sum();
        HEIGHTS[hill] * (-distance).exp()
    };
    -(0..4).map(hill).sum::<f64>()
}

/// Like the settings of a training: a learning rate whose best value depends on the optimizer, which has settings of its own.
fn training_space() -> Space {
    let when = |mut parameter: Parameter, kind: &str| {
        let test = Test::OneOf(vec![json!(kind)]);
        parameter.when = vec![Condition { parameter: "optimizer".to_owned(), test }];
        parameter
    };
    Space {
        parameters: vec![
            parameter("optimizer", Domain::Choices(vec![json!("sgd"), json!("adam"), json!("rmsprop")])),
            parameter("lr", float(1e-5, 1.0, true)),
            parameter("layers", Domain::Int { low: 1, high: 8, log: false, step: 1 }),
            parameter("width", Domain::Int { low: 8, high: 1024, log: true, step: 1 }),
            parameter("dropout", Domain::Float { low: 0.0, high: 0.5, log: false, step: Some(0.05) }),
            when(parameter("momentum", float(0.0, 0.99, false)), "sgd"),
            when(parameter("beta2", float(0.9, 0.999, false)), "adam"),
            when(parameter("eps", float(1e-10, 1e-4, true)), "adam"),
        ],
    }
}

fn training(point: &Point) -> f64 {
    let lr = number(point, "lr").log10();
    let size = (number(point, "layers") - 5.0) / 4.0;
    let width = (number(point, "width") / 200.0).log10();
    let dropout = number(point, "dropout") - 0.15;
    let own = match point["optimizer"].as_str() {
        Some("sgd") => {
            let momentum = number(point, "momentum");
            0.15 + 0.3 * (lr + 1.0 + momentum).powi(2) + 0.4 * (momentum - 0.9).powi(2)
        }
        Some("adam") => {
            let beta2 = (number(point, "beta2") - 0.98) / 0.05;
            let eps = (number(point, "eps").log10() + 8.0) / 4.0;
            0.1 + 0.3 * (lr + 3.0).powi(2) + 0.05 * beta2 * beta2 + 0.05 * eps * eps
        }
        _ => 0.2 + 0.3 * (lr + 3.5).powi(2),
    };
    own + 0.2 * size * size + 0.2 * width * width + 2.0 * dropout * dropout + 0.1 * (size * width).abs()
}

//! Trials and pages that the tests of this folder share.

use std::collections::BTreeMap;

use pipe_search::{Direction, Domain, Parameter, Space, Trial, TrialState};
use serde_json::json;

use super::StudyPage;

/// What a page borrows.
pub struct Sample {
    pub objectives: Vec<(String, Direction)>,
    pub space: Space,
    pub trials: Vec<Trial>,
    pub shares: BTreeMap<String, f64>,
}

impl Default for Sample {
    fn default() -> Self {
        Self::of(Vec::new())
    }
}

impl Sample {
    pub fn of(trials: Vec<Trial>) -> Self {
        let mut space = space("lr", Domain::Float { low: 1e-5, high: 1e-1, log: true, step: None });
        space
            .parameters
            .extend(self::space("train.batch", Domain::Int { low: 1, high: 64, log: true, step: 1 }).parameters);
        let objectives = vec![("eval.loss".to_owned(), Direction::Minimize)];
        Self { objectives, space, trials, shares: BTreeMap::new() }
    }

    pub fn page(&self) -> StudyPage<'_> {
        StudyPage {
            name: "sweep",
            status: "running",
            objectives: &self.objectives,
            space: &self.space,
            trials: &self.trials,
            importances: self.objectives.iter().map(|objective| (objective.0.clone(), self.shares.clone())).collect(),
            budget: format!("{} of 100 trials", self.trials.len()),
            best_file: None,
        }
    }
}

/// A space of one parameter.
pub fn space(name: &str, domain: Domain) -> Space {
    Space { parameters: vec![Parameter { name: name.to_owned(), domain, when: Vec::new() }] }
}

/// A complete trial.
pub fn trial(number: u64, value: f64) -> Trial {
    let point =
        [("lr".to_owned(), json!(1e-5 * (number + 1) as f64)), ("train.batch".to_owned(), json!(1 << (number % 7)))];
    let mut trial = Trial::new(number, point.into());
    (trial.state, trial.values) = (TrialState::Complete, vec![value]);
    trial
}

/// One that was never launched since it cannot fit.
pub fn infeasible(number: u64) -> Trial {
    let mut trial = trial(number, 0.0);
    (trial.state, trial.values) = (TrialState::Pruned, Vec::new());
    let attributes =
        [("infeasible", json!(true)), ("predicted_peak", json!(48_u64 << 30)), ("capacity", json!(24_u64 << 30))];
    trial.user_attrs = attributes.map(|(name, value)| (name.to_owned(), value)).into();
    trial
}

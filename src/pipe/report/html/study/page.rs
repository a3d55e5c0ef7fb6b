//! The study that a page shows, and its parameters.

use std::collections::BTreeMap;

use pipe_search::{Direction, Domain, Space, Trial};

/// A study as its page shows it.
pub struct StudyPage<'a> {
    pub name: &'a str,
    /// `running`, `finished`, `stopped` or `failed`.
    pub status: &'a str,
    /// The metric of each objective, and which of its values are better.
    pub objectives: &'a [(String, Direction)],
    pub space: &'a Space,
    pub trials: &'a [Trial],
    /// For each objective, by its metric: the share of each parameter.
    pub importances: Vec<(String, BTreeMap<String, f64>)>,
    /// The part of the budget that is used up, such as `37 of 100 trials, 2.1 of 12 hours`.
    pub budget: String,
    /// The pipeline file with the settings of the best trial.
    pub best_file: Option<String>,
}

/// The parameters of the space, and after them those that only trials have: a space may have changed since.
pub fn parameters(page: &StudyPage<'_>) -> Vec<(String, Domain)> {
    let of_space = page.space.parameters.iter().map(|parameter| (parameter.name.clone(), parameter.domain.clone()));
    let mut parameters: Vec<(String, Domain)> = of_space.collect();
    let of_trials: BTreeMap<&String, &Domain> = page.trials.iter().flat_map(|trial| &trial.domains).collect();
    for (name, domain) in of_trials {
        if page.space.parameter(name).is_none() {
            parameters.push((name.clone(), domain.clone()));
        }
    }
    parameters
}

/// The parameters, the one with the largest share of the first objective first, at most `most`.
pub fn most_important(page: &StudyPage<'_>, parameters: &[(String, Domain)], most: usize) -> Vec<(String, Domain)> {
    let mut sorted = parameters.to_vec();
    if let Some((_, shares)) = page.importances.first() {
        let share = |name: &String| shares.get(name).copied().filter(|share| share.is_finite()).unwrap_or(0.0);
        sorted.sort_by(|a, b| share(&b.0).total_cmp(&share(&a.0)));
    }
    sorted.truncate(most);
    sorted
}

#[cfg(test)]
pub mod samples {
    //! Trials and pages that the tests of this folder share.

    use std::collections::BTreeMap;

    use pipe_search::{Direction, Domain, Parameter, Space, Trial, TrialState};
    use serde_json::json;

    use super::StudyPage;

    /// The values that a page borrows.
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
                importances: self
                    .objectives
                    .iter()
                    .map(|objective| (objective.0.clone(), self.shares.clone()))
                    .collect(),
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
        let point = [
            ("lr".to_owned(), json!(1e-5 * (number + 1) as f64)),
            ("train.batch".to_owned(), json!(1 << (number % 7))),
        ];
        let mut trial = Trial::new(number, point.into());
        (trial.state, trial.values) = (TrialState::Complete, vec![value]);
        trial
    }

    /// A trial that was never launched since it cannot fit.
    pub fn infeasible(number: u64) -> Trial {
        let mut trial = trial(number, 0.0);
        (trial.state, trial.values) = (TrialState::Pruned, Vec::new());
        let attributes =
            [("infeasible", json!(true)), ("predicted_peak", json!(48_u64 << 30)), ("capacity", json!(24_u64 << 30))];
        trial.user_attrs = attributes.map(|(name, value)| (name.to_owned(), value)).into();
        trial
    }
}

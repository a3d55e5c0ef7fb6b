//! The page of a study: how the search went, which settings matter, what fits into memory, and every trial. Pure: the
//! content of the journal comes in, HTML goes out.
//!
//! The study that a page shows, and its parameters.

mod memory;
mod parallel;
mod ranking;
mod search;
mod slices;
mod trials;

use std::collections::BTreeMap;

use pipe_search::{Direction, Domain, Space, Trial};
use ranking::Ranking;

use crate::run::Notes;

/// The body of the page.
pub fn body(page: &StudyPage<'_>) -> String {
    let ranking = Ranking::new(page.trials, page.objectives);
    let parameters = parameters(page);
    let figures = [
        search::history(page, &ranking),
        search::importance(page, &ranking),
        slices::fronts(page, &ranking),
        search::curves(page, &ranking),
        memory::figure(page, &parameters),
    ];
    [
        trials::heading(page, &ranking),
        format!("<section id=\"search\"><h2>Search</h2><div class=\"figures\">{}</div></section>\n", figures.concat()),
        parallel::section(page, &ranking, &parameters),
        slices::section(page, &ranking, &parameters),
        trials::section(page, &ranking, &parameters),
    ]
    .concat()
}

/// A study as its page shows it.
pub struct StudyPage<'a> {
    pub name: &'a str,
    /// `running`, `finished`, `stopped` or `failed`.
    pub status: &'a str,
    pub notes: Notes,
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
    /// The address of the page of a run.
    pub link: &'a dyn Fn(&str) -> String,
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
    use crate::run::Notes;

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
                notes: Notes::default(),
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
                link: &|run| format!("../{run}/report.html"),
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

#[cfg(test)]
mod tests {
    use pipe_search::{Direction, Domain, Trial, TrialState};
    use serde_json::json;

    use super::*;
    use crate::report::html::study::samples::{Sample, space, trial};

    #[test]
    fn an_empty_study() {
        let html = body(&Sample::default().page());
        assert!(html.contains("0 of 100 trials") && html.contains("No trial has begun"), "{html}");
        assert!(!html.contains("NaN"), "{html}");
    }

    #[test]
    fn no_objective() {
        let mut sample = Sample::of(vec![trial(0, 0.5)]);
        sample.objectives.clear();
        assert!(body(&sample.page()).contains("No trial is complete."));
    }

    #[test]
    fn one_trial() {
        let html = body(&Sample::of(vec![trial(0, 0.5)]).page());
        assert!(html.contains("trial 0") && !html.contains("NaN") && !html.contains("=\"inf"), "{html}");
    }

    #[test]
    fn no_text_breaks_out() {
        let hostile = "</title></svg><script>alert(1)</script>\"'&";
        let mut bad = trial(0, 0.5);
        bad.point.insert(hostile.to_owned(), json!(hostile));
        bad.domains.insert(hostile.to_owned(), Domain::Choices(vec![json!(hostile), json!("b")]));
        bad.user_attrs.insert("error".to_owned(), json!(hostile));
        bad.user_attrs.insert("run".to_owned(), json!(hostile));
        let mut sample = Sample::of(vec![bad, trial(1, 0.25)]);
        sample.objectives = vec![(hostile.to_owned(), Direction::Maximize)];
        let page = StudyPage {
            name: hostile,
            status: hostile,
            notes: Notes { note: hostile.to_owned(), tags: vec![hostile.to_owned()] },
            budget: hostile.to_owned(),
            best_file: Some(hostile.to_owned()),
            importances: vec![(hostile.to_owned(), [(hostile.to_owned(), 1.0)].into())],
            ..sample.page()
        };
        let html = body(&page);
        assert!(!html.contains("<script") && !html.contains("</title></svg><s"), "{html}");
        assert_eq!(html.matches("<svg").count(), html.matches("</svg>").count());
    }

    #[test]
    fn values_that_are_no_numbers() {
        let values = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 1e308, -1e308, 0.5, 0.25];
        let mut trials: Vec<Trial> = (0..).zip(values).map(|(number, value)| trial(number, value)).collect();
        for (one, value) in trials.iter_mut().zip(values) {
            one.intermediate = [(1, value), (2, f64::NAN), (3, value)].into();
            one.constraints = vec![f64::NAN];
            for name in ["peak_memory", "predicted_peak", "capacity", "seconds", "attempts"] {
                one.user_attrs.insert(name.to_owned(), json!(value));
            }
        }
        trials[0].state = TrialState::Pruned;
        let mut sample = Sample::of(trials);
        sample.shares = [("lr".to_owned(), f64::NAN), ("batch".to_owned(), f64::INFINITY)].into();
        let html = body(&sample.page());
        for attribute in ["x=\"", "y=\"", "d=\"", "points=\"", "r=\"", "width=\"", "height=\""] {
            for value in html.split(attribute).skip(1).filter_map(|rest| rest.split('"').next()) {
                assert!(!value.contains("NaN") && !value.contains("inf"), "{attribute}{value}");
            }
        }
    }

    #[test]
    fn thousands_of_trials_make_no_large_page() {
        let mut trials: Vec<Trial> = (0..4000).map(|number| trial(number, 1.0 / (number % 977 + 1) as f64)).collect();
        for trial in &mut trials {
            trial.intermediate = (0..300).map(|step| (step, 1.0 / (step + 1) as f64)).collect();
            trial.user_attrs.insert("peak_memory".to_owned(), json!(1_u64 << 33));
            for extra in 0..20 {
                trial.point.insert(format!("model.some.setting{extra}"), json!(0.123_456_789 * f64::from(extra)));
            }
        }
        let mut sample = Sample::of(trials);
        let domain = Domain::Float { low: 0.0, high: 3.0, log: false, step: None };
        for extra in 0..20 {
            let more = space(&format!("model.some.setting{extra}"), domain.clone()).parameters;
            sample.space.parameters.extend(more);
        }
        let html = body(&sample.page());
        assert!(html.len() < 1_500_000, "{}", html.len());
        assert!(html.contains("more trials") && html.contains("of 4000 trials"));
    }
}

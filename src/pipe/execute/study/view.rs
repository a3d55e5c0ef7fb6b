//! A study for people: the summary of a terminal, the page, the table, the pipeline of its best trial.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use pipe_search::{Trial, best};
use pipe_spec::study::Study;
use pipe_spec::text::{count, human_bytes};
use pipe_spec::{RunState, Status, Variables};
use serde_json::{Value, json};

use super::trial::{self, Standing};
use super::{directions, importances_of, space};
use crate::engine::registry;
use crate::error::Error;
use crate::report::html::StudyPage;
use crate::report::{Table, duration, figure};
use crate::system::files;

/// The pipeline of the best trial, in the folder of the study.
pub const BEST: &str = "best.yaml";

pub struct StudyView<'a> {
    pub study: &'a Study,
    /// All of the storage, those that Optuna has run among them.
    pub trials: &'a [Trial],
    pub state: &'a RunState,
}

impl StudyView<'_> {
    /// Those that no other is better than.
    pub fn best(&self) -> Vec<&Trial> {
        let found = best(self.trials, &directions(self.study));
        found.into_iter().filter_map(|index| self.trials.get(index)).collect()
    }

    /// The pipeline file of a trial, without what belongs to the search.
    pub fn pipeline(&self, trial: &Trial, variables: &Variables) -> Result<String, String> {
        let mut more = Vec::new();
        // The run of the trial shows what the trial ran as: the architecture of a model that was chosen.
        let ran = self.run_of(trial).and_then(|id| files::read_own_text(&crate::run::folder_of(&id).resolved()).ok());
        let ran = ran.and_then(|text| registry::parse_pipeline(&text, &[], variables).ok());
        if let Some(training) = ran.as_ref().and_then(pipe_spec::Pipeline::training) {
            more.push(("model.arch", json!(training.model.arch.name())));
        }
        let pipeline = self
            .study
            .pipeline(self.study.name.as_str(), &trial.point, &more, variables)
            .map_err(|problems| problems.to_string())?;
        let values = self.values(trial).join(", ");
        let id = &self.state.id;
        Ok(format!("# Trial {} of the study {id}: {values}\n{}", trial.number, pipeline.to_yaml()))
    }

    fn run_of(&self, trial: &Trial) -> Option<String> {
        trial.user_attrs.get(trial::RUN).and_then(Value::as_str).map(ToOwned::to_owned)
    }

    /// The pipeline file of the best trial, of several the first.
    pub fn best_pipeline(&self, variables: &Variables) -> Option<String> {
        self.pipeline(self.best().into_iter().next()?, variables).ok()
    }

    /// There is no best trial: says why the last one is none.
    pub fn no_best(&self) -> Error {
        let objective = self.study.objectives.first().map_or(String::new(), |objective| objective.metric.clone());
        let ended = self.trials.iter().rev().find_map(|trial| trial.user_attrs.get(trial::ERROR)?.as_str());
        Error::NoBest {
            id: self.state.id.clone(),
            objective,
            why: ended.and_then(|text| text.lines().next()).map(ToOwned::to_owned),
        }
    }

    /// The objectives of a trial with their names.
    pub fn values(&self, trial: &Trial) -> Vec<String> {
        let named = self.study.objectives.iter().zip(&trial.values);
        named
            .map(|(objective, value)| format!("{} {}", objective.metric, value_text(&objective.metric, *value)))
            .collect()
    }

    /// How much of the budget is spent.
    pub fn budget(&self) -> String {
        let state = self.state.study().cloned().unwrap_or_default();
        let trials = match self.study.budget.trials {
            Some(most) => format!("{} of {}", state.trials.run(), count(most, "trial")),
            None => count(state.trials.run(), "trial"),
        };
        match self.study.budget.hours {
            Some(hours) => format!("{trials}, {} of {}", duration(state.seconds), duration(hours * 3600.0)),
            None => format!("{trials} in {}", duration(state.seconds)),
        }
    }

    /// How the trials ended, in one line.
    pub fn counts(&self) -> String {
        let counts = trial::counts(self.trials.iter());
        let named = [
            (counts.running, if self.state.status == Status::Running { "running" } else { "unfinished" }),
            (counts.complete, "complete"),
            (counts.pruned, "ended early"),
            (counts.failed, "failed"),
            (counts.repeated, "the same training as another"),
        ];
        let mut words: Vec<String> =
            named.iter().filter(|(count, _)| *count > 0).map(|(count, name)| format!("{count} {name}")).collect();
        if counts.infeasible > 0 {
            let proposed = counts.run() + counts.repeated + counts.infeasible;
            let share = counts.infeasible as f64 * 100.0 / proposed as f64;
            words.push(format!(
                "{} never begun because they do not fit ({share:.0} % of the proposals)",
                counts.infeasible
            ));
        }
        if words.is_empty() { "none yet".to_owned() } else { words.join(", ") }
    }

    /// The lines at the end of a study.
    pub fn summary(&self) -> Vec<String> {
        let mut lines = vec![format!("trials: {}", self.counts())];
        let best = self.best();
        for trial in best.iter().take(MOST_BEST) {
            lines.push(format!(
                "best: trial {}, {}: {}",
                trial.number,
                self.values(trial).join(", "),
                trial::settings(trial)
            ));
        }
        if best.len() > MOST_BEST {
            lines.push(format!("and {} more that none is better than in all objectives", best.len() - MOST_BEST));
        }
        if matches!(self.state.status, Status::Stopped | Status::Failed | Status::Orphaned) {
            lines.push(format!("`pipe tune resume {}` goes on", self.state.id));
        }
        if !best.is_empty() {
            lines.push(format!("its pipeline: `pipe tune best {}`", self.state.id));
        }
        let report = crate::run::folder_of(&self.state.id).report();
        lines.extend(report.is_file().then(|| format!("report: {}", from_here(&report).display())));
        lines
    }

    /// All trials, for a terminal.
    pub fn table(&self, most: usize) -> Table {
        let metrics: Vec<&str> = self.study.objectives.iter().map(|objective| objective.metric.as_str()).collect();
        let head: Vec<&str> =
            ["trial", "state"].into_iter().chain(metrics).chain(["peak", "time", "settings"]).collect();
        let mut table = Table::new(&head);
        let skipped = self.trials.len().saturating_sub(most);
        for trial in &self.trials[skipped..] {
            let bytes = |name: &str| trial.user_attrs.get(name).and_then(Value::as_u64);
            let peak = match (bytes(trial::PEAK_MEMORY), bytes(trial::PREDICTED_PEAK)) {
                (Some(peak), _) => human_bytes(peak),
                (None, Some(predicted)) => format!("~{}", human_bytes(predicted)),
                (None, None) => "-".to_owned(),
            };
            let seconds = trial.user_attrs.get(trial::SECONDS).and_then(Value::as_f64);
            let mut row = vec![trial.number.to_string(), Standing::of(trial).name().to_owned()];
            row.extend(self.study.objectives.iter().enumerate().map(|(index, objective)| {
                let last = trial.intermediate.values().next_back().filter(|_| index == 0);
                match (trial.values.get(index), last) {
                    (Some(value), _) => value_text(&objective.metric, *value),
                    (None, Some(last)) => format!("({})", value_text(&objective.metric, *last)),
                    (None, None) => "-".to_owned(),
                }
            }));
            row.extend([peak, seconds.map_or("-".to_owned(), duration), trial::settings(trial)]);
            table.row(row);
        }
        table
    }

    pub fn page(&self) -> String {
        let objectives: Vec<_> = self
            .study
            .objectives
            .iter()
            .zip(directions(self.study))
            .map(|(objective, direction)| (objective.metric.clone(), direction))
            .collect();
        let id = &self.state.id;
        let best_file = crate::run::folder_of(id).path().join(BEST);
        crate::report::html::study_page(&StudyPage {
            name: id,
            status: self.state.status.name(),
            objectives: &objectives,
            space: &space(self.study),
            trials: self.trials,
            importances: importances_of(self.study, self.trials),
            budget: self.budget(),
            best_file: Some(best_file)
                .filter(|file| file.is_file())
                .map(|file| {
                    Some(from_here(&file)).filter(|file| file.is_relative()).unwrap_or(Path::new(id).join(BEST))
                })
                .map(|file| file.display().to_string()),
        })
    }

    /// For scripts.
    pub fn to_json(&self) -> Value {
        let best: Vec<u64> = self.best().iter().map(|trial| trial.number).collect();
        json!({
            "id": self.state.id,
            "name": self.study.name.as_str(),
            "status": self.state.status,
            "storage": self.state.study().map(|study| &study.storage),
            "objectives": self.study.objectives,
            "counts": trial::counts(self.trials.iter()),
            "budget": self.study.budget,
            "seconds": self.state.study().map(|study| study.seconds),
            "best": best,
            "trials": self.trials.iter().map(trial_json).collect::<Vec<_>>(),
        })
    }
}

/// Best trials that are named at the end, at most.
const MOST_BEST: usize = 5;

/// A file of a run as it is called in this folder.
fn from_here(path: &Path) -> PathBuf {
    let working = std::env::current_dir().unwrap_or_default();
    path.strip_prefix(&working).unwrap_or(path).to_owned()
}

/// A trial for scripts.
pub fn trial_json(trial: &Trial) -> Value {
    let intermediate: BTreeMap<String, f64> =
        trial.intermediate.iter().map(|(step, value)| (step.to_string(), *value)).collect();
    json!({
        "number": trial.number,
        "state": Standing::of(trial),
        "params": trial.point,
        "values": trial.values,
        "intermediate": intermediate,
        "attributes": trial.user_attrs,
        "constraints": trial.constraints,
        "began": trial.began,
        "ended": trial.ended,
    })
}

fn value_text(metric: &str, value: f64) -> String {
    match metric {
        "peak_memory" if value >= 0.0 => human_bytes(value as u64),
        "seconds" => duration(value),
        _ => figure(value),
    }
}

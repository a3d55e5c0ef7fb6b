//! A study for people: the summary of a terminal, the page, the table, the pipeline of its best trial.
//!
//! Shows a study: a line where a trial begins and ends, how far it has come, and the trials that run.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use pipe_search::{Direction, Journal, Space, Trial, TrialState, best};
use pipe_spec::pipeline::Gpus;
use pipe_spec::run::StageStatus;
use pipe_spec::study::Study;
use pipe_spec::text::{count, human_bytes};
use pipe_spec::{RunState, Status, Variables};
use serde_json::{Value, json};

use super::trial::{self, Standing};
use super::{directions, importances_of, space, storage};
use crate::engine::registry;
use crate::error::Error;
use crate::execute::children::Watcher;
use crate::input::load::{self, ParsedStudy};
use crate::report::html::{StudyPage, study_body, study_page};
use crate::report::{ChildLine, Reporter, Table, duration, figure, print_json_line};
use crate::run::{self, Listed, Notes};
use crate::system::clock::now;
use crate::system::files;

/// The pipeline of the best trial, in the folder of the study.
pub const BEST: &str = "best.yaml";

/// A study that is there, with its trials.
pub struct OpenedStudy {
    pub study: Study,
    pub variables: Variables,
    pub trials: Vec<Trial>,
    pub state: RunState,
}

impl OpenedStudy {
    pub fn open(found: Listed) -> Result<Self, Error> {
        Self::open_up_to(u64::MAX, found)
    }

    /// The same where its storage has at most `limit` bytes.
    pub fn open_up_to(limit: u64, mut found: Listed) -> Result<Self, Error> {
        let file = found.folder().resolved();
        let Some(ParsedStudy { study, variables, .. }) = load::parse_study(&file, &[])? else {
            return Err(Error::NotStudyRun { id: found.state.id });
        };
        // Beside it, wherever its folder was moved.
        let storage = storage(&study, &found.folder());
        if let Some(state) = found.state.study_mut() {
            state.storage.clone_from(&storage);
        }
        let size = std::fs::metadata(&storage).map_or(0, |file| file.len());
        if size > limit {
            return Err(Error::TooLarge { path: storage, size, limit });
        }
        let journal = Journal::read_if_there(&storage, study.name.as_str())?;
        let trials = journal.map_or_else(Vec::new, Journal::into_trials);
        Ok(Self { study, variables, trials, state: found.state })
    }

    pub fn view(&self) -> StudyView<'_> {
        StudyView { study: &self.study, trials: &self.trials, state: &self.state }
    }
}

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
        let notes = Notes::read(&crate::run::folder_of(&self.state.id));
        let link = |run: &str| format!("../{run}/report.html");
        study_page(&self.shown(&self.objectives(), &space(self.study), &link, notes))
    }

    /// The content of the page, with other addresses of the pages of its runs.
    pub fn body(&self, link: &dyn Fn(&str) -> String, notes: Notes) -> String {
        study_body(&self.shown(&self.objectives(), &space(self.study), link, notes))
    }

    fn objectives(&self) -> Vec<(String, Direction)> {
        let names = self.study.objectives.iter().map(|objective| objective.metric.clone());
        names.zip(directions(self.study)).collect()
    }

    fn shown<'a>(
        &'a self,
        objectives: &'a [(String, Direction)],
        space: &'a Space,
        link: &'a dyn Fn(&str) -> String,
        notes: Notes,
    ) -> StudyPage<'a> {
        let id = &self.state.id;
        let best_file = Some(crate::run::folder_of(id).path().join(BEST)).filter(|file| file.is_file());
        let near = |file: &Path| Some(from_here(file)).filter(|file| file.is_relative());
        StudyPage {
            name: id,
            status: self.state.status.name(),
            notes,
            objectives,
            space,
            trials: self.trials,
            importances: importances_of(self.study, self.trials),
            budget: self.budget(),
            best_file: best_file.map(|file| near(&file).unwrap_or(Path::new(id).join(BEST)).display().to_string()),
            link,
        }
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

pub struct StudyWatcher {
    json: bool,
    id: String,
    study: Study,
    directions: Vec<Direction>,
    /// The runs of the trials that run.
    runs: BTreeMap<u64, Watcher>,
    /// How each trial stood when it was last shown.
    shown: BTreeMap<u64, Standing>,
}

impl StudyWatcher {
    /// Trials that have ended by now are not shown, but to a script.
    pub fn new(json: bool, id: &str, study: &Study, trials: &[Trial]) -> Self {
        let directions = directions(study);
        let ended = trials.iter().filter(|trial| !json && trial.state.has_ended());
        Self {
            json,
            id: id.to_owned(),
            study: study.clone(),
            runs: BTreeMap::new(),
            shown: ended.map(|trial| (trial.number, Standing::of(trial))).collect(),
            directions,
        }
    }

    pub fn show(&mut self, state: &RunState, trials: &[Trial], reporter: &mut Reporter) -> Result<(), Error> {
        let best = trial::best_of(trials, &self.directions).map(|(number, _)| number);
        for trial in trials {
            // The last lines of its run come before its end.
            let has_run = trial.user_attrs.contains_key(trial::RUN);
            if has_run && trial.state.has_ended() && self.shown.get(&trial.number) != Some(&Standing::of(trial)) {
                self.look_at(trial.number)?;
                self.runs.remove(&trial.number);
            }
            self.show_change(trial, best, reporter);
        }
        let running: Vec<&Trial> = trials.iter().filter(|trial| trial.state == TrialState::Running).collect();
        self.runs.retain(|number, _| running.iter().any(|trial| trial.number == *number));
        for trial in &running {
            self.look_at(trial.number)?;
        }
        let view = StudyView { study: &self.study, trials, state };
        reporter.doing("tuning");
        let best = view.best().first().map(|trial| {
            format!("trial {}: {}   {}", trial.number, view.values(trial).join(", "), trial::settings(trial))
        });
        let mut facts = vec![("trials", format!("{}   {}", view.budget(), view.counts()))];
        facts.extend(best.map(|text| ("best", text)));
        reporter.show_study(facts, running.iter().map(|trial| self.line(trial)).collect());
        Ok(())
    }

    /// Reads the news of a trial's run. Its log has all of it; here only how far it has come is shown.
    fn look_at(&mut self, number: u64) -> Result<(), Error> {
        if !self.runs.contains_key(&number) {
            let id = run::child_id(&self.id, &number.to_string());
            let Some(found) = Listed::read(run::folder_of(&id).path()) else { return Ok(()) };
            let reporter = Reporter::of_child(&number.to_string(), self.json);
            self.runs.insert(number, Watcher::new(&found, reporter, self.json));
        }
        let Some(watcher) = self.runs.get_mut(&number) else { return Ok(()) };
        if let Ok(now) = watcher.look() {
            watcher.show(&now)?;
        }
        watcher.reporter.take_lines();
        Ok(())
    }

    fn show_change(&mut self, trial: &Trial, best: Option<u64>, reporter: &Reporter) {
        let standing = Standing::of(trial);
        if self.shown.insert(trial.number, standing) == Some(standing) {
            return;
        }
        if self.json {
            let mut line = json!({ "type": "trial" });
            if let (Some(line), Value::Object(fields)) = (line.as_object_mut(), trial_json(trial)) {
                line.extend(fields);
            }
            print_json_line(&line);
        }
        let text = |name: &str| trial.user_attrs.get(name).and_then(Value::as_str).unwrap_or_default().to_owned();
        let number = |name: &str| trial.user_attrs.get(name).and_then(Value::as_f64);
        let seconds = number(trial::SECONDS).map_or(String::new(), |seconds| format!(" in {}", duration(seconds)));
        let first_line = |text: String| text.lines().next().unwrap_or_default().to_owned();
        let what = match standing {
            Standing::Waiting => return,
            Standing::Running => trial::settings(trial),
            Standing::Complete => {
                let view = StudyView { study: &self.study, trials: &[], state: &RunState::new("", "", "") };
                let is_best = if best == Some(trial.number) { ", the best so far" } else { "" };
                let retried = match number(trial::ATTEMPTS) {
                    Some(attempts) if attempts > 1.0 => format!(", in {attempts} attempts"),
                    _ => String::new(),
                };
                format!("{}{seconds}{retried}{is_best}", view.values(trial).join(", "))
            }
            Standing::Pruned => {
                let at = number(trial::PRUNED_AT).map_or(String::new(), |step| format!(" at step {step}"));
                format!("ended early{at}: others were better{seconds}")
            }
            Standing::OutOfMemory => format!("out of memory{seconds}: {}", first_line(text(trial::ERROR))),
            Standing::Infeasible => {
                let bytes = |name: &str| number(name).map(|bytes| human_bytes(bytes as u64));
                let why = match (bytes(trial::PREDICTED_PEAK), bytes(trial::CAPACITY), text(trial::ERROR)) {
                    (_, _, error) if !error.is_empty() => error,
                    (Some(peak), Some(capacity), _) => format!("it needs {peak} of {capacity}"),
                    _ => "it is known not to fit".to_owned(),
                };
                format!("not begun: {why}   {}", trial::settings(trial))
            }
            Standing::Repeated => {
                let first = number(trial::SAME_AS).unwrap_or_default();
                format!("not begun: the same training as trial {first}   {}", trial::settings(trial))
            }
            Standing::Failed => format!("failed: {}", first_line(text(trial::ERROR))),
        };
        reporter.say(&format!("trial {}: {what}", trial.number));
    }

    fn line(&self, trial: &Trial) -> ChildLine {
        let since = trial.began.map_or(0.0, |began| now() - began);
        let brief = self.runs.get(&trial.number).map_or("starting".to_owned(), |watcher| watcher.reporter.brief());
        let text = format!("{brief}   {}   {}", duration(since), trial::settings(trial));
        ChildLine { name: format!("trial {}", trial.number), status: StageStatus::Running, text }
    }

    /// How many of the trials that run have this card.
    pub fn trials_on(&self, card: &str) -> usize {
        let has_card = |watcher: &&Watcher| {
            let text = files::read_own_text(&watcher.found.folder().resolved()).unwrap_or_default();
            let pipeline = registry::parse_pipeline(&text, &[], &load::variables());
            pipeline.is_ok_and(
                |pipeline| matches!(&pipeline.container.gpus, Gpus::Ids(ids) if ids.iter().any(|id| id == card)),
            )
        };
        self.runs.values().filter(has_card).count()
    }
}

//! Shows a study: a line where a trial begins and ends, how far it has come, and the trials that run.

use std::collections::BTreeMap;

use pipe_search::{Direction, Trial, TrialState};
use pipe_spec::RunState;
use pipe_spec::pipeline::Gpus;
use pipe_spec::run::StageStatus;
use pipe_spec::study::Study;
use pipe_spec::text::human_bytes;
use serde_json::{Value, json};

use super::directions;
use super::trial::{self, Standing};
use super::view::{StudyView, trial_json};
use crate::engine::registry;
use crate::error::Error;
use crate::execute::children::watcher::Watcher;
use crate::input::load;
use crate::report::{ChildLine, Reporter, duration, print_json_line};
use crate::run::{self, Listed};
use crate::system::clock::now;
use crate::system::files;

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

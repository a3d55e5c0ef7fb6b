//! Shows a run of several stages: what each says, with its name before it, and how far all have come.

use std::collections::BTreeMap;

use pipe_spec::RunState;
use pipe_spec::run::{StageState, StageStatus};
use serde_json::json;

use crate::error::Error;
use crate::execute::children::Watcher;
use crate::execute::single::LAST_LINES;
use crate::report::{ChildLine, Reporter, duration, print_json_line};
use crate::run::{self, Listed};
use crate::system::clock::now;

/// The error of a stage without the end of its log, which was shown while it ran.
pub fn failure(stage: &StageState) -> String {
    let error = stage.error.as_deref().unwrap_or("no reason is known");
    match (error.split_once(LAST_LINES), &stage.run) {
        (Some((reason, _)), Some(run)) => format!("{reason}; `pipe logs {run}` shows its log"),
        _ => error.to_owned(),
    }
}

pub struct StagesWatcher {
    json: bool,
    stages: BTreeMap<String, Watcher>,
    shown: BTreeMap<String, StageStatus>,
}

impl StagesWatcher {
    /// Messages of stages in attempts that have ended by now are not shown.
    pub fn new(json: bool, state: &RunState) -> Self {
        let mut watcher = Self { json, stages: BTreeMap::new(), shown: BTreeMap::new() };
        for stage in state.stages().iter().filter(|stage| !json && !stage.status.is_done()) {
            if let Some(of_stage) = watcher.of_stage(stage) {
                // A folder that cannot be read is told when the stage begins.
                of_stage.skip_ended().ok();
            }
        }
        watcher
    }

    /// For the run of a stage, once there is one.
    fn of_stage(&mut self, stage: &StageState) -> Option<&mut Watcher> {
        if !self.stages.contains_key(&stage.name) {
            let found = Listed::read(run::folder_of(stage.run.as_ref()?).path())?;
            let mut watcher = Watcher::new(&found, Reporter::of_child(&stage.name, self.json), self.json);
            watcher.shows_output = true;
            self.stages.insert(stage.name.clone(), watcher);
        }
        self.stages.get_mut(&stage.name)
    }

    /// Shows what is new in the run and in those of its stages.
    pub fn show(&mut self, state: &RunState, reporter: &mut Reporter) -> Result<(), Error> {
        for stage in state.stages() {
            let ran = self.shown.get(&stage.name) == Some(&StageStatus::Running);
            if stage.status == StageStatus::Running {
                self.show_change(stage, reporter);
            }
            if stage.status == StageStatus::Running || ran {
                self.show_run(stage, reporter)?;
            }
            // After what it printed.
            self.show_change(stage, reporter);
        }
        let done = state.stages().iter().filter(|stage| stage.status.is_done()).count();
        reporter.doing(&format!("{done} of {} steps done", state.stages().len()));
        reporter.show_stages(state.stages().iter().map(|stage| self.line(stage)).collect());
        Ok(())
    }

    /// Messages of the run of a stage since the last time.
    fn show_run(&mut self, stage: &StageState, reporter: &Reporter) -> Result<(), Error> {
        let Some(watcher) = self.of_stage(stage) else { return Ok(()) };
        // One that is being replaced cannot be read for a moment.
        if let Ok(now) = watcher.look() {
            watcher.show(&now)?;
        }
        watcher.reporter.take_lines().iter().for_each(|line| reporter.say(&format!("[{}] {line}", stage.name)));
        Ok(())
    }

    fn show_change(&mut self, stage: &StageState, reporter: &Reporter) {
        let before = self.shown.insert(stage.name.clone(), stage.status);
        if before == Some(stage.status) || (before.is_none() && stage.status == StageStatus::Waiting) {
            return;
        }
        if self.json {
            print_json_line(
                &json!({ "type": "pipeline_step", "in": stage.name, "status": stage.status, "run": stage.run, "error": stage.error }),
            );
        }
        let name = &stage.name;
        let run = stage.run.as_deref().unwrap_or_default();
        reporter.say(&match stage.status {
            StageStatus::Waiting => format!("[{name}] waits again"),
            StageStatus::Running => format!("[{name}] run {run}"),
            StageStatus::Finished => format!("[{name}] finished in {}", duration(stage.seconds.unwrap_or_default())),
            StageStatus::Unchanged if !stage.changed.is_empty() => {
                format!("[{name}] taken from {run}, although {} changed while that ran", stage.changed.join(", "))
            }
            StageStatus::Unchanged => format!("[{name}] nothing has changed since {run}: not run again"),
            StageStatus::LeftOut => format!("[{name}] left out"),
            StageStatus::Failed => format!("[{name}] failed: {}", failure(stage)),
            StageStatus::Stopped => format!("[{name}] stopped"),
        });
    }

    fn line(&self, stage: &StageState) -> ChildLine {
        let needs = stage.needs.join(", ");
        let text = match stage.status {
            StageStatus::Waiting if needs.is_empty() => "waiting".to_owned(),
            StageStatus::Waiting => format!("after {needs}"),
            StageStatus::Running => {
                let since = stage.began.map_or(0.0, |began| now() - began);
                let brief = self.stages.get(&stage.name).map_or(String::new(), |watcher| watcher.reporter.brief());
                format!("{brief}   {}", duration(since))
            }
            StageStatus::Finished => format!("finished in {}", duration(stage.seconds.unwrap_or_default())),
            StageStatus::Failed => {
                stage.error.as_deref().and_then(|error| error.lines().next()).unwrap_or("failed").to_owned()
            }
            StageStatus::Unchanged | StageStatus::LeftOut | StageStatus::Stopped => stage.status.name().to_owned(),
        };
        ChildLine { name: stage.name.clone(), status: stage.status, text }
    }
}

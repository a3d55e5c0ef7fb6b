//! Shows a run of several steps: what each says, with its name before it, and how far all have come.

use std::collections::BTreeMap;

use pipe_spec::RunState;
use pipe_spec::run::{StageState, StageStatus};
use serde_json::json;

use crate::error::Error;
use crate::execute::children::watcher::Watcher;
use crate::report::{ChildLine, Reporter, duration, print_json_line};
use crate::run::{self, Listed};
use crate::system::clock::now;

pub struct StagesWatcher {
    json: bool,
    steps: BTreeMap<String, Watcher>,
    shown: BTreeMap<String, StageStatus>,
}

impl StagesWatcher {
    /// What steps have said in attempts that have ended by now is not shown.
    pub fn new(json: bool, state: &RunState) -> Self {
        let mut watcher = Self { json, steps: BTreeMap::new(), shown: BTreeMap::new() };
        for step in state.stages().iter().filter(|step| !json && !step.status.is_done()) {
            if let Some(of_step) = watcher.of_step(step) {
                // A folder that cannot be read is told when the step begins.
                of_step.skip_ended().ok();
            }
        }
        watcher
    }

    /// For the run of a step, once there is one.
    fn of_step(&mut self, step: &StageState) -> Option<&mut Watcher> {
        if !self.steps.contains_key(&step.name) {
            let found = Listed::read(run::folder_of(step.run.as_ref()?).path())?;
            let mut watcher = Watcher::new(&found, Reporter::of_step(&step.name, self.json), self.json);
            watcher.shows_output = true;
            self.steps.insert(step.name.clone(), watcher);
        }
        self.steps.get_mut(&step.name)
    }

    /// Shows what is new in the run and in those of its steps.
    pub fn show(&mut self, state: &RunState, reporter: &mut Reporter) -> Result<(), Error> {
        for step in state.stages() {
            let ran = self.shown.get(&step.name) == Some(&StageStatus::Running);
            if step.status == StageStatus::Running {
                self.show_change(step, reporter);
            }
            if step.status == StageStatus::Running || ran {
                self.show_run(step, reporter)?;
            }
            // After what it printed.
            self.show_change(step, reporter);
        }
        let done = state.stages().iter().filter(|step| step.status.is_done()).count();
        reporter.doing(&format!("{done} of {} steps done", state.stages().len()));
        reporter.show_stages(state.stages().iter().map(|step| self.line(step)).collect());
        Ok(())
    }

    /// What the run of a step has said since the last time.
    fn show_run(&mut self, step: &StageState, reporter: &Reporter) -> Result<(), Error> {
        let Some(watcher) = self.of_step(step) else { return Ok(()) };
        // One that is being replaced cannot be read for a moment.
        if let Ok(now) = watcher.look() {
            watcher.show(&now)?;
        }
        watcher.reporter.take_lines().iter().for_each(|line| reporter.say(&format!("[{}] {line}", step.name)));
        Ok(())
    }

    fn show_change(&mut self, step: &StageState, reporter: &Reporter) {
        let before = self.shown.insert(step.name.clone(), step.status);
        if before == Some(step.status) || (before.is_none() && step.status == StageStatus::Waiting) {
            return;
        }
        if self.json {
            print_json_line(
                &json!({ "type": "pipeline_step", "in": step.name, "status": step.status, "run": step.run, "error": step.error }),
            );
        }
        let name = &step.name;
        let run = step.run.as_deref().unwrap_or_default();
        reporter.say(&match step.status {
            StageStatus::Waiting => format!("[{name}] waits again"),
            StageStatus::Running => format!("[{name}] run {run}"),
            StageStatus::Finished => format!("[{name}] finished in {}", duration(step.seconds.unwrap_or_default())),
            StageStatus::Unchanged => format!("[{name}] nothing has changed since {run}: not run again"),
            StageStatus::LeftOut => format!("[{name}] left out"),
            StageStatus::Failed => {
                format!("[{name}] failed: {}", step.error.as_deref().unwrap_or("no reason is known"))
            }
            StageStatus::Stopped => format!("[{name}] stopped"),
        });
    }

    fn line(&self, step: &StageState) -> ChildLine {
        let needs = step.needs.join(", ");
        let text = match step.status {
            StageStatus::Waiting if needs.is_empty() => "waiting".to_owned(),
            StageStatus::Waiting => format!("after {needs}"),
            StageStatus::Running => {
                let since = step.began.map_or(0.0, |began| now() - began);
                let brief = self.steps.get(&step.name).map_or(String::new(), |watcher| watcher.reporter.brief());
                format!("{brief}   {}", duration(since))
            }
            StageStatus::Finished => format!("finished in {}", duration(step.seconds.unwrap_or_default())),
            StageStatus::Failed => {
                step.error.as_deref().and_then(|error| error.lines().next()).unwrap_or("failed").to_owned()
            }
            StageStatus::Unchanged | StageStatus::LeftOut | StageStatus::Stopped => step.status.name().to_owned(),
        };
        ChildLine { name: step.name.clone(), status: step.status, text }
    }
}

//! `pipe attach`: watches a run in the background; if its `pipe` process was killed, it starts another one.

use std::time::Duration;

use pipe_spec::event::RecordedEvent;
use pipe_spec::{PipeExit, RunState, Status};

use crate::detach;
use crate::error::Error;
use crate::interrupt::Interrupts;
use crate::report::{Reporter, say};
use crate::run::{self, Follow, Listed};

/// How often the run folder is read.
const POLL_INTERVAL: Duration = Duration::from_millis(150);

pub fn run(wanted: &str, json: bool, quiet: bool) -> Result<(), Error> {
    let found = run::find(wanted)?;
    if !found.damage.is_empty() {
        return Err(Error::Damaged { id: found.state.id, damage: found.damage });
    }
    super::runtime()?.block_on(async {
        let mut interrupts = Interrupts::listen()?;
        let watcher = Watcher::new(&found, Reporter::new(json, quiet), json);
        tokio::select! {
            ended = watcher.watch() => ended,
            _ = interrupts.next() => {
                if !quiet {
                    say(&format!("the run continues: `pipe attach {0}` watches it again, `pipe stop {0}` stops it", found.state.id));
                }
                Ok(())
            }
        }
    })
}

struct Watcher {
    found: Listed,
    reporter: Reporter,
    json: bool,
    events: Follow,
    journal: Follow,
    /// How many attempts were shown to begin and to end.
    begun: usize,
    ended: usize,
    doing: Option<String>,
}

impl Watcher {
    fn new(found: &Listed, mut reporter: Reporter, json: bool) -> Self {
        let folder = found.folder();
        reporter.set_unit(run::unit(&folder));
        Self {
            found: found.clone(),
            reporter,
            json,
            events: Follow::new(folder.events()),
            journal: Follow::new(folder.journal()),
            begun: 0,
            ended: 0,
            doing: None,
        }
    }

    async fn watch(mut self) -> Result<(), Error> {
        self.catch_up()?;
        loop {
            let state = self.look()?;
            if state.status == Status::Orphaned {
                self.reporter.note("no pipe process is running this run: starting one in the background");
                detach::start(&self.found.folder(), &[])?;
                continue;
            }
            self.show(&state)?;
            if state.status != Status::Running {
                return self.over(&state);
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }

    fn look(&self) -> Result<RunState, Error> {
        match Listed::read(self.found.folder().path()) {
            Some(found) if found.damage.is_empty() => Ok(found.state),
            Some(found) => Err(Error::Damaged { id: found.state.id, damage: found.damage }),
            None => Err(Error::NoRun { wanted: self.found.state.id.clone(), runs: run::runs_folder() }),
        }
    }

    /// Replays past events, as far as the display needs them. A script gets all of them.
    fn catch_up(&mut self) -> Result<(), Error> {
        let state = self.look()?;
        let live = matches!(state.status, Status::Running | Status::Orphaned);
        if !self.json {
            self.reporter.note(&format!("run {} in {}", state.id, self.found.folder));
            self.journal.skip()?;
            self.begun = state.attempts.len().saturating_sub(usize::from(live));
            self.ended = self.begun;
            self.show_begun(&state);
            while let Some(events) = self.next_events()? {
                events.iter().for_each(|recorded| self.reporter.replay(recorded));
            }
        }
        Ok(())
    }

    fn show(&mut self, state: &RunState) -> Result<(), Error> {
        self.journal.lines()?.iter().for_each(|line| self.reporter.note(line));
        self.show_begun(state);
        if state.doing != self.doing {
            self.doing.clone_from(&state.doing);
            self.doing.iter().for_each(|doing| self.reporter.doing(doing));
        }
        while let Some(events) = self.next_events()? {
            events.iter().for_each(|recorded| self.reporter.event(recorded));
        }
        for attempt in state.attempts.iter().skip(self.ended).filter(|attempt| attempt.outcome.is_some()) {
            self.reporter.attempt_ended(attempt);
            self.ended += 1;
        }
        Ok(())
    }

    fn show_begun(&mut self, state: &RunState) {
        for (index, attempt) in state.attempts.iter().enumerate().skip(self.begun) {
            let before = index.checked_sub(1).map(|before| &state.attempts[before]);
            self.reporter.attempt_started(attempt, state.at_most(), false, before);
            self.begun += 1;
        }
    }

    /// Events that were added, some at a time.
    fn next_events(&mut self) -> Result<Option<Vec<RecordedEvent>>, Error> {
        let lines = self.events.lines()?;
        let parsed = lines.iter().filter_map(|line| serde_json::from_str(line).ok());
        Ok((!lines.is_empty()).then(|| parsed.collect()))
    }

    fn over(mut self, state: &RunState) -> Result<(), Error> {
        self.reporter.run_ended(state, &self.found.folder);
        let code = state.exit_code.and_then(PipeExit::from_code);
        match state.status {
            Status::Finished => Ok(()),
            _ => Err(Error::RunEnded {
                reason: state.error.clone().unwrap_or_else(|| state.status.name().to_owned()),
                code: code.unwrap_or(PipeExit::TrainingFailed),
            }),
        }
    }
}

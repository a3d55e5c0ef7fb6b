//! Shows a run that another process runs, from its folder: what it says, its attempts and its events.

use pipe_spec::event::RecordedEvent;
use pipe_spec::pipeline::WorkKind;
use pipe_spec::{RunState, Status};

use crate::error::Error;
use crate::report::Reporter;
use crate::run::{self, Follow, Listed};

pub struct Watcher {
    pub found: Listed,
    pub reporter: Reporter,
    json: bool,
    events: Follow,
    journal: Follow,
    /// How many attempts were shown to begin and to end.
    begun: usize,
    ended: usize,
    doing: Option<String>,
    /// Whether what a command prints is shown.
    pub shows_output: bool,
    /// The number of its attempt, and its log.
    output: Option<(u32, Follow)>,
}

impl Watcher {
    pub fn new(found: &Listed, mut reporter: Reporter, json: bool) -> Self {
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
            shows_output: false,
            output: None,
        }
    }

    pub fn look(&self) -> Result<RunState, Error> {
        match Listed::read(self.found.folder().path()) {
            Some(found) if found.damage.is_empty() => Ok(found.state),
            Some(found) => Err(Error::Damaged { id: found.state.id, damage: found.damage }),
            None => Err(Error::NoRun { wanted: self.found.state.id.clone(), runs: run::runs_folder() }),
        }
    }

    /// Replays past events, as far as the display needs them. A script gets all of them.
    pub fn catch_up(&mut self) -> Result<(), Error> {
        let state = self.look()?;
        let live = matches!(state.status, Status::Running | Status::Orphaned);
        if !self.json {
            self.reporter.note(&format!("run {} in {}", state.id, self.found.folder));
            self.journal.skip()?;
            self.begun = state.attempts().len().saturating_sub(usize::from(live));
            self.ended = self.begun;
            self.show_begun(&state);
            while let Some(events) = self.next_events()? {
                events.iter().for_each(|recorded| self.reporter.replay(recorded));
            }
        }
        Ok(())
    }

    /// Passes over the attempts that have ended, and over all that was said in them.
    pub fn skip_ended(&mut self) -> Result<(), Error> {
        let state = self.look()?;
        let ended = state.attempts().iter().take_while(|attempt| attempt.outcome.is_some()).count();
        if ended == 0 {
            return Ok(());
        }
        (self.begun, self.ended) = (ended, ended);
        self.journal.skip()?;
        while let Some(events) = self.next_events()? {
            events.iter().for_each(|recorded| self.reporter.replay(recorded));
        }
        let last = state.attempts()[ended - 1].number;
        let mut log = Follow::new(self.found.folder().attempt(last).log());
        log.skip()?;
        self.output = Some((last, log));
        Ok(())
    }

    pub fn show(&mut self, state: &RunState) -> Result<(), Error> {
        self.journal.lines()?.iter().for_each(|line| self.reporter.note(line));
        self.show_begun(state);
        if state.doing != self.doing {
            self.doing.clone_from(&state.doing);
            self.doing.iter().for_each(|doing| self.reporter.doing(doing));
        }
        if self.shows_output && state.work() == WorkKind::Command && !self.json {
            self.show_output(state)?;
        }
        while let Some(events) = self.next_events()? {
            events.iter().for_each(|recorded| self.reporter.event(recorded));
        }
        for attempt in state.attempts().iter().skip(self.ended).filter(|attempt| attempt.outcome.is_some()) {
            self.reporter.attempt_ended(attempt);
            self.ended += 1;
        }
        Ok(())
    }

    /// Shows the lines that a command has printed since the last time.
    fn show_output(&mut self, state: &RunState) -> Result<(), Error> {
        for attempt in state.attempts() {
            let known = self.output.as_ref().map_or(0, |(number, _)| *number);
            if attempt.number > known {
                let log = self.found.folder().attempt(attempt.number).log();
                self.output = Some((attempt.number, Follow::new(log)));
            }
            let Some((_, log)) = self.output.as_mut().filter(|(number, _)| *number == attempt.number) else { continue };
            loop {
                let lines = log.lines()?;
                if lines.is_empty() {
                    break;
                }
                lines.iter().for_each(|line| self.reporter.job_line(line));
            }
        }
        Ok(())
    }

    fn show_begun(&mut self, state: &RunState) {
        for (index, attempt) in state.attempts().iter().enumerate().skip(self.begun) {
            let before = index.checked_sub(1).map(|before| &state.attempts()[before]);
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
}

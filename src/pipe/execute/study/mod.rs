//! Runs a study: trials, each in a run of its own in the background, until the budget is spent. What is known not to fit is never
//! begun, and nothing that happens to a trial ends the study.

mod end;
mod feasibility;
mod propose;
pub mod trial;
mod view;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::{Duration, Instant};

use feasibility::Trainings;
use pipe_search::{Direction, Journal, Space, Trial, TrialState, importances};
use pipe_spec::study::{OomPolicy, Study};
use pipe_spec::{RunFolder, Status, Variables};
use serde_json::{Map, Value};
use trial::Curves;

use super::children;
use crate::engine::{Engine, registry};
use crate::error::Error;
use crate::report::Reporter;
use crate::run::{self, Owner, Run};
use crate::system::files::{self, write_whole};
use crate::system::interrupt::{Interrupts, StopRequest};

pub use propose::{directions, space};
pub use view::{OpenedStudy, StudyView, StudyWatcher, trial_json};

/// How often the runs of the trials are looked at.
const POLL_INTERVAL: Duration = Duration::from_millis(150);

/// How often the state of a study is written, at least: its time counts though `pipe` may be killed.
const SAVE_INTERVAL: Duration = Duration::from_secs(10);

/// How often the page of a study is written, at most.
const PAGE_INTERVAL: Duration = Duration::from_secs(10);

/// The journal of a study that names no storage.
const JOURNAL: &str = "optuna.log";

/// So many trials that fail one after the other end a study: the next would fail too.
const MAX_FAILURES: u64 = 5;

pub struct StudyDriver<'a> {
    study: &'a Study,
    variables: &'a Variables,
    run: Run,
    journal: Journal,
    engine: Rc<dyn Engine>,
    reporter: &'a mut Reporter,
    interrupts: &'a mut Interrupts,
    watcher: StudyWatcher,
    search: Search,
    clock: Clock,
    /// The trials that run.
    running: BTreeMap<u64, Live>,
    /// The config.json of each model that was asked for.
    configs: BTreeMap<String, Map<String, Value>>,
    takeovers: children::Takeovers,
    /// The request to stop, if there was one.
    stopping: Option<StopRequest>,
    /// Who cancelled the job of a trial, if somebody did, and not with `pipe`.
    cancelled: Option<String>,
}

/// The state of the search.
struct Search {
    space: Space,
    directions: Vec<Direction>,
    trainings: Trainings,
    /// Reasons of trials that are known not to fit, by the settings that decide a trial's memory.
    too_large: BTreeMap<String, String>,
    /// Trials that have failed one after the other.
    failures: u64,
    /// Proposals one after the other that were not begun.
    refused: propose::Refused,
    /// Whether nothing is left to try.
    is_spent: bool,
}

/// The time of a study, and when it was last written to disk.
struct Clock {
    began: Instant,
    /// Seconds that earlier `pipe` processes spent on it.
    seconds_before: f64,
    page_written: Option<Instant>,
    saved: Instant,
}

/// A trial that runs.
struct Live {
    curves: Curves,
    /// The step at which it was found to be worse than others.
    pruned_at: Option<u64>,
    /// Whether it was asked to end for that.
    is_ending: bool,
}

impl Live {
    fn new(curves: Curves) -> Self {
        Self { curves, pruned_at: None, is_ending: false }
    }
}

/// Where the storage of a study is, whose own folder is `folder`.
pub fn storage(study: &Study, folder: &RunFolder) -> PathBuf {
    study.storage.as_ref().map_or_else(|| folder.path().join(JOURNAL), PathBuf::from)
}

impl<'a> StudyDriver<'a> {
    pub fn new(
        study: &'a Study,
        variables: &'a Variables,
        mut run: Run,
        engine: Box<dyn Engine>,
        reporter: &'a mut Reporter,
        interrupts: &'a mut Interrupts,
    ) -> Result<Self, Error> {
        let directions = directions(study);
        let storage = storage(study, &run.folder);
        let journal = Journal::open(&storage, study.name.as_str(), &directions)?;
        let Some(state) = run.state.study_mut() else { return Err(Error::NotStudyRun { id: run.state.id }) };
        state.storage = storage;
        state.budget = study.budget.trials;
        let seconds_before = state.seconds;
        let watcher = StudyWatcher::new(reporter.prints_json(), &run.state.id, study, journal.trials());
        let search = Search {
            space: space(study),
            directions,
            trainings: Trainings::default(),
            too_large: BTreeMap::new(),
            failures: 0,
            refused: propose::Refused::default(),
            is_spent: false,
        };
        let clock = Clock { began: Instant::now(), seconds_before, page_written: None, saved: Instant::now() };
        Ok(Self {
            study,
            variables,
            journal,
            engine: Rc::from(engine),
            reporter,
            interrupts,
            watcher,
            search,
            clock,
            running: BTreeMap::new(),
            configs: BTreeMap::new(),
            takeovers: children::Takeovers::default(),
            stopping: None,
            cancelled: None,
            run,
        })
    }

    /// Runs trials until the budget is spent, and leaves the state of the study on disk whatever happens.
    pub async fn run(mut self) -> Result<(), Error> {
        let state = &mut self.run.state;
        state.status = Status::Running;
        (state.error, state.exit_code) = (None, None);
        let result = self.run_trials().await;
        if result.is_err() {
            self.wind_down().await;
        }
        let result = result.and_then(|()| self.verdict());
        let saved = self.end(result.as_ref().err());
        result.and(saved)
    }

    async fn run_trials(&mut self) -> Result<(), Error> {
        self.recognise_trainings();
        self.save()?;
        loop {
            self.notice_interrupts().await;
            self.journal.refresh()?;
            self.poll_trials().await?;
            while self.stopping.is_none() && self.has_room() {
                self.begin_next().await?;
                self.show()?;
                self.notice_interrupts().await;
            }
            self.show()?;
            if self.clock.saved.elapsed() >= SAVE_INTERVAL {
                self.save()?;
            }
            if self.running.is_empty() && (self.stopping.is_some() || !self.has_budget()) {
                return Ok(());
            }
            tokio::select! {
                () = tokio::time::sleep(POLL_INTERVAL) => {}
                request = self.interrupts.next() => self.stop(request),
            }
        }
    }

    /// Takes in what was asked of it by now.
    async fn notice_interrupts(&mut self) {
        tokio::select! {
            biased;
            request = self.interrupts.next() => self.stop(request),
            // Signals come in only while something waits.
            () = tokio::time::sleep(Duration::from_millis(1)) => {}
        }
    }

    /// Ends the trials that run, where the study cannot go on: nobody would look after them.
    async fn wind_down(&mut self) {
        let ids: Vec<String> = self.running.keys().map(|number| self.run_id(*number)).collect();
        let ask = |request: StopRequest| {
            for id in &ids {
                children::signal(id, request);
            }
        };
        ask(StopRequest::Graceful);
        while ids.iter().any(|id| Owner::exists(&run::folder_of(id))) {
            tokio::select! {
                () = tokio::time::sleep(POLL_INTERVAL) => {}
                asked = self.interrupts.next() => ask(asked),
            }
        }
    }

    /// The trials that belong to this study.
    fn own(&self) -> impl Iterator<Item = &Trial> {
        self.journal.trials().iter().filter(|trial| trial::is_of(trial, &self.run.state.id))
    }

    fn seconds(&self) -> f64 {
        self.clock.seconds_before + self.clock.began.elapsed().as_secs_f64()
    }

    fn has_budget(&self) -> bool {
        let counts = trial::counts(self.own());
        let hours = self.study.budget.hours;
        !self.search.is_spent
            && self.study.budget.trials.is_none_or(|trials| counts.run() < trials)
            && hours.is_none_or(|hours| self.seconds() < hours * 3600.0)
    }

    fn has_room(&self) -> bool {
        self.has_budget() && self.running.len() < self.study.budget.parallel as usize
    }

    /// Notes which trainings have come to their end before.
    fn recognise_trainings(&mut self) {
        let done: Vec<Trial> = self.own().filter(|trial| trial.state == TrialState::Complete).cloned().collect();
        for trial in done {
            self.recognise(&trial);
        }
    }

    fn recognise(&mut self, trial: &Trial) {
        // As it ran: the architecture may be that of a model that was chosen.
        let text = files::read_own_text(&run::folder_of(&self.run_id(trial.number)).resolved()).unwrap_or_default();
        let pipeline = registry::parse_pipeline(&text, &[], self.variables).ok();
        let name = pipeline.and_then(|pipeline| Trainings::name(self.study, &pipeline));
        if let Some(name) = name {
            self.search.trainings.add(name, trial.number);
        }
    }

    async fn poll_trials(&mut self) -> Result<(), Error> {
        let open: Vec<u64> =
            self.own().filter(|trial| trial.state == TrialState::Running).map(|trial| trial.number).collect();
        // Optuna may have ended one.
        let gone: Vec<u64> = self.running.keys().filter(|number| !open.contains(number)).copied().collect();
        for number in gone {
            children::signal(&self.run_id(number), StopRequest::Hard);
            self.running.remove(&number);
        }
        for number in open {
            let before = self.running.len();
            self.poll_trial(number).await?;
            if self.running.len() != before {
                self.save()?;
            }
        }
        Ok(())
    }

    fn run_id(&self, number: u64) -> String {
        run::child_id(&self.run.state.id, &number.to_string())
    }

    /// Asks the trials that run to stop; no other begins.
    fn stop(&mut self, request: StopRequest) {
        if self.stopping.is_none() {
            self.reporter.note("stopping: each trial that runs saves and ends; again to end them at once");
        }
        self.stopping = Some(request);
        for number in self.running.keys() {
            children::signal(&self.run_id(*number), request);
        }
    }

    fn show(&mut self) -> Result<(), Error> {
        let seconds = self.seconds();
        if let Some(state) = self.run.state.study_mut() {
            state.seconds = seconds;
        }
        self.watcher.show(&self.run.state, self.journal.trials(), self.reporter)
    }

    fn save(&mut self) -> Result<(), Error> {
        let counts = trial::counts(self.own());
        let best = trial::best_of(self.journal.trials(), &self.search.directions);
        let seconds = self.seconds();
        if let Some(state) = self.run.state.study_mut() {
            (state.trials, state.best, state.seconds) = (counts, best, seconds);
        }
        self.run.save()?;
        self.clock.saved = Instant::now();
        if self.clock.page_written.is_none_or(|at| at.elapsed() >= PAGE_INTERVAL) {
            self.clock.page_written = Some(Instant::now());
            self.write_page();
        }
        Ok(())
    }

    /// The pipeline of the best trial, and the study as a page. That they cannot be written takes nothing from the study.
    fn write_page(&self) {
        let view = StudyView { study: self.study, trials: self.journal.trials(), state: &self.run.state };
        let best = view.best_pipeline(self.variables);
        let best = best.map_or(Ok(()), |text| write_whole(&self.run.folder.path().join(view::BEST), text.as_bytes()));
        let written = best.and_then(|()| write_whole(&self.run.folder.report(), view.page().as_bytes()));
        if let Err(error) = written {
            self.reporter.note(&format!("warning: {error}"));
        }
    }

    /// How the study has ended, now that no trial runs.
    fn verdict(&self) -> Result<(), Error> {
        if let Some(reason) = &self.cancelled {
            return Err(Error::Cancelled { reason: reason.clone() });
        }
        if self.stopping.is_some() {
            return Err(Error::Interrupted);
        }
        let counts = trial::counts(self.journal.trials().iter());
        if counts.complete + counts.repeated == 0 {
            if counts.run() == 0 && counts.infeasible > 0 {
                return Err(self.nothing_fits(counts.infeasible));
            }
            let view = StudyView { study: self.study, trials: self.journal.trials(), state: &self.run.state };
            return Err(view.no_best());
        }
        Ok(())
    }

    /// Everything that belongs to the end of a study; its state is written last.
    fn end(&mut self, error: Option<&Error>) -> Result<(), Error> {
        self.show().ok();
        self.run.note_end(error);
        self.clock.page_written = None;
        let saved = self.save();
        let lines = StudyView { study: self.study, trials: self.journal.trials(), state: &self.run.state }.summary();
        self.reporter.study_ended(&self.run.state, &self.run.folder.path().display().to_string(), &lines);
        saved
    }
}

/// Whether trials that are known not to fit are refused rather than made smaller.
fn refuses(study: &Study) -> bool {
    study.oom != OomPolicy::Shrink
}

/// How much each setting has to do with the objectives.
pub fn importances_of(study: &Study, trials: &[Trial]) -> Vec<(String, BTreeMap<String, f64>)> {
    let space = space(study);
    let of = |(index, objective): (usize, &pipe_spec::study::Objective)| {
        (objective.metric.clone(), importances(&space, trials, index, propose::direction(objective)))
    };
    study.objectives.iter().enumerate().map(of).collect()
}

//! Starts the job of an attempt, or takes over the one that another `pipe` process has started.
//!
//! Waiting for a card that others hold.
//!
//! The state that the attempt loop starts with: the settings of the pipeline, corrected by the ledger, or the last attempt
//! of a `pipe` process that was killed.
//!
//! The attempts of a run tell the ledger what they held.

use std::io::{BufRead, BufReader};
use std::time::{Duration, Instant};

use pipe_spec::event::{Measured, Point, RecordedEvent};
use pipe_spec::pipeline::{Command, EffectiveBatch};
use pipe_spec::{Attempt, Cause, EventKind, OomRecord, Outcome};

use super::job_log::{JobEvents, JobLog};
use super::{LoopState, StartMode, Supervisor, interrupted};
use crate::engine::{Ending, FoundJob, Launch, StartedJob};
use crate::error::Error;
use crate::execute::decide::outcome::Diagnosis;
use crate::execute::decide::retry::{Settings, must_not_fall};
use crate::execute::launch;
use crate::execute::launch::job_spec::{self, JobSpec};
use crate::fit::ledger::{self, Advice, LedgerJob};
use crate::run::EventLog;
use crate::system::clock::now;
use crate::system::files::{self, write_json};

impl Supervisor<'_> {
    /// A new attempt from its spec to its diagnosis.
    pub(super) async fn attempt(&mut self, settings: &Settings, events: &mut EventLog) -> Result<Diagnosis, Error> {
        self.interrupts.check()?;
        let number = self.run.state.attempts().len() as u32 + 1;
        let folder = self.run.folder.attempt(number);
        std::fs::create_dir_all(folder.path())
            .map_err(|source| Error::Write { path: folder.path().to_owned(), source })?;
        let spec = self.template.spec(self.engine, self.run.folder.path(), number, settings);
        write_json(&folder.spec(), &spec)?;
        let log = JobLog::open(&folder.log(), None)?;
        self.oom = None;
        self.metrics = self.workload().metrics_reader();

        let mut attempt = Attempt::new(number, settings.batch, spec.accum());
        let command = self.template.pipeline.command();
        attempt.has_batch = self.run.state.part_of.is_none() || command.is_none_or(Command::has_batch);
        attempt.ranks = self.template.placement.ranks;
        attempt.changes = self.changes(settings);
        attempt.began = now();
        let start_mode = std::mem::replace(&mut self.start_mode, StartMode::Continue);
        attempt.resumed = matches!(start_mode, StartMode::Resumed { .. });
        self.run.state.single_mut().expect("a run with attempts").attempts.push(attempt);
        self.run.set_doing("starting")?;
        self.announce(settings);
        self.note_beginning(number, &spec);
        self.begin_command(&spec);
        let launched = self.launch(number, &spec).await;
        if matches!(launched, Err(Error::Interrupted)) {
            let reason = Some("stopped on request".to_owned());
            let diagnosis = Diagnosis { outcome: Outcome::Stopped, cause: Some(Cause::Requested), reason };
            self.close_attempt(None, &diagnosis)?;
            return Ok(diagnosis);
        }
        self.watch_to_end(launched, log, &spec, events).await
    }

    /// The attempt that another `pipe` process started, from its current state to its diagnosis.
    pub(super) async fn adopt(&mut self, settings: &Settings, events: &mut EventLog) -> Result<Diagnosis, Error> {
        let Some(attempt) = self.run.state.attempts().last().cloned() else { return Err(Error::Interrupted) };
        let number = attempt.number;
        let spec = self
            .spec_of(number)
            .unwrap_or_else(|| self.template.spec(self.engine, self.run.folder.path(), number, settings));
        let launch = self.launch_of(number, &spec);
        let path = self.run.folder.attempt(number).log();
        let mut log = JobLog::open(&path, attempt.job.log)?;
        events.begin_attempt(number);
        self.restore_metrics_reader(&path, log.position().bytes);
        let job = match self.engine.find(&launch, attempt.job.container.as_deref(), attempt.job.log.as_ref()).await? {
            FoundJob::Job(job) => {
                self.replay_recorded();
                Ok(job)
            }
            FoundJob::NotStarted => {
                self.interrupts.check()?;
                write_json(&self.run.folder.attempt(number).spec(), &spec)?;
                self.launch(number, &spec).await
            }
            FoundJob::Gone => {
                let diagnosis = interrupted();
                self.replay_recorded();
                // Its own files say what it did after its `pipe` was gone.
                self.drain(&mut JobEvents::open(&self.run.folder.attempt(number)), events)?;
                self.take_rest(&launch, &mut log, events).await?;
                let last = self.last_event_time();
                self.close_attempt(None, &diagnosis)?;
                if let Some((attempt, last)) = self.run.state.last_attempt_mut().zip(last) {
                    attempt.figures.seconds = (last - attempt.began).max(0.0);
                }
                return Ok(diagnosis);
            }
        };
        self.reporter.note(&format!("taking over attempt {number}"));
        self.begin_command(&spec);
        self.announce(settings);
        self.watch_to_end(job, log, &spec, events).await
    }

    /// Says what the next attempt changes, and returns it with what that changes about the training result.
    pub(super) fn announce_retry(&self, action: String, batch: u32) -> String {
        let template = &self.template;
        if let Some(change) = template.effective_batch_change(batch) {
            let action = format!("{action}, {change} (changes the training result)");
            self.reporter.note(&format!("retrying: {action}"));
            return action;
        }
        let (accum, effective) = (template.accum(batch), template.effective_batch(batch));
        self.reporter.note(&format!("retrying: {action} (accum {accum}, effective batch {effective} as before)"));
        action
    }

    /// Says why a command that was started before does not continue from a checkpoint.
    fn note_beginning(&self, number: u32, spec: &JobSpec) {
        let (Some(command), JobSpec::Command(spec)) = (self.template.pipeline.command(), spec) else { return };
        let resumes = spec.env.get("PIPE_RESUME").is_some_and(|checkpoint| !checkpoint.is_empty());
        if number == 1 || resumes {
            return;
        }
        let why = match &command.checkpoints {
            Some(checkpoints) => job_spec::nothing_to_resume(&self.run.folder.output(), checkpoints),
            None if command.has_batch() => "the pipeline has no `checkpoints`".to_owned(),
            None => return,
        };
        self.reporter.note(&format!("starting from the beginning: {why}"));
    }

    /// The changes to the training result that these settings make.
    fn changes(&self, settings: &Settings) -> Vec<String> {
        let template = &self.template;
        match self.workload().is_trainer() {
            true => {
                template.pipeline.on_oom.then.iter().take(settings.changes).map(|change| change.0.clone()).collect()
            }
            false => template.effective_batch_change(settings.batch).into_iter().collect(),
        }
    }

    fn announce(&mut self, settings: &Settings) {
        if let Some((attempt, before)) = self.run.state.attempts().split_last() {
            self.reporter.attempt_started(attempt, self.run.state.at_most(), settings.auto, before.last());
        }
    }

    fn launch_of(&self, number: u32, spec: &JobSpec) -> Launch {
        self.template.launch(self.engine, &self.run.state.id, &self.run.folder, number, spec)
    }

    async fn launch(&mut self, number: u32, spec: &JobSpec) -> Result<StartedJob, Error> {
        let launch = self.launch_of(number, spec);
        for (path, _) in &launch.mounts.writable {
            std::fs::create_dir_all(path).map_err(|source| Error::Write { path: path.clone(), source })?;
        }
        launch::start(self.engine, &launch, self.interrupts).await
    }
}

/// How long to wait where the driver does not say whether the card is free.
const BLIND_TIMEOUT: Duration = Duration::from_secs(60);

/// How often the free memory of the card is read while another process holds it.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

impl Supervisor<'_> {
    /// Waits until the card of the rank that ran out of memory has enough of it, or until the timeout; returns whether it has.
    pub(super) async fn wait_for_card(&mut self) -> Result<bool, Error> {
        let policy = &self.template.pipeline.on_oom;
        let record = self.oom_record(self.run.state.attempts().len() as u32);
        let rank = record.as_ref().map_or(0, |record| record.rank);
        let needed = record.as_ref().map_or(u64::MAX, needed);
        let name = match self.template.placement.cards {
            0 | 1 => "the card".to_owned(),
            _ => self.card_of(rank).map_or("a card".to_owned(), |card| format!("the card {}", card.index)),
        };
        let began = Instant::now();
        let mut timeout = Duration::from_secs(policy.wait);
        let mut reported = None;
        self.reporter.doing(&format!("waiting for {name}"));
        self.run.set_doing(&format!("waiting for {name}"))?;
        while began.elapsed() < timeout {
            let card = self.card_of(rank);
            if card.is_none() {
                timeout = timeout.min(BLIND_TIMEOUT);
            }
            if card.as_ref().is_some_and(|card| card.free >= needed.min(card.total - card.total / 20)) {
                self.reporter.note(&format!("{name} is free again"));
                return Ok(true);
            }
            let holders: Vec<String> = card.iter().flat_map(|card| &card.holders).map(ToString::to_string).collect();
            if reported.as_ref() != Some(&holders) {
                let processes = if holders.is_empty() { "other processes".to_owned() } else { holders.join(", ") };
                self.reporter.note(&format!("waiting for {name}, at most {}s, held by {processes}", timeout.as_secs()));
                reported = Some(holders);
            }
            let rest = timeout.saturating_sub(began.elapsed());
            tokio::select! {
                () = tokio::time::sleep(POLL_INTERVAL.min(rest)) => {}
                _ = self.interrupts.next() => return Err(Error::Interrupted),
            }
        }
        self.reporter.note(&format!("{name} is still in use after on_oom.wait: trying once more"));
        Ok(false)
    }
}

/// Bytes that the attempt needed: what it held and what it requested.
fn needed(record: &OomRecord) -> u64 {
    let own = record.sizes.own.or(record.sizes.reserved).unwrap_or(0);
    own.saturating_add(record.sizes.requested.unwrap_or(0))
}

impl Supervisor<'_> {
    pub(super) fn first_state(&mut self) -> Result<LoopState, Error> {
        let Some(last) = self.run.state.attempts().last().cloned() else {
            let asked = self.template.first_settings();
            let advised = self.with_ledger_advice(asked.clone());
            if self.run.state.choices.as_asked && advised.batch < asked.batch {
                let why = format!("batch {} is known not to fit: {} may", asked.batch, advised.batch);
                if let Some(single) = self.run.state.single_mut() {
                    single.infeasible = Some(why.clone());
                }
                return Err(Error::KnownNotToFit { why });
            }
            self.check_effective_batch(&asked, &advised)?;
            return Ok(LoopState::Start(advised));
        };
        let settings = self.settings_of(&last);
        self.collect_points(&last);
        let Some(outcome) = last.outcome else { return Ok(LoopState::Adopt(settings)) };
        let diagnosis = Diagnosis { outcome, cause: last.cause, reason: last.reason };
        Ok(match (self.start_mode, outcome) {
            (StartMode::New | StartMode::Continue, _) | (_, Outcome::Finished) => LoopState::Ended(settings, diagnosis),
            (StartMode::Resumed { changed: false }, Outcome::Oom) => LoopState::Ended(settings, diagnosis),
            (StartMode::Resumed { .. }, _) => LoopState::Start(settings),
        })
    }

    /// Whether the effective batch may fall with the batch that the ledger advises.
    fn check_effective_batch(&self, asked: &Settings, advised: &Settings) -> Result<(), Error> {
        let Some(change) = self.template.effective_batch_change(advised.batch) else { return Ok(()) };
        if self.template.pipeline.effective_batch_rule() == EffectiveBatch::MayFall {
            self.reporter.note(&format!("{change} (changes the training result), as on_oom.then allows"));
            return Ok(());
        }
        let (reason, hint) = must_not_fall(&format!("a batch of {} did not fit before", asked.batch));
        Err(Error::OutOfMemory { reason, hint: format!("{hint}; or try the same batch again: --ignore-ledger") })
    }

    /// The settings that an attempt was started with.
    fn settings_of(&self, attempt: &Attempt) -> Settings {
        let changes = attempt.changes.len();
        let mut settings = match self.spec_of(attempt.number) {
            Some(spec) => spec.settings(changes),
            None => Settings { batch: attempt.batch, auto: false, changes, ..self.template.first_settings() },
        };
        // A batch that it had found is kept. Without one it searches again.
        if settings.auto && attempt.figures.first_step.is_some() {
            settings = self.template.with_batch(attempt.batch, settings);
        }
        settings.batch =
            settings.batch.min(self.template.placement.share(self.template.pipeline.work.effective_batch()));
        settings.expandable_segments |= self.template.pipeline.work.memory().allocator.expandable_segments;
        settings
    }

    pub(super) fn spec_of(&self, number: u32) -> Option<JobSpec> {
        self.workload().read_spec(&self.run.folder.attempt(number).spec())
    }

    /// Replays the recorded events of the last attempt.
    pub(super) fn replay_recorded(&mut self) {
        let recorded = self.recorded_of_last();
        recorded.iter().for_each(|recorded| self.note_event(&recorded.event));
    }

    /// When the last event of the last attempt was.
    pub(super) fn last_event_time(&self) -> Option<f64> {
        self.recorded_of_last().last().map(|last| last.event.ts)
    }

    fn recorded_of_last(&self) -> Vec<RecordedEvent> {
        let number = self.run.state.attempts().last().map_or(0, |attempt| attempt.number);
        self.recorded(|event| event.attempt == number)
    }

    /// Whether the last attempt came as far as a model that is loaded.
    pub(super) fn was_ready(&self) -> bool {
        let number = self.run.state.attempts().last().map_or(0, |attempt| attempt.number);
        let is_ready = |event: &RecordedEvent| {
            event.attempt == number && matches!(event.event.kind, EventKind::Started(_) | EventKind::Measured(_))
        };
        !self.recorded(is_ready).is_empty()
    }

    fn recorded(&self, keep: impl Fn(&RecordedEvent) -> bool) -> Vec<RecordedEvent> {
        let Ok(file) = files::open_own(&self.run.folder.events()) else { return Vec::new() };
        let lines = BufReader::new(file).lines().map_while(Result::ok);
        lines.filter_map(|line| serde_json::from_str(&line).ok()).filter(keep).collect()
    }

    /// Measured batches of attempts with the same changes, and as many ranks with as much to keep as there will be.
    fn collect_points(&mut self, last: &Attempt) {
        let ranks = self.template.placement.ranks;
        let keeps_as_much = |number: u32| self.workload().keeps_as_much(self.spec_of(number), ranks);
        let attempts = self.run.state.attempts().iter();
        // A command's smaller effective batch comes with its batch, which a point has anyway.
        let same_changes = |attempt: &Attempt| attempt.changes == last.changes || !self.workload().is_trainer();
        let alike = attempts.filter(|attempt| same_changes(attempt) && attempt.ranks == ranks);
        let alike: Vec<u32> = alike.map(|attempt| attempt.number).filter(|number| keeps_as_much(*number)).collect();
        let same = |number: u32| alike.contains(&number);
        // An attempt that is still running reports its own.
        let closed = |number: u32| number != last.number || last.outcome.is_some();
        let recorded = self.recorded(|event| {
            let tells = matches!(event.event.kind, EventKind::Rehearsed(_) | EventKind::Measured(_));
            tells && same(event.attempt) && closed(event.attempt)
        });
        let points = recorded.into_iter().filter_map(|recorded| match recorded.event.kind {
            EventKind::Rehearsed(rehearsed) => Some(Point { batch: rehearsed.batch, peak: rehearsed.peak }),
            EventKind::Measured(Measured { batch, peak: Some(peak), .. }) => Some(Point { batch, peak }),
            _ => None,
        });
        self.points = points.collect();
    }

    /// The first settings, with the batch that the ledger advises. A ledger that cannot be read does not stop the training.
    fn with_ledger_advice(&mut self, settings: Settings) -> Settings {
        let pipeline = self.template.pipeline;
        let spec = self.template.spec(self.engine, self.run.folder.path(), 1, &settings);
        let (Some(session), Some(job)) = (&self.session, self.ledger_job(&spec)) else { return settings };
        let card = self.card(self.template.placement.device);
        let (entry, hints) = match session.ask(&job, card.as_ref()) {
            Ok(known) => known,
            Err(error) => {
                self.reporter.note(&format!("warning: {error}"));
                self.session = None;
                return settings;
            }
        };
        hints.iter().for_each(|hint| self.reporter.note(&format!("ledger: {hint}")));
        let Some(entry) = entry else { return settings };
        if !self.workload().is_trainer() {
            // Its earlier runs are all that is known of how much a batch holds.
            self.points.extend(entry.points(self.template.accum(settings.batch) > 1));
        }
        let memory = pipeline.container.memory.map(|size| size.0);
        let capacity = ledger::capacity(&job, card.as_ref(), memory);
        let found = ledger::known_largest(&entry, &job, capacity).filter(|_| settings.auto);
        let (batch, why) = match found {
            Some(batch) if batch == job.largest_batch() => {
                let all = match self.template.placement.ranks {
                    1 => "the whole effective batch",
                    _ => "all that a rank has of the effective batch",
                };
                (batch, format!("batch {batch} is known to fit, and it is {all}"))
            }
            Some(batch) => (batch, format!("batch {batch} was found to be the largest that fits")),
            None if settings.auto => return settings,
            None => {
                let least = pipeline.on_oom.min_batch.get();
                match ledger::advise(&entry, &job, settings.batch, least, capacity) {
                    Advice::Keep => return settings,
                    Advice::Instead { batch, why } => (batch, why),
                }
            }
        };
        // A run that must not start with it says so itself.
        if pipeline.effective_batch_rule() != EffectiveBatch::MustNotFall {
            self.reporter.note(&format!("ledger: {why}"));
        }
        self.template.with_batch(batch, settings)
    }
}

impl Supervisor<'_> {
    /// The job of an attempt as the ledger knows it.
    pub(super) fn ledger_job(&self, spec: &JobSpec) -> Option<LedgerJob> {
        self.workload().ledger_job(spec, &self.config, self.template.placement.device)
    }

    /// Adds the measurements of the attempt to the ledger. A failure does not stop the training.
    pub(super) fn update_ledger(&mut self, spec: &JobSpec, record: Option<&OomRecord>, ending: &Ending) {
        let job = self.ledger_job(spec);
        let (Some(session), Some(attempt)) = (&mut self.session, self.run.state.attempts().last()) else { return };
        let Some(job) = job else { return };
        if let Err(error) = session.attempt_ended(&job, attempt, record, ending.memory_limit) {
            self.reporter.note(&format!("warning: {error}"));
            self.session = None;
        }
    }

    /// Tells the ledger what a command runs on.
    pub(super) fn begin_command(&mut self, spec: &JobSpec) {
        let Some(job) = self.ledger_job(spec).filter(|_| !self.workload().is_trainer()) else { return };
        let card = self.card(self.template.placement.device);
        let memory = self.template.pipeline.container.memory.map(|size| size.0);
        let capacity = ledger::capacity(&job, card.as_ref(), memory);
        if let Some(session) = &mut self.session {
            session.begin_command(card.as_ref(), capacity);
        }
    }
}

//! The state that the attempt loop starts with: the settings of the pipeline, corrected by the ledger, or the last attempt
//! of a `pipe` process that was killed.
//!
//! The attempts of a run tell the ledger what they held.

use std::io::{BufRead, BufReader};

use pipe_spec::event::{Measured, Point, RecordedEvent};
use pipe_spec::pipeline::EffectiveBatch;
use pipe_spec::{Attempt, EventKind, OomRecord, Outcome};

use super::{LoopState, StartMode, Supervisor};
use crate::engine::Ending;
use crate::error::Error;
use crate::execute::decide::outcome::Diagnosis;
use crate::execute::decide::retry::{Settings, must_not_fall};
use crate::execute::launch::job_spec::JobSpec;
use crate::fit::ledger::{self, Advice, LedgerJob};
use crate::system::files;

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
        if settings.auto && attempt.first_step.is_some() {
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

//! Starts the job of an attempt, or takes over the one that another `pipe` process has started.
//!
//! Waiting for a card that others hold.

use std::time::{Duration, Instant};

use pipe_spec::pipeline::Command;
use pipe_spec::{Attempt, Cause, OomRecord, Outcome};

use super::job_log::{JobEvents, JobLog};
use super::{StartMode, Supervisor, interrupted};
use crate::engine::{FoundJob, Launch, StartedJob};
use crate::error::Error;
use crate::execute::decide::outcome::Diagnosis;
use crate::execute::decide::retry::Settings;
use crate::execute::launch;
use crate::execute::launch::job_spec::{self, JobSpec};
use crate::run::EventLog;
use crate::system::clock::now;
use crate::system::files::write_json;

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
        let mut log = JobLog::open(&path, attempt.log)?;
        events.begin_attempt(number);
        self.restore_metrics_reader(&path, log.position().bytes);
        let job = match self.engine.find(&launch, attempt.container.as_deref(), attempt.log.as_ref()).await? {
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
                    attempt.seconds = (last - attempt.began).max(0.0);
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
    let own = record.own.or(record.reserved).unwrap_or(0);
    own.saturating_add(record.requested.unwrap_or(0))
}

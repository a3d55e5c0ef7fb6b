//! Starts the job of an attempt, or takes over the one that another `pipe` process has started.

use pipe_spec::{Attempt, Cause, Outcome};

use super::job_events::JobEvents;
use super::joblog::JobLog;
use super::{StartMode, Supervisor, interrupted};
use crate::attempt::job_spec::JobSpec;
use crate::attempt::outcome::Diagnosis;
use crate::attempt::retry::Settings;
use crate::clock::now;
use crate::engine::{FoundJob, Launch, StartedJob, remove_jobs_of};
use crate::error::Error;
use crate::files::write_json;
use crate::run::EventLog;

impl Supervisor<'_> {
    /// A new attempt from its spec to its diagnosis.
    pub(super) async fn attempt(&mut self, settings: &Settings, events: &mut EventLog) -> Result<Diagnosis, Error> {
        self.interrupts.check()?;
        let number = self.run.state.attempts.len() as u32 + 1;
        let folder = self.run.folder.attempt(number);
        std::fs::create_dir_all(folder.path())
            .map_err(|source| Error::Write { path: folder.path().to_owned(), source })?;
        let spec = self.template.spec(self.engine, self.run.folder.path(), number, settings);
        write_json(&folder.spec(), &spec)?;
        let log = JobLog::open(&folder.log(), None)?;
        self.oom = None;
        self.metrics = self.metrics_reader();

        let mut attempt = Attempt::new(number, settings.batch, spec.accum());
        attempt.ranks = self.template.placement.ranks;
        attempt.changes =
            self.template.pipeline.on_oom.then.iter().take(settings.changes).map(|change| change.0.clone()).collect();
        attempt.began = now();
        attempt.resumed = std::mem::replace(&mut self.start_mode, StartMode::Continue) != StartMode::Continue;
        self.run.state.attempts.push(attempt);
        self.run.set_doing("starting")?;
        self.announce(settings);
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
        let Some(attempt) = self.run.state.attempts.last().cloned() else { return Err(Error::Interrupted) };
        let number = attempt.number;
        let spec = self
            .spec_of(number)
            .unwrap_or_else(|| self.template.spec(self.engine, self.run.folder.path(), number, settings));
        let launch = self.launch_of(number, &spec);
        let log = JobLog::open(&self.run.folder.attempt(number).log(), attempt.log.clone())?;
        events.begin_attempt(number);
        self.metrics = self.metrics_reader();
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
                // What it did after its `pipe` was gone is in its own file.
                self.drain(&mut JobEvents::open(&self.run.folder.attempt(number), events.last_seq()), events)?;
                let last = self.last_event_time();
                self.close_attempt(None, &diagnosis)?;
                if let Some((attempt, last)) = self.run.state.attempts.last_mut().zip(last) {
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

    fn announce(&mut self, settings: &Settings) {
        if let Some((attempt, before)) = self.run.state.attempts.split_last() {
            self.reporter.attempt_started(attempt, self.run.state.at_most(), settings.auto, before.last());
        }
    }

    fn launch_of(&self, number: u32, spec: &JobSpec) -> Launch {
        self.template.launch(self.engine, &self.run.state.id, &self.run.folder, number, spec)
    }

    /// An engine that queues jobs may have to wait until it can take one.
    async fn launch(&mut self, number: u32, spec: &JobSpec) -> Result<StartedJob, Error> {
        let launch = self.launch_of(number, spec);
        for (path, _) in &launch.writable {
            std::fs::create_dir_all(path).map_err(|source| Error::Write { path: path.clone(), source })?;
        }
        let engine = self.engine;
        if !engine.has_queue() {
            return engine.start(&launch).await;
        }
        tokio::select! {
            started = engine.start(&launch) => started,
            () = self.interrupts.signal() => {
                if let FoundJob::Job(job) = engine.find(&launch, None, None).await? {
                    engine.remove(&job.id).await?;
                }
                remove_jobs_of(engine, &launch.run_id, None).await?;
                Err(Error::Interrupted)
            }
        }
    }
}

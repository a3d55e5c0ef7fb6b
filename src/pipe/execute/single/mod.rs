//! The attempt loop: start, watch, diagnose, decide, start again, until the run is done or nothing is left to try. It starts
//! from the state in the run folder.

pub mod driver;
mod job_log;
mod start;
mod watch;

use job_log::JobLog;
use pipe_spec::event::{Fitted, Point};
use pipe_spec::run::{AttemptFolder, JobFolder};
use pipe_spec::{Attempt, Cause, Device, OomRecord, Outcome};
use serde_json::{Map, Value};
use watch::Watched;

use super::decide::outcome::{Diagnosis, Evidence, diagnose};
use super::decide::retry::{Decision, OomContext, Settings, decide};
use super::decide::{metrics, oom_text};
use super::launch::environment;
use super::launch::job_spec::JobSpec;
use super::launch::template::{CONTAINER_RUN_FOLDER, JobTemplate};
use super::launch::workload::Workload;
use crate::engine::{Ending, Engine, StartedJob, is_supervisor, remove_jobs_of};
use crate::error::Error;
use crate::fit::ledger::LedgerSession;
use crate::gpu::Card;
use crate::report::Reporter;
use crate::run::lock::Effect;
use crate::run::{EventLog, Run, job_file};
use crate::system::clock::now;
use crate::system::files::{self, write_json};
use crate::system::interrupt::Interrupts;
use crate::track::{Listeners, Notice};

/// How often in a row a job may be cut off from outside before it has done a step.
const MAX_INTERRUPTIONS: usize = 3;

/// Bytes at the end of a command's log that are searched for a message of an out-of-memory: what came before was survived.
const OOM_TEXT_LIMIT: u64 = 32 << 10;

/// Bytes of a job's out-of-memory record that are read at most.
const OOM_LIMIT: u64 = 1 << 20;

/// The text before the end of a log in an error.
pub const LAST_LINES: &str = "\nthe last lines of its log:";

pub struct Supervisor<'a> {
    pub engine: &'a dyn Engine,
    pub template: JobTemplate<'a>,
    pub run: &'a mut Run,
    pub reporter: &'a mut Reporter,
    pub interrupts: &'a mut Interrupts,
    pub listeners: &'a mut Listeners,
    pub start_mode: StartMode,
    /// The ledger; absent with `--ignore-ledger`.
    pub session: Option<LedgerSession>,
    /// That of the model, of a training.
    pub config: Map<String, Value>,
    /// The memory of batches of this run that fitted.
    pub points: Vec<Point>,
    /// The result of a search for the largest batch.
    pub fitted: Option<Fitted>,
    /// The last out-of-memory event of the job.
    pub oom: Option<OomRecord>,
    /// Reads the log of a command.
    pub metrics: Option<metrics::Reader>,
}

/// How this process starts with a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StartMode {
    /// `pipe run` has just created the run: if its input is refused before it trains, nothing of it is kept.
    New,
    /// The `pipe` process of the run was killed, or the run was started in the background: it continues as if nothing had happened.
    Continue,
    /// The run had ended and a person resumes it; `changed` if settings were changed.
    Resumed { changed: bool },
}

/// Where the attempt loop stands.
enum LoopState {
    Start(Settings),
    /// An attempt that another `pipe` process started and that has no recorded end.
    Adopt(Settings),
    /// An attempt has ended with this diagnosis.
    Ended(Settings, Diagnosis),
}

impl<'a> Supervisor<'a> {
    /// Runs one attempt that looks for the largest batch.
    pub async fn fit(mut self) -> Result<Fitted, Error> {
        let mut events = EventLog::open(&self.run.folder)?;
        // A search that was interrupted has shown nothing: it starts again.
        remove_jobs_of(self.engine, &self.run.state.id, None).await?;
        if self.run.is_open() {
            self.close_attempt(None, &interrupted())?;
        }
        let settings = Settings { auto: true, ..self.template.first_settings() };
        let diagnosis = self.attempt(&settings, &mut events).await?;
        match (diagnosis.outcome, self.fitted.take()) {
            (Outcome::Finished, Some(fitted)) => Ok(fitted),
            (Outcome::Stopped, _) if diagnosis.cause.is_some_and(Cause::goes_on) => {
                Err(Error::CutOff { reason: diagnosis.reason.unwrap_or_default() })
            }
            (Outcome::Stopped, _) => Err(stopped(diagnosis)),
            (Outcome::Oom, _) => Err(Error::OutOfMemory {
                reason: diagnosis.reason.unwrap_or_default(),
                hint: "`pipe plan` says what would make it fit".to_owned(),
            }),
            _ => Err(self.failure(diagnosis)),
        }
    }

    /// Runs attempts until the run is over.
    pub async fn run(mut self) -> Result<(), Error> {
        let mut events = EventLog::open(&self.run.folder)?;
        let last = self.run.state.attempts().last();
        // A job that supervises the run may know less of it than one that was lost.
        if last.is_some() || is_supervisor() {
            let open = last.filter(|last| last.outcome.is_none()).map(|last| last.number);
            remove_jobs_of(self.engine, &self.run.state.id, open).await?;
        }
        let mut state = self.first_state()?;
        if let (LoopState::Start(settings), false) = (&state, self.run.state.attempts().is_empty()) {
            state = LoopState::Start(self.on_usable_nodes(settings.clone()).await);
        }
        let mut waited = false;
        loop {
            let (mut settings, diagnosis) = match state {
                LoopState::Ended(settings, diagnosis) => (settings, diagnosis),
                LoopState::Start(settings) => {
                    self.check_inputs().await?;
                    let diagnosis = self.attempt(&settings, &mut events).await?;
                    (settings, diagnosis)
                }
                LoopState::Adopt(settings) => {
                    let diagnosis = self.adopt(&settings, &mut events).await?;
                    (settings, diagnosis)
                }
            };
            match diagnosis.outcome {
                Outcome::Finished => return Ok(()),
                Outcome::Stopped if diagnosis.cause.is_some_and(Cause::goes_on) => {
                    let next = self.after_interruption(settings, diagnosis)?;
                    state = LoopState::Start(self.on_usable_nodes(next).await);
                    continue;
                }
                Outcome::Stopped => return Err(stopped(diagnosis)),
                Outcome::Failed => return Err(self.failure(diagnosis)),
                Outcome::Oom => self.interrupts.check()?,
            }
            // A trainer that searched for the batch has found one.
            if let Some(attempt) = self.run.state.attempts().last().filter(|_| settings.auto) {
                settings = self.template.with_batch(attempt.batch, settings);
            }
            state = LoopState::Start(match self.after_oom(&settings, &diagnosis, waited)? {
                Some(next) => {
                    // After such a change a batch needs another amount of memory.
                    if next.changes != settings.changes {
                        self.points.clear();
                    }
                    next
                }
                // The second wait for the same card would not help.
                None => {
                    waited = !self.wait_for_card().await?;
                    settings
                }
            });
        }
    }

    /// Refuses to train on other data, another tokenizer or model than those that the run was prepared with: it may have waited for a
    /// card since, or run out of memory.
    async fn check_inputs(&mut self) -> Result<(), Error> {
        let inputs = self.template.inputs;
        let changed = environment::changed_inputs(&self.run.folder, inputs, self.reporter, self.interrupts).await?;
        let changes: Vec<String> =
            changed.iter().filter(|input| input.effect != Effect::None).map(ToString::to_string).collect();
        if changes.is_empty() { Ok(()) } else { Err(Error::InputsChanged { changes }) }
    }

    /// The same again, from the last checkpoint, unless it is cut off over and over.
    fn after_interruption(&mut self, settings: Settings, diagnosis: Diagnosis) -> Result<Settings, Error> {
        let workload = self.workload();
        // Who is preempted waits in the queue each time.
        let counts = |cause: Cause| cause.goes_on() && cause != Cause::Preempted;
        let cut_off = |attempt: &&Attempt| attempt.cause.is_some_and(counts) && !workload.has_progressed(attempt);
        let in_a_row = self.run.state.attempts().iter().rev().take_while(cut_off).count();
        let reason = diagnosis.reason.unwrap_or_default();
        let in_a_row = in_a_row.max(workload.times_without_progress(self.run.state.attempts()));
        if in_a_row >= MAX_INTERRUPTIONS {
            let reason = format!("{reason}, {in_a_row} times in a row without anything saved");
            return Err(match diagnosis.cause {
                Some(Cause::TimeLimit) => Error::TimeTooShort { reason, hint: self.engine.time_hint() },
                _ => Error::CutOff { reason },
            });
        }
        self.reporter.note(&format!("continuing: {reason}"));
        self.note_action("same settings".to_owned())?;
        Ok(settings)
    }

    /// On as many machines as there are now, where fewer than the pipeline asks for are enough.
    async fn on_usable_nodes(&mut self, settings: Settings) -> Settings {
        let (most, fewest) = (self.engine.nodes(), self.engine.fewest_nodes());
        let before = self.template.placement;
        if fewest >= most || before.nodes <= 1 && most <= 1 {
            return settings;
        }
        let usable = self.engine.usable_nodes().await.unwrap_or(most).clamp(fewest, most);
        if usable != before.nodes {
            self.reporter.note(&format!("going on with {usable} of {most} nodes"));
            self.template.placement = before.on_nodes(usable);
        }
        let share = self.template.placement.share(self.template.pipeline.work.effective_batch());
        Settings { batch: settings.batch.min(share), ..settings }
    }

    fn workload(&self) -> &'a dyn Workload {
        self.template.workload()
    }

    /// Retries made before the last attempt ran out of memory, since a person last resumed the run.
    fn retries_used(&self) -> u32 {
        match self.start_mode {
            StartMode::New | StartMode::Continue => self.run.state.times_out_of_memory().saturating_sub(1),
            StartMode::Resumed { .. } => 0,
        }
    }

    /// The settings of the next attempt, announced, or the end of the run; nothing when the same are to be tried again once
    /// the card is free.
    fn after_oom(
        &mut self,
        settings: &Settings,
        diagnosis: &Diagnosis,
        waited: bool,
    ) -> Result<Option<Settings>, Error> {
        let policy = &self.template.pipeline.on_oom;
        let number = self.run.state.attempts().len() as u32;
        let record = self.oom_record(number);
        let mut points = record.as_ref().map_or(Vec::new(), |record| record.points.clone());
        points.extend(self.points.iter().copied());
        let decision = decide(&OomContext {
            policy,
            only_batch_changes: !self.workload().is_trainer(),
            effective_batch: self.template.pipeline.effective_batch_rule(),
            device: self.template.placement.device,
            settings,
            retries_used: self.retries_used(),
            cause: diagnosis.cause.unwrap_or(Cause::Capacity),
            phase: record.as_ref().map(|record| record.phase).or_else(|| {
                // Its events tell.
                self.workload().phase_without_record(self.was_ready())
            }),
            waited,
            filled: record.as_ref().and_then(|record| record.filled),
            part_bytes: record.as_ref().and_then(|record| record.part_bytes),
            points: &points,
            capacity: record.as_ref().and_then(available),
        });
        match decision {
            Decision::Wait { action } => {
                self.note_action(action)?;
                Ok(None)
            }
            Decision::Stop { reason, hint } => Err(Error::OutOfMemory { reason, hint }),
            Decision::Retry { settings, action } => {
                let action = self.announce_retry(action, settings.batch);
                self.note_action(action)?;
                warn(self.reporter, self.listeners.notify(&Notice::Retried(&self.run.state)));
                Ok(Some(settings))
            }
        }
    }

    fn note_action(&mut self, action: String) -> Result<(), Error> {
        if let Some(attempt) = self.run.state.last_attempt_mut() {
            attempt.action = Some(action);
        }
        self.run.save()
    }

    /// The first card that the job computes on, as far as the engine can tell.
    fn card(&self, device: Device) -> Option<Card> {
        match device {
            Device::Cpu => None,
            Device::Cuda => self.card_of(0),
        }
    }

    /// The card of a rank, as far as the engine can tell.
    fn card_of(&self, rank: u32) -> Option<Card> {
        let cards = self.engine.cards(&self.template.pipeline.container.gpus);
        cards.into_iter().nth(self.template.placement.card_of(rank))
    }

    /// Stays with a job until it ends, and diagnoses its end.
    async fn watch_to_end(
        &mut self,
        job: Result<StartedJob, Error>,
        mut log: JobLog,
        spec: &JobSpec,
        events: &mut EventLog,
    ) -> Result<Diagnosis, Error> {
        let number = self.run.state.attempts().last().map_or(1, |attempt| attempt.number);
        events.begin_attempt(number);
        let watched = match job {
            Ok(job) => self.watch(job, &mut log, events).await,
            Err(error) => Err(error),
        };
        let mut ended = match watched {
            Ok(watched) => watched,
            // The next process that resumes the run finds out how the job ended.
            Err(error @ (Error::EngineLost { .. } | Error::JobStays { .. })) => return Err(error),
            Err(error) => {
                self.close_attempt(None, &failed_to_run(error.to_string()))?;
                return Err(error);
            }
        };
        let workload = self.workload();
        let record = match workload.is_trainer() {
            true => self.take_oom_record(number)?,
            false => self.find_oom_of_command(number, &ended)?,
        };
        let ran_out = workload.ran_out_of_card(ended.ending.exit_code, record.as_ref());
        let rank = record.as_ref().map_or(0, |record| record.rank);
        let card = ran_out.then(|| self.card_of(rank)).flatten();
        let mut diagnosis = diagnose(&Evidence {
            ending: &ended.ending,
            record: record.as_ref(),
            card: card.as_ref(),
            tail: &ended.tail,
            command: (!workload.is_trainer()).then_some(&self.template.pipeline.on_oom),
            on_card: self.template.placement.device == Device::Cuda,
            ranks: self.template.placement.ranks,
            stop_requested: ended.stop_requested,
        });
        diagnosis.reason = diagnosis.reason.map(|reason| self.with_host_paths(&reason));
        let closed = self.close_attempt(Some(&ended.ending), &diagnosis);
        // Nobody can resume a run whose folder was removed.
        if closed.is_err() && !self.run.folder.path().exists() {
            ended.handle.remove().await.ok();
        }
        closed?;
        self.update_ledger(spec, record.as_ref(), &ended.ending);
        // Only now: until its end is recorded, the job may be needed again.
        ended.handle.remove().await?;
        // The log has all of it.
        std::fs::remove_file(self.run.folder.attempt(number).job().output()).ok();
        // An empty folder would look like a model.
        std::fs::remove_dir(self.run.folder.model()).ok();
        Ok(diagnosis)
    }

    fn close_attempt(&mut self, ending: Option<&Ending>, diagnosis: &Diagnosis) -> Result<(), Error> {
        let Some(attempt) = self.run.state.last_attempt_mut() else { return Ok(()) };
        attempt.outcome = Some(diagnosis.outcome);
        attempt.cause = diagnosis.cause;
        attempt.reason = diagnosis.reason.clone();
        attempt.figures.seconds = (now() - attempt.began).max(0.0);
        attempt.exit_code = ending.and_then(|ending| ending.exit_code);
        (attempt.job.container, attempt.job.log) = (None, None);
        // The kernel kills at the limit, so the limit was reached.
        if let Some(ending) = ending.filter(|ending| ending.oom_killed) {
            attempt.figures.peak_memory = attempt.figures.peak_memory.max(ending.memory_limit);
        }
        let attempt = attempt.clone();
        write_json(&self.run.folder.attempt(attempt.number).outcome(), &attempt)?;
        self.reporter.attempt_ended(&attempt);
        self.run.save()?;
        warn(self.reporter, self.listeners.notify(&Notice::AttemptEnded(&self.run.state)));
        Ok(())
    }

    /// The job's record of an out-of-memory, from its file or its event. A copy of what was read is kept with the attempt.
    fn take_oom_record(&mut self, number: u32) -> Result<Option<OomRecord>, Error> {
        let folder = self.run.folder.attempt(number);
        let record = written_oom_record(&folder).or_else(|| self.oom.take());
        if let Some(record) = &record {
            write_json(&folder.oom(), record)?;
        }
        Ok(record)
    }

    /// The out-of-memory of a failed command, kept with the attempt: what it has written itself, or else what the end of its log says.
    fn find_oom_of_command(&self, number: u32, ended: &Watched) -> Result<Option<OomRecord>, Error> {
        if ended.ending.exit_code == Some(0) {
            return Ok(None);
        }
        let folder = self.run.folder.attempt(number);
        let patterns = &self.template.pipeline.on_oom.patterns;
        let find = |log: &str| oom_text::find(log, patterns, self.template.placement.device == Device::Cuda);
        let found = match written_oom_record(&folder) {
            Some(record) => Some(oom_text::with_sizes(record)),
            None => find(&watch::end_of(&folder.log(), OOM_TEXT_LIMIT)),
        };
        let batch = self.run.state.attempts().last().map_or(0, |attempt| attempt.batch);
        let record = found.map(|record| OomRecord { batch, ..record });
        if let Some(record) = &record {
            write_json(&folder.oom(), record)?;
        }
        Ok(record)
    }

    /// The record that was kept of an attempt.
    fn oom_record(&self, number: u32) -> Option<OomRecord> {
        let text = files::read_own(&self.run.folder.attempt(number).oom()).ok()?;
        serde_json::from_slice(&text).ok()
    }

    /// Replaces paths that a job sees in a message with those of the host.
    pub(super) fn with_host_paths(&self, said: &str) -> String {
        let own = format!("{}/", self.run.folder.path().display());
        self.template.inputs.with_host_paths(said).replace(&format!("{CONTAINER_RUN_FOLDER}/"), &own)
    }

    fn failure(&self, diagnosis: Diagnosis) -> Error {
        let attempt = self.run.state.attempts().last();
        let code = attempt.and_then(|attempt| attempt.exit_code);
        let bad_input = self.workload().refused_input(code);
        let mut reason = diagnosis.reason.unwrap_or_default();
        if self.workload().needs_log(diagnosis.cause) {
            let log = self.run.folder.attempt(attempt.map_or(1, |attempt| attempt.number)).log();
            let last = watch::last_lines(&log);
            if !last.is_empty() {
                reason = format!("{reason}{LAST_LINES}\n{}", last.join("\n"));
            }
        }
        match self.workload().is_trainer() {
            true => Error::TrainingFailed { reason, bad_input },
            false => Error::CommandFailed { reason },
        }
    }
}

/// The record of an out-of-memory that a job has written.
fn written_oom_record(folder: &AttemptFolder) -> Option<OomRecord> {
    let text = job_file::read(folder.job().path(), JobFolder::OOM, OOM_LIMIT).ok()?;
    serde_json::from_slice(&text).ok()
}

/// Bytes that an attempt could have held: what it was allowed, as far as others left it.
fn available(record: &OomRecord) -> Option<u64> {
    let left = record.sizes.reserved.zip(record.sizes.card_free).map(|(reserved, free)| reserved + free);
    [record.sizes.total, left].into_iter().flatten().min()
}

pub fn warn(reporter: &Reporter, reasons: Vec<String>) {
    reasons.iter().for_each(|reason| reporter.note(&format!("warning: {reason}")));
}

fn failed_to_run(reason: String) -> Diagnosis {
    Diagnosis { outcome: Outcome::Failed, cause: Some(Cause::Vanished), reason: Some(reason) }
}

/// The end of a run whose attempt was stopped for good.
fn stopped(diagnosis: Diagnosis) -> Error {
    match (diagnosis.cause, diagnosis.reason) {
        (Some(Cause::Cancelled), Some(reason)) => Error::Cancelled { reason },
        _ => Error::Interrupted,
    }
}

/// The diagnosis of a job whose end was not observed.
fn interrupted() -> Diagnosis {
    let reason = "the pipe process of the run was killed".to_owned();
    Diagnosis { outcome: Outcome::Stopped, cause: Some(Cause::Interrupted), reason: Some(reason) }
}

//! The attempt loop: start, watch, judge, decide, start again, until the run is done or nothing is left to try. It goes on
//! from wherever the run's folder says that it stands.

mod card_wait;
mod figures;
mod first;
mod joblog;
mod watch;

use pipe_spec::event::{Fitted, Point};
use pipe_spec::{Attempt, Cause, OomRecord, Outcome, Phase, TrainerExit, TrainerSpec};

use crate::card::Card;
use crate::engine::{Ending, Engine, Found, Job};
use crate::error::Error;
use crate::interrupt::Interrupts;
use crate::ledger::Diary;
use crate::outcome::{Evidence, Verdict, judge};
use crate::plan::{CONTAINER_RUN_FOLDER, Plan, first_settings};
use crate::report::Reporter;
use crate::retry::{Decision, Settings, Situation, decide};
use crate::run::{EventLog, Run, now, write_json};
use crate::track::{Audience, News};
use joblog::JobLog;

/// How often in a row a job may be cut off from outside before it has done a step.
const PATIENCE: usize = 3;

pub struct Supervisor<'a, E: Engine> {
    pub engine: &'a E,
    pub plan: &'a Plan<'a>,
    pub run: &'a mut Run,
    pub reporter: &'a mut Reporter,
    pub interrupts: &'a mut Interrupts,
    pub audience: &'a mut Audience,
    pub entry: Entry,
    /// What earlier runs have shown, and this one will; absent where it is not to be asked.
    pub diary: Option<Diary>,
    /// What batches of this run held that fitted.
    pub points: Vec<Point>,
    /// What a search for the largest batch has found.
    pub fitted: Option<Fitted>,
}

/// How this `pipe` comes to a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entry {
    /// It is new, or the `pipe` that drove it is gone: everything as if nothing had happened.
    GoOn,
    /// It had ended, and a person has it go on; `changed` where he says something new about it.
    Resumed { changed: bool },
}

/// What comes next.
enum Turn {
    Start(Settings),
    /// An attempt that another `pipe` has started and not seen the end of.
    Adopt(Settings),
    /// An attempt has ended so.
    Judge(Settings, Verdict),
}

impl<E: Engine> Supervisor<'_, E> {
    /// Runs one attempt that looks for the largest batch.
    pub async fn fit(mut self) -> Result<Fitted, Error> {
        let mut events = EventLog::open(&self.run.folder)?;
        let settings = Settings { auto: true, ..first_settings(self.plan.pipeline) };
        let verdict = self.attempt(&settings, &mut events).await?;
        match (verdict.outcome, self.fitted.take()) {
            (Outcome::Finished, Some(fitted)) => Ok(fitted),
            (Outcome::Stopped, _) => Err(Error::Interrupted),
            (Outcome::Oom, _) => Err(Error::OutOfMemory {
                reason: verdict.reason.unwrap_or_default(),
                hint: "`pipe plan` says what would make it fit".to_owned(),
            }),
            _ => Err(self.failure(verdict)),
        }
    }

    /// Runs attempts until the run is over.
    pub async fn run(mut self) -> Result<(), Error> {
        let mut events = EventLog::open(&self.run.folder)?;
        if let Some(last) = self.run.state.attempts.last() {
            let open = last.outcome.is_none().then_some(last.number);
            self.engine.clear_run(&self.run.state.id, open).await?;
        }
        let mut turn = self.first_turn()?;
        let mut waited = false;
        loop {
            let (mut settings, verdict) = match turn {
                Turn::Judge(settings, verdict) => (settings, verdict),
                Turn::Start(settings) => {
                    let verdict = self.attempt(&settings, &mut events).await?;
                    (settings, verdict)
                }
                Turn::Adopt(settings) => {
                    let verdict = self.adopt(&settings, &mut events).await?;
                    (settings, verdict)
                }
            };
            match verdict.outcome {
                Outcome::Finished => return Ok(()),
                Outcome::Stopped if verdict.cause == Some(Cause::Interrupted) => {
                    turn = Turn::Start(self.after_interruption(settings, verdict)?);
                    continue;
                }
                Outcome::Stopped => return Err(Error::Interrupted),
                Outcome::Failed => return Err(self.failure(verdict)),
                Outcome::Oom => {}
            }
            // A trainer that searched for the batch has found one.
            if let Some(attempt) = self.run.state.attempts.last().filter(|_| settings.auto) {
                let eval_batch = self.plan.pipeline.evaluate.batch.map_or(attempt.batch, u32::from);
                settings = Settings { batch: attempt.batch, auto: false, eval_batch, ..settings };
            }
            turn = Turn::Start(match self.after_oom(&settings, &verdict, waited)? {
                Some(next) => {
                    // With other maths a batch holds something else.
                    if next.changes != settings.changes {
                        self.points.clear();
                    }
                    next
                }
                // One that was waited for in vain is not waited for again.
                None => {
                    waited = !self.wait_for_card().await?;
                    settings
                }
            });
        }
    }

    /// The same again, from the last checkpoint, unless it is cut off over and over.
    fn after_interruption(&mut self, settings: Settings, verdict: Verdict) -> Result<Settings, Error> {
        let cut_off = |attempt: &&Attempt| attempt.cause == Some(Cause::Interrupted) && attempt.last_step.is_none();
        let in_a_row = self.run.state.attempts.iter().rev().take_while(cut_off).count();
        let reason = verdict.reason.unwrap_or_default();
        if in_a_row >= PATIENCE {
            return Err(Error::EngineLost { reason: format!("{reason}, {in_a_row} times in a row") });
        }
        self.reporter.note(&format!("going on: {reason}"));
        self.note_action("the same again".to_owned())?;
        Ok(settings)
    }

    /// Retries made before the last attempt ran out of memory, since a person last had the run go on.
    fn retries_used(&self) -> u32 {
        match self.entry {
            Entry::GoOn => self.run.state.times_out_of_memory().saturating_sub(1),
            Entry::Resumed { .. } => 0,
        }
    }

    /// The settings of the next attempt, announced, or the end of the run; nothing when the same are to be tried again once
    /// the card is free.
    fn after_oom(&mut self, settings: &Settings, verdict: &Verdict, waited: bool) -> Result<Option<Settings>, Error> {
        let policy = &self.plan.pipeline.on_oom;
        let number = self.run.state.attempts.len() as u32;
        let record = self.record(number);
        let mut points = record.as_ref().map_or(Vec::new(), |record| record.points.clone());
        points.extend(self.points.iter().copied());
        let decision = decide(&Situation {
            policy,
            device: self.plan.device,
            settings,
            retries_used: self.retries_used(),
            cause: verdict.cause.unwrap_or(Cause::Capacity),
            phase: record.as_ref().map(|record| record.phase).or_else(|| (!self.was_ready()).then_some(Phase::Load)),
            waited,
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
                let effective = self.plan.pipeline.train.effective_batch;
                let accum = pipe_spec::pipeline::accum(effective, settings.batch);
                self.reporter
                    .note(&format!("retrying: {action} (accum {accum}, effective batch {effective} as before)"));
                self.note_action(action)?;
                warn(self.reporter, self.audience.tell(&News::Retried(&self.run.state)));
                Ok(Some(settings))
            }
        }
    }

    fn note_action(&mut self, action: String) -> Result<(), Error> {
        if let Some(attempt) = self.run.state.attempts.last_mut() {
            attempt.action = Some(action);
        }
        self.run.save()
    }

    /// A new attempt from its spec to its verdict.
    async fn attempt(&mut self, settings: &Settings, events: &mut EventLog) -> Result<Verdict, Error> {
        self.interrupts.check()?;
        let number = self.run.state.attempts.len() as u32 + 1;
        let folder = self.run.folder.attempt(number);
        std::fs::create_dir_all(folder.path())
            .map_err(|source| Error::Write { path: folder.path().to_owned(), source })?;
        let spec = self.plan.spec(self.engine, self.run.folder.path(), number, settings);
        write_json(&folder.spec(), &spec)?;
        let log = JobLog::open(&folder.log())?;

        let mut attempt = Attempt::new(number, settings.batch, spec.train.accum());
        attempt.changes =
            self.plan.pipeline.on_oom.then.iter().take(settings.changes).map(|change| change.0.clone()).collect();
        attempt.began = now();
        attempt.resumed = std::mem::replace(&mut self.entry, Entry::GoOn) != Entry::GoOn;
        self.run.state.attempts.push(attempt);
        self.run.set_doing("starting")?;
        self.announce(settings);
        let launched = self.launch(number).await;
        self.see_through(launched, log, &spec, events).await
    }

    /// The attempt that another `pipe` has begun, from wherever it stands to its verdict.
    async fn adopt(&mut self, settings: &Settings, events: &mut EventLog) -> Result<Verdict, Error> {
        let Some(attempt) = self.run.state.attempts.last().cloned() else { return Err(Error::Interrupted) };
        let number = attempt.number;
        let spec = self
            .spec_of(number)
            .unwrap_or_else(|| self.plan.spec(self.engine, self.run.folder.path(), number, settings));
        let launch = self.plan.launch(self.engine, &self.run.state.id, &self.run.folder, number);
        let log = JobLog::open(&self.run.folder.attempt(number).log())?;
        let job = match self.engine.find(&launch, attempt.container.as_deref()).await? {
            Found::Job(job) => Ok(job),
            Found::Nothing => {
                self.interrupts.check()?;
                write_json(&self.run.folder.attempt(number).spec(), &spec)?;
                self.launch(number).await
            }
            Found::Gone => {
                let verdict = interrupted();
                let last = self.recall();
                self.close_attempt(None, &verdict)?;
                if let Some((attempt, last)) = self.run.state.attempts.last_mut().zip(last) {
                    attempt.seconds = (last - attempt.began).max(0.0);
                }
                return Ok(verdict);
            }
        };
        self.reporter.note(&format!("taking over attempt {number}"));
        self.announce(settings);
        self.see_through(job, log, &spec, events).await
    }

    fn announce(&mut self, settings: &Settings) {
        if let Some((attempt, before)) = self.run.state.attempts.split_last() {
            self.reporter.attempt_started(attempt, self.run.state.at_most(), settings.auto, before.last());
        }
    }

    async fn launch(&self, number: u32) -> Result<Job<E::Handle>, Error> {
        let launch = self.plan.launch(self.engine, &self.run.state.id, &self.run.folder, number);
        self.engine.launch(&launch, &self.plan.pipeline.container.gpus).await
    }

    /// Stays with a job until it ends, and judges its end.
    async fn see_through(
        &mut self,
        job: Result<Job<E::Handle>, Error>,
        mut log: JobLog,
        spec: &TrainerSpec,
        events: &mut EventLog,
    ) -> Result<Verdict, Error> {
        let number = self.run.state.attempts.last().map_or(1, |attempt| attempt.number);
        events.begin_attempt(number);
        let watched = match job {
            Ok(job) => self.watch(job, &mut log, events).await,
            Err(error) => Err(error),
        };
        let ended = match watched {
            Ok(watched) => watched,
            // Whatever has become of it is found out by who goes on.
            Err(error @ Error::EngineLost { .. }) => return Err(error),
            Err(error) => {
                self.close_attempt(None, &failed_to_run(error.to_string()))?;
                return Err(error);
            }
        };
        let record = self.record(number);
        let ran_out = ended.ending.exit_code == Some(i64::from(TrainerExit::DeviceOutOfMemory.code()));
        let card = ran_out.then(|| Card::read(&self.plan.pipeline.container.gpus)).flatten();
        let mut verdict = judge(&Evidence {
            ending: &ended.ending,
            record: record.as_ref(),
            card: card.as_ref(),
            tail: &ended.tail,
            stop_requested: ended.stop_requested,
        });
        verdict.reason = verdict.reason.map(|reason| self.with_host_paths(&reason));
        self.close_attempt(Some(&ended.ending), &verdict)?;
        self.remember(spec, record.as_ref(), &ended.ending);
        // Only now: until its end was written down, it could have been asked for again.
        self.engine.clear(ended.handle).await?;
        Ok(verdict)
    }

    /// Tells the ledger what the attempt has shown. That it cannot be told is no reason not to train.
    fn remember(&mut self, spec: &TrainerSpec, record: Option<&OomRecord>, ending: &Ending) {
        let (Some(diary), Some(attempt)) = (&mut self.diary, self.run.state.attempts.last()) else { return };
        if let Err(error) = diary.attempt_ended(spec, attempt, record, ending.memory_limit) {
            self.reporter.note(&format!("warning: {error}"));
            self.diary = None;
        }
    }

    fn close_attempt(&mut self, ending: Option<&Ending>, verdict: &Verdict) -> Result<(), Error> {
        let Some(attempt) = self.run.state.attempts.last_mut() else { return Ok(()) };
        attempt.outcome = Some(verdict.outcome);
        attempt.cause = verdict.cause;
        attempt.reason = verdict.reason.clone();
        attempt.seconds = (now() - attempt.began).max(0.0);
        attempt.exit_code = ending.and_then(|ending| ending.exit_code);
        attempt.container = None;
        // The kernel kills at the limit, so the limit was reached.
        if let Some(ending) = ending.filter(|ending| ending.oom_killed) {
            attempt.peak_memory = attempt.peak_memory.max(ending.memory_limit);
        }
        let attempt = attempt.clone();
        write_json(&self.run.folder.attempt(attempt.number).outcome(), &attempt)?;
        self.reporter.attempt_ended(&attempt);
        self.run.save()?;
        warn(self.reporter, self.audience.tell(&News::AttemptEnded(&self.run.state)));
        Ok(())
    }

    fn record(&self, number: u32) -> Option<OomRecord> {
        let text = std::fs::read(self.run.folder.attempt(number).oom()).ok()?;
        serde_json::from_slice(&text).ok()
    }

    /// What a job said, with paths of the host in place of those that it sees.
    fn with_host_paths(&self, said: &str) -> String {
        let own = format!("{}/", self.run.folder.path().display());
        self.plan.with_host_paths(said).replace(&format!("{CONTAINER_RUN_FOLDER}/"), &own)
    }

    fn failure(&self, verdict: Verdict) -> Error {
        let attempt = self.run.state.attempts.last();
        let code = attempt.and_then(|attempt| attempt.exit_code);
        let bad_input = code == Some(i64::from(TrainerExit::BadInput.code()));
        let mut reason = verdict.reason.unwrap_or_default();
        if verdict.cause != Some(Cause::Trainer) {
            let log = self.run.folder.attempt(attempt.map_or(1, |attempt| attempt.number)).log();
            let last = watch::last_lines(&log);
            if !last.is_empty() {
                reason = format!("{reason}\nthe last lines of its log:\n{}", last.join("\n"));
            }
        }
        Error::TrainingFailed { reason, bad_input }
    }
}

/// Bytes that an attempt could have held: what it was allowed, as far as others left it.
fn available(record: &OomRecord) -> Option<u64> {
    let left = record.reserved.zip(record.card_free).map(|(reserved, free)| reserved + free);
    [record.total, left].into_iter().flatten().min()
}

pub fn warn(reporter: &Reporter, reasons: Vec<String>) {
    reasons.iter().for_each(|reason| reporter.note(&format!("warning: {reason}")));
}

fn failed_to_run(reason: String) -> Verdict {
    Verdict { outcome: Outcome::Failed, cause: Some(Cause::Vanished), reason: Some(reason) }
}

/// The end of a job that nobody saw.
fn interrupted() -> Verdict {
    let reason = "the pipe that drove it was killed".to_owned();
    Verdict { outcome: Outcome::Stopped, cause: Some(Cause::Interrupted), reason: Some(reason) }
}

//! The attempt loop: start, watch, judge, decide, start again, until the run is done or nothing is left to try.

use std::fs::File;
use std::io::Write;
use std::time::{Duration, Instant};

use pipe_spec::event::{Fitted, Measured, Point};
use pipe_spec::{Attempt, Cause, Device, Event, EventKind, OomRecord, Outcome, Status, TrainerExit, TrainerSpec};

use crate::card::Card;
use crate::engine::{Ending, Engine, Line, Source};
use crate::error::Error;
use crate::interrupt::Interrupts;
use crate::ledger::{self, Advice, Diary};
use crate::outcome::{Evidence, Verdict, judge};
use crate::plan::{Plan, first_settings};
use crate::report::{Reporter, html};
use crate::retry::{Decision, Settings, Situation, decide};
use crate::run::{EventLog, Record, Run, now, write_json, write_whole};
use crate::track::{Audience, News};

/// How many of the last lines of a log are kept for an error.
const TAIL: usize = 20;

pub struct Supervisor<'a, E: Engine> {
    pub engine: &'a E,
    pub plan: &'a Plan<'a>,
    pub run: &'a mut Run,
    pub reporter: &'a mut Reporter,
    pub interrupts: &'a mut Interrupts,
    /// What earlier runs have shown, and this one will; absent where it is not to be asked.
    pub diary: Option<Diary>,
    /// What batches of this run held that fitted.
    pub points: Vec<Point>,
    /// What a search for the largest batch has found.
    pub fitted: Option<Fitted>,
    pub audience: Audience,
}

impl<E: Engine> Supervisor<'_, E> {
    /// Runs attempts until the run is over, and leaves its state on disk whatever happens.
    pub async fn run(mut self) -> Result<(), Error> {
        warn(self.reporter, self.audience.tell(&News::RunStarted(&self.run.state)));
        let result = self.attempts().await;
        let saved = self.note_end(result.as_ref().err());
        self.write_report();
        warn(self.reporter, self.audience.tell(&News::RunEnded(&self.run.state)));
        self.reporter.run_ended(&self.run.state, &self.run.folder.path().display().to_string());
        result.and(saved)
    }

    /// The run as a page. That it cannot be written takes nothing from the run.
    fn write_report(&self) {
        let record = Record::read(&self.run.folder);
        let page = html::page(&[record], self.plan.variables);
        if let Err(error) = write_whole(&self.run.folder.report(), page.as_bytes()) {
            self.reporter.note(&format!("warning: {error}"));
        }
    }

    fn note_end(&mut self, error: Option<&Error>) -> Result<(), Error> {
        let state = &mut self.run.state;
        state.status = match error {
            None => Status::Finished,
            Some(Error::Interrupted) => Status::Stopped,
            Some(_) => Status::Failed,
        };
        state.error = error.map(ToString::to_string);
        self.run.save()
    }

    /// Runs one attempt that looks for the largest batch. Where that fails, the run stays to be looked at.
    pub async fn fit(mut self) -> Result<Fitted, Error> {
        let found = self.search().await;
        if let Err(error) = &found {
            self.note_end(Some(error))?;
        }
        found
    }

    async fn search(&mut self) -> Result<Fitted, Error> {
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

    async fn attempts(&mut self) -> Result<(), Error> {
        let mut events = EventLog::open(&self.run.folder)?;
        let mut settings = self.informed(first_settings(self.plan.pipeline));
        let mut waited = false;
        loop {
            let verdict = self.attempt(&settings, &mut events).await?;
            match verdict.outcome {
                Outcome::Finished => return Ok(()),
                Outcome::Stopped => return Err(Error::Interrupted),
                Outcome::Failed => return Err(self.failure(verdict)),
                Outcome::Oom => {}
            }
            // A trainer that searched for the batch has found one.
            if let Some(attempt) = self.run.state.attempts.last().filter(|_| settings.auto) {
                let eval_batch = self.plan.pipeline.evaluate.batch.map_or(attempt.batch, u32::from);
                settings = Settings { batch: attempt.batch, auto: false, eval_batch, ..settings };
            }
            match self.after_oom(&settings, &verdict, waited)? {
                Some(next) => {
                    // With other maths a batch holds something else.
                    if next.changes != settings.changes {
                        self.points.clear();
                    }
                    settings = next;
                }
                // One that was waited for in vain is not waited for again.
                None => waited = !self.wait_for_card().await?,
            }
        }
    }

    /// The first settings, as far as what is known of earlier runs speaks against them. A ledger that cannot be read is no
    /// reason not to train.
    fn informed(&mut self, settings: Settings) -> Settings {
        let Some(diary) = &self.diary else { return settings };
        let pipeline = self.plan.pipeline;
        let spec = self.plan.spec(self.engine, self.run.folder.path(), 1, &settings);
        let card = (spec.device == Device::Cuda).then(|| Card::read(&pipeline.container.gpus)).flatten();
        let (entry, hints) = match diary.ask(&spec, card.as_ref()) {
            Ok(known) => known,
            Err(error) => {
                self.reporter.note(&format!("warning: {error}"));
                self.diary = None;
                return settings;
            }
        };
        hints.iter().for_each(|hint| self.reporter.note(&format!("ledger: {hint}")));
        let Some(entry) = entry else { return settings };
        let memory = pipeline.container.memory.map(|size| size.0);
        let capacity = ledger::capacity(&spec, card.as_ref(), memory);
        let found = ledger::found(&entry, &spec, capacity).filter(|_| settings.auto);
        let (batch, why) = match found {
            Some(batch) => (batch, format!("batch {batch} was found to be the largest that fits")),
            None if settings.auto => return settings,
            None => {
                let least = pipeline.on_oom.min_batch.get();
                match ledger::advise(&entry, &spec, settings.batch, least, capacity) {
                    Advice::Go => return settings,
                    Advice::Instead { batch, why } => (batch, why),
                }
            }
        };
        self.reporter.note(&format!("ledger: {why}"));
        let eval_batch = pipeline.evaluate.batch.map_or(batch, u32::from);
        Settings { batch, auto: false, eval_batch, ..settings }
    }

    /// Until there is room on the card for what was asked for, or the time is over; whether there is.
    async fn wait_for_card(&mut self) -> Result<bool, Error> {
        let policy = &self.plan.pipeline.on_oom;
        let gpus = &self.plan.pipeline.container.gpus;
        let needed = self.record(self.run.state.attempts.len() as u32).as_ref().map_or(u64::MAX, needed);
        let began = Instant::now();
        let mut patience = Duration::from_secs(policy.wait);
        let mut told = None;
        while began.elapsed() < patience {
            let card = Card::read(gpus);
            if card.is_none() {
                patience = patience.min(BLIND);
            }
            if card.as_ref().is_some_and(|card| card.free >= needed.min(card.total - card.total / 20)) {
                self.reporter.note("the card is free again");
                return Ok(true);
            }
            let holders: Vec<String> = card.iter().flat_map(|card| &card.holders).map(ToString::to_string).collect();
            if told.as_ref() != Some(&holders) {
                let who = if holders.is_empty() { "other processes".to_owned() } else { holders.join(", ") };
                self.reporter.note(&format!("waiting for the card, at most {}s, held by {who}", patience.as_secs()));
                told = Some(holders);
            }
            let rest = patience.saturating_sub(began.elapsed());
            tokio::select! {
                () = tokio::time::sleep(LOOK.min(rest)) => {}
                () = self.interrupts.next() => return Err(Error::Interrupted),
            }
        }
        self.reporter.note("the card is not free, and the time for waiting is over: trying once more");
        Ok(false)
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
            retries_used: number.saturating_sub(1),
            cause: verdict.cause.unwrap_or(Cause::Capacity),
            phase: record.as_ref().map(|record| record.phase),
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

    /// One attempt from its spec to its verdict.
    async fn attempt(&mut self, settings: &Settings, events: &mut EventLog) -> Result<Verdict, Error> {
        let number = self.run.state.attempts.len() as u32 + 1;
        let folder = self.run.folder.attempt(number);
        std::fs::create_dir_all(folder.path())
            .map_err(|source| Error::Write { path: folder.path().to_owned(), source })?;
        let spec = self.plan.spec(self.engine, self.run.folder.path(), number, settings);
        write_json(&folder.spec(), &spec)?;
        let launch = self.plan.launch(self.engine, &self.run.state.id, &self.run.folder, number);

        let mut attempt = Attempt::new(number, settings.batch, spec.train.accum());
        attempt.changes =
            self.plan.pipeline.on_oom.then.iter().take(settings.changes).map(|change| change.0.clone()).collect();
        attempt.began = now();
        let before = self.run.state.attempts.last();
        self.reporter.attempt_started(&attempt, self.plan.pipeline.on_oom.retries + 1, settings.auto, before);
        self.run.state.attempts.push(attempt);
        self.run.save()?;
        events.begin_attempt(number);

        let began = Instant::now();
        let watched = self.watch(launch, events, number).await;
        let ended = match watched {
            Ok(watched) => watched,
            Err(error) => {
                let reason = error.to_string();
                self.close_attempt(began, None, &failed_to_run(reason))?;
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
        verdict.reason = verdict.reason.map(|reason| self.plan.with_host_paths(&reason));
        self.close_attempt(began, Some(&ended.ending), &verdict)?;
        self.remember(&spec, record.as_ref(), &ended.ending);
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

    /// Starts the job and stays with it until it ends.
    async fn watch(
        &mut self,
        launch: crate::engine::Launch,
        events: &mut EventLog,
        number: u32,
    ) -> Result<Watched, Error> {
        let log_path = self.run.folder.attempt(number).log();
        let mut log = File::create(&log_path).map_err(|source| Error::Write { path: log_path.clone(), source })?;
        let mut job = self.engine.launch(&launch, &self.plan.pipeline.container.gpus).await?;
        if let Some(attempt) = self.run.state.attempts.last_mut() {
            attempt.container = Some(job.id.clone());
        }
        let mut watched = self.run.save();
        let mut tail = Tail::default();
        let mut interrupts = 0;
        loop {
            tokio::select! {
                line = job.lines.recv() => match line {
                    None => break,
                    // What cannot be written down must not stop the reading, or the job would hang on a full pipe.
                    Some(line) => {
                        let taken = self.take(&line, &mut log, events, &mut tail);
                        if watched.is_ok() && taken.is_err() {
                            watched = taken;
                            self.engine.stop(&job.handle).await?;
                        }
                    }
                },
                () = self.interrupts.next() => {
                    interrupts += 1;
                    if interrupts == 1 {
                        self.reporter.note("stopping: the trainer saves and ends; Ctrl-C again ends it at once");
                        self.engine.stop(&job.handle).await?;
                    } else {
                        self.reporter.note("ending the trainer at once");
                        self.engine.kill(&job.handle).await?;
                    }
                }
            }
        }
        let ending = self.engine.finish(job.handle).await?;
        watched?;
        Ok(Watched { ending, tail: tail.0, stop_requested: interrupts > 0 })
    }

    /// One line of the job: kept, and understood when it is an event.
    fn take(&mut self, line: &Line, log: &mut File, events: &mut EventLog, tail: &mut Tail) -> Result<(), Error> {
        writeln!(log, "{}", line.text).map_err(|source| Error::Write { path: "log.txt".into(), source })?;
        let event = if line.source == Source::Stdout { Event::parse(&line.text) } else { None };
        let Some(event) = event else {
            tracing::debug!(target: "trainer", "{}", line.text);
            tail.push(&line.text);
            return Ok(());
        };
        self.note_figures(&event);
        if let Some(diary) = &mut self.diary {
            diary.see(&event.kind);
        }
        if let Some(recorded) = events.record(event)? {
            self.reporter.event(&recorded);
            warn(self.reporter, self.audience.tell(&News::Event(&recorded)));
        }
        Ok(())
    }

    /// What `run.json` keeps of the events.
    fn note_figures(&mut self, event: &Event) {
        let state = &mut self.run.state;
        match &event.kind {
            EventKind::Started(started) => {
                state.steps = Some(started.steps);
                if let Some(attempt) = state.attempts.last_mut() {
                    (attempt.batch, attempt.accum) = (started.batch, started.accum);
                }
            }
            EventKind::Rehearsed(rehearsed) => {
                if let Some(attempt) = state.attempts.last_mut() {
                    attempt.peak_memory = attempt.peak_memory.max(Some(rehearsed.peak));
                }
                self.points.push(Point { batch: rehearsed.batch, peak: rehearsed.peak });
            }
            EventKind::Measured(Measured { batch, peak: Some(peak), .. }) => {
                self.points.push(Point { batch: *batch, peak: *peak });
            }
            EventKind::Step(step) => {
                if let Some(attempt) = state.attempts.last_mut() {
                    attempt.first_step.get_or_insert(step.step);
                    attempt.first_loss.get_or_insert(step.loss);
                    attempt.last_step = Some(step.step);
                    attempt.last_loss = Some(step.loss);
                    attempt.peak_memory = attempt.peak_memory.max(Some(step.peak));
                }
            }
            EventKind::Oom(record) => {
                if let Some(attempt) = state.attempts.last_mut() {
                    attempt.peak_memory = attempt.peak_memory.max(record.peak);
                }
            }
            EventKind::Fitted(fitted) => self.fitted = Some(fitted.clone()),
            EventKind::Measured(_)
            | EventKind::Eval(_)
            | EventKind::Sample(_)
            | EventKind::Checkpoint(_)
            | EventKind::Warning(_)
            | EventKind::Finished(_) => {}
        }
    }

    fn close_attempt(&mut self, began: Instant, ending: Option<&Ending>, verdict: &Verdict) -> Result<(), Error> {
        let Some(attempt) = self.run.state.attempts.last_mut() else { return Ok(()) };
        attempt.outcome = Some(verdict.outcome);
        attempt.cause = verdict.cause;
        attempt.reason = verdict.reason.clone();
        attempt.seconds = began.elapsed().as_secs_f64();
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

    fn failure(&self, verdict: Verdict) -> Error {
        let attempt = self.run.state.attempts.last();
        let code = attempt.and_then(|attempt| attempt.exit_code);
        let bad_input = code == Some(i64::from(TrainerExit::BadInput.code()));
        let mut reason = verdict.reason.unwrap_or_default();
        if verdict.cause != Some(Cause::Trainer) {
            let log = self.run.folder.attempt(attempt.map_or(1, |attempt| attempt.number)).log();
            let last = last_lines(&std::fs::read_to_string(log).unwrap_or_default());
            if !last.is_empty() {
                reason = format!("{reason}\nthe last lines of its log:\n{last}");
            }
        }
        Error::TrainingFailed { reason, bad_input }
    }
}

/// How long to wait where nobody can tell whether the card is free.
const BLIND: Duration = Duration::from_secs(60);

/// How often the card is looked at while somebody else holds it.
const LOOK: Duration = Duration::from_secs(1);

/// Bytes that an attempt could have held: what it was allowed, as far as others left it.
fn available(record: &OomRecord) -> Option<u64> {
    let left = record.reserved.zip(record.card_free).map(|(reserved, free)| reserved + free);
    [record.total, left].into_iter().flatten().min()
}

/// Bytes that an attempt would have needed to go on: what it held and what it asked for.
fn needed(record: &OomRecord) -> u64 {
    let own = record.own.or(record.reserved).unwrap_or(0);
    own.saturating_add(record.requested.unwrap_or(0))
}

/// A job that has ended.
struct Watched {
    ending: Ending,
    tail: Vec<String>,
    stop_requested: bool,
}

#[derive(Default)]
struct Tail(Vec<String>);

impl Tail {
    fn push(&mut self, line: &str) {
        if self.0.len() == TAIL {
            self.0.remove(0);
        }
        self.0.push(line.to_owned());
    }
}

fn warn(reporter: &Reporter, reasons: Vec<String>) {
    reasons.iter().for_each(|reason| reporter.note(&format!("warning: {reason}")));
}

fn failed_to_run(reason: String) -> Verdict {
    Verdict { outcome: Outcome::Failed, cause: Some(Cause::Vanished), reason: Some(reason) }
}

fn last_lines(text: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(TAIL)..].iter().map(|line| format!("  {line}")).collect::<Vec<_>>().join("\n")
}

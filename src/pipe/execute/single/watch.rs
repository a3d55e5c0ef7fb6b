//! Watches a job to its end: writes its log and records its events.
//!
//! `run.json` keeps a summary of the events.

use std::io::{BufRead, BufReader, Read, Seek, SeekFrom};
use std::path::Path;
use std::time::{Duration, Instant};

use pipe_spec::event::{Measured, Metrics, Point};
use pipe_spec::run::AttemptFolder;
use pipe_spec::text::count;
use pipe_spec::{Event, EventKind};
use tokio::time::MissedTickBehavior;

use super::job_log::{JobEvents, JobLog};
use super::{Supervisor, warn};
use crate::engine::first_process::STOPPED_WARNING;
use crate::engine::{Ending, JobHandle, Launch, Line, Output, Source, StartedJob, release};
use crate::error::Error;
use crate::execute::decide::metrics::Reader;
use crate::report::bounded;
use crate::run::{EventLog, lock};
use crate::system::clock::now;
use crate::system::files;
use crate::system::interrupt::StopRequest;
use crate::track::Notice;

/// Characters of such a line that are shown.
const LINE: usize = 1000;

/// How many of the last lines of a log are kept for an error.
const TAIL: usize = 20;

/// Between two times that the figures of a running attempt are written down.
const SAVE_INTERVAL: Duration = Duration::from_secs(2);

/// Between two reads of the job's event file, and between two stop requests.
const POLL_INTERVAL: Duration = Duration::from_millis(500);

/// Pieces of the job's event file that are read at once while it runs.
const MAX_PIECES: usize = 32;

/// How long a job may take to go away after it was killed.
const KILL_TIMEOUT: Duration = Duration::from_secs(60);

/// A job that has ended.
pub(super) struct Watched {
    pub handle: Box<dyn JobHandle>,
    pub ending: Ending,
    pub tail: Vec<String>,
    pub stop_requested: bool,
}

impl Supervisor<'_> {
    pub(super) async fn watch(
        &mut self,
        mut job: StartedJob,
        log: &mut JobLog,
        events: &mut EventLog,
    ) -> Result<Watched, Error> {
        let mut job_events = JobEvents::open(&self.attempt_folder());
        if let Some(attempt) = self.run.state.last_attempt_mut() {
            attempt.job.container = Some(job.id.clone());
        }
        let mut watched = self.run.set_doing(self.workload().activity());
        // A trainer says itself when it has begun.
        if !self.workload().is_trainer() {
            self.reporter.doing(self.workload().activity());
        }
        let mut tail = Tail::default();
        let mut saved = Instant::now();
        let mut stopping: Option<Stopping> = None;
        let mut poll = tokio::time::interval(POLL_INTERVAL);
        poll.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                line = job.lines.recv() => match line {
                    None => break,
                    // An event that cannot be written must not stop the reading, or the job would hang on a full pipe.
                    Some(line) => {
                        let taken = self.take(&line, &mut job_events, log, events, &mut tail);
                        if watched.is_ok() && taken.is_err() {
                            watched = taken;
                            let stop = stopping.get_or_insert_with(|| Stopping::gracefully(self.stop_timeout()));
                            stop.send(job.handle.as_ref()).await?;
                        }
                    }
                },
                _ = poll.tick() => {
                    let drained = self.drain_some(&mut job_events, events);
                    if watched.is_ok() && drained.is_err() {
                        watched = drained;
                        stopping.get_or_insert_with(|| Stopping::gracefully(self.stop_timeout()));
                    }
                    if let Some(stop) = &mut stopping {
                        self.enforce_stop(stop, job.handle.as_ref()).await?;
                    }
                },
                request = self.interrupts.next() => self.ask_to_stop(request, &mut stopping, job.handle.as_ref()).await?,
            }
            // For `pipe ls` and `pipe attach`.
            if saved.elapsed() > SAVE_INTERVAL && watched.is_ok() {
                saved = Instant::now();
                self.save_progress(log).unwrap_or_else(|error| tracing::debug!("{error}"));
            }
        }
        let last = self.metrics.as_mut().and_then(Reader::end);
        let drained = self.record_metrics(last.into_iter().collect(), log, events);
        watched = watched.and(drained);
        let ending = match job.handle.ending().await {
            Ok(ending) => ending,
            // The next process that resumes the run asks it again.
            Err(error @ Error::EngineLost { .. }) => return Err(error),
            Err(error) => {
                job.handle.remove().await.ok();
                return Err(error);
            }
        };
        let drained = self.drain(&mut job_events, events);
        watched?;
        drained?;
        let stop_requested = stopping.is_some_and(|stop| stop.requested);
        Ok(Watched { handle: job.handle, ending, tail: tail.0, stop_requested })
    }

    /// Writes down how far the log has come, and gives the disk back what the log has of the output. The log is synced first: after a
    /// power cut no line may be missing from both.
    fn save_progress(&mut self, log: &JobLog) -> Result<(), Error> {
        log.sync()?;
        if let Some(attempt) = self.run.state.last_attempt_mut() {
            attempt.job.log = Some(log.position());
        }
        self.run.save()?;
        release(self.attempt_folder().job().path(), log.position().output);
        Ok(())
    }

    fn attempt_folder(&self) -> AttemptFolder {
        self.run.folder.attempt(self.run.state.attempts().last().map_or(1, |attempt| attempt.number))
    }

    fn stop_timeout(&self) -> Duration {
        Duration::from_secs(self.template.pipeline.container.stop_timeout().into())
    }

    async fn ask_to_stop(
        &self,
        request: StopRequest,
        stopping: &mut Option<Stopping>,
        handle: &dyn JobHandle,
    ) -> Result<(), Error> {
        let timeout = self.stop_timeout();
        let stop = stopping.get_or_insert_with(|| Stopping::gracefully(timeout));
        let first = !std::mem::replace(&mut stop.requested, true);
        match request {
            StopRequest::Graceful if first => {
                let within = timeout.as_secs();
                let what = self.workload().stopping();
                self.reporter
                    .note(&format!("stopping: {what}; killing it after {within} s, or at once on a second Ctrl-C"));
                stop.send(handle).await
            }
            StopRequest::Graceful => Ok(()),
            StopRequest::Hard => {
                self.reporter.note(&format!("ending {} at once", self.workload().noun()));
                stop.kill(handle).await
            }
        }
    }

    /// Repeats the request to a job that is to end, and kills it after the timeout.
    async fn enforce_stop(&self, stop: &mut Stopping, handle: &dyn JobHandle) -> Result<(), Error> {
        match stop.killed {
            Some(since) if since.elapsed() > KILL_TIMEOUT => Err(Error::JobStays { seconds: KILL_TIMEOUT.as_secs() }),
            Some(_) => Ok(()),
            None if stop.unheard => {
                stop.deadline = Instant::now() + self.stop_timeout();
                stop.send(handle).await
            }
            None if Instant::now() > stop.deadline && handle.is_saving() => Ok(()),
            None if Instant::now() > stop.deadline => {
                let timeout = self.stop_timeout().as_secs();
                self.reporter.note(&format!(
                    "warning: {} did not end within {timeout} s (container.stop_timeout): ending it; what it \
                     did after its last checkpoint is lost",
                    self.workload().noun()
                ));
                stop.kill(handle).await
            }
            // A second signal would interrupt what a command does to save.
            None if !self.workload().is_trainer() => Ok(()),
            // Signals to the first process of a container are lost until it has installed its handlers.
            None => stop.send(handle).await,
        }
    }

    /// One line of the job: kept, and recorded when it is an event.
    fn take(
        &mut self,
        line: &Line,
        job_events: &mut JobEvents,
        log: &mut JobLog,
        events: &mut EventLog,
        tail: &mut Tail,
    ) -> Result<(), Error> {
        match line.source {
            Source::Queue => {
                self.reporter.note(&line.text);
                return self.run.set_doing(&line.text);
            }
            Source::Engine => self.reporter.note(&line.text),
            Source::Job => {}
        }
        // It has begun, where it had to wait.
        if self.run.state.doing.as_deref() != Some(self.workload().activity()) {
            self.run.set_doing(self.workload().activity())?;
        }
        if line.source == Source::Engine {
            return Ok(());
        }
        log.write(line)?;
        if !self.workload().is_trainer() {
            self.reporter.job_line(&line.text);
            return self.read_metrics(&line.text, log, events);
        }
        let Some(event) = Event::parse(&line.text) else {
            // A trainer that is stopped cannot say so itself.
            if line.text.starts_with(STOPPED_WARNING) {
                self.reporter.note(&line.text);
            }
            tracing::debug!(target: "trainer", "{}", line.text);
            tail.push(&line.text);
            return Ok(());
        };
        if events.gap_before(&event) > 0 {
            self.drain(job_events, events)?;
        }
        self.record(event, events)
    }

    /// Takes the output that a job which is gone has left. After a stop request the next `pipe` goes on with it.
    pub(super) async fn take_rest(
        &mut self,
        launch: &Launch,
        log: &mut JobLog,
        events: &mut EventLog,
    ) -> Result<(), Error> {
        let mut output = Output::of(launch, Some(&log.position()));
        let mut job_events = JobEvents::open(&self.attempt_folder());
        let mut take = |this: &mut Self, log: &mut JobLog, lines: &[Line]| {
            lines.iter().try_for_each(|line| this.take(line, &mut job_events, log, events, &mut Tail::default()))
        };
        while let Some(lines) = output.next() {
            take(self, log, &lines)?;
            tokio::select! {
                biased;
                () = self.interrupts.signal() => {
                    self.save_progress(log)?;
                    return Err(Error::Interrupted);
                }
                () = tokio::task::yield_now() => {}
            }
        }
        take(self, log, output.last_line().as_slice())
    }

    /// The reader of a command's metrics, as it was after what the log holds: some formats go by earlier lines.
    pub(super) fn restore_metrics_reader(&mut self, log: &Path, read: u64) {
        self.metrics = self.workload().metrics_reader();
        let (Some(reader), Ok(file)) = (&mut self.metrics, files::open_own(log)) else { return };
        for line in BufReader::new(file.take(read)).split(b'\n').map_while(Result::ok) {
            String::from_utf8_lossy(&line).split('\r').for_each(|text| drop(reader.read(text)));
        }
    }

    /// Records what a line of a command says of its steps.
    fn read_metrics(&mut self, line: &str, log: &mut JobLog, events: &mut EventLog) -> Result<(), Error> {
        let Some(reader) = &mut self.metrics else { return Ok(()) };
        // Every state of a progress bar may say something.
        let found = line.split('\r').filter_map(|text| reader.read(text)).collect();
        self.record_metrics(found, log, events)
    }

    fn record_metrics(&mut self, found: Vec<Metrics>, log: &mut JobLog, events: &mut EventLog) -> Result<(), Error> {
        found.into_iter().try_for_each(|found| {
            let event = Event { seq: log.next_event(), ts: now(), kind: EventKind::Metrics(found) };
            self.record(event, events)
        })
    }

    /// Records what the job has added to its event file.
    pub(super) fn drain(&mut self, job_events: &mut JobEvents, events: &mut EventLog) -> Result<(), Error> {
        while self.drain_piece(job_events, events)? {}
        Ok(())
    }

    /// The same for a job that may add events faster than they are read: stop requests are heard in between.
    fn drain_some(&mut self, job_events: &mut JobEvents, events: &mut EventLog) -> Result<(), Error> {
        for _ in 0..MAX_PIECES {
            if !self.drain_piece(job_events, events)? {
                break;
            }
        }
        Ok(())
    }

    /// Records some of the events that the job has added; whether there were any.
    fn drain_piece(&mut self, job_events: &mut JobEvents, events: &mut EventLog) -> Result<bool, Error> {
        let (added, problem) = job_events.next();
        problem.iter().for_each(|problem| self.reporter.note(&format!("warning: {problem}")));
        let has_more = !added.is_empty();
        added.into_iter().try_for_each(|event| self.record(event, events))?;
        Ok(has_more)
    }

    fn record(&mut self, mut event: Event, events: &mut EventLog) -> Result<(), Error> {
        if !events.is_new(&event) {
            return Ok(());
        }
        let lost = events.gap_before(&event);
        if lost > 0 {
            let seq = event.seq;
            self.reporter.note(&format!("warning: lost {} before event {seq} of this attempt", count(lost, "event")));
        }
        if let EventKind::Warning(warning) = &mut event.kind {
            warning.message = self.with_host_paths(&warning.message);
        }
        self.note_event(&event);
        let Some(recorded) = events.record(event)? else { return Ok(()) };
        self.reporter.event(&recorded);
        warn(self.reporter, self.listeners.notify(&Notice::Event(&recorded)));
        Ok(())
    }
}

/// A job that is to end.
struct Stopping {
    /// Until when it may save.
    deadline: Instant,
    /// Whether a person requested the stop.
    requested: bool,
    killed: Option<Instant>,
    /// Whether the engine did not take the request: it is away, and waited for.
    unheard: bool,
}

/// How long an engine is given to take a request to stop a job; one that hangs may take it later.
const TAKE_TIMEOUT: Duration = Duration::from_secs(15);

impl Stopping {
    fn gracefully(timeout: Duration) -> Self {
        Self { deadline: Instant::now() + timeout, requested: false, killed: None, unheard: false }
    }

    /// Asks the job to end.
    async fn send(&mut self, handle: &dyn JobHandle) -> Result<(), Error> {
        let sent = tokio::time::timeout(TAKE_TIMEOUT, handle.stop()).await;
        self.unheard = matches!(sent, Ok(Err(Error::EngineLost { .. })));
        match sent {
            Ok(sent) if !self.unheard => sent,
            _ => Ok(()),
        }
    }

    /// Ends the job at once, or fails: who asks for that does not want to wait for an engine that is away.
    async fn kill(&mut self, handle: &dyn JobHandle) -> Result<(), Error> {
        self.killed.get_or_insert_with(Instant::now);
        let killed = tokio::time::timeout(TAKE_TIMEOUT, handle.kill()).await;
        killed.unwrap_or_else(|_| Err(Error::EngineLost { reason: "it does not answer".to_owned() }))
    }
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

/// The last lines of a log of any size, indented.
pub(super) fn last_lines(log: &Path) -> Vec<String> {
    let text = end_of(log, 64 << 10);
    let lines: Vec<&str> = text.lines().collect();
    let shown = |line: &&str| {
        format!("  {}", bounded(line.trim_end_matches('\r').rsplit('\r').next().unwrap_or_default(), LINE))
    };
    lines[lines.len().saturating_sub(TAIL)..].iter().map(shown).collect()
}

/// The last bytes of a log of any size, as text.
pub(super) fn end_of(log: &Path, most: u64) -> String {
    let read = || {
        let mut file = files::open_own(log)?;
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(most)))?;
        let mut bytes = Vec::new();
        file.take(most).read_to_end(&mut bytes)?;
        std::io::Result::Ok(bytes)
    };
    String::from_utf8_lossy(&read().unwrap_or_default()).into_owned()
}

impl Supervisor<'_> {
    /// Takes in what an event says of the attempt, for `run.json` and the ledger.
    pub(super) fn note_event(&mut self, event: &Event) {
        self.note_figures(event);
        if let Some(session) = &mut self.session {
            session.observe(&event.kind);
        }
    }

    fn note_figures(&mut self, event: &Event) {
        let state = &mut self.run.state;
        match &event.kind {
            EventKind::Started(started) => {
                lock::record_started(&self.run.folder, started);
                state.set_steps(started.steps);
                if let Some(attempt) = state.last_attempt_mut() {
                    (attempt.batch, attempt.accum) = (started.batch, started.accum);
                }
            }
            EventKind::Rehearsed(rehearsed) => {
                if let Some(attempt) = state.last_attempt_mut() {
                    attempt.figures.peak_memory = attempt.figures.peak_memory.max(Some(rehearsed.peak));
                }
                self.points.push(Point { batch: rehearsed.batch, peak: rehearsed.peak });
            }
            EventKind::Measured(Measured { batch, peak: Some(peak), .. }) => {
                self.points.push(Point { batch: *batch, peak: *peak });
            }
            EventKind::Step(step) => {
                if let Some(attempt) = state.last_attempt_mut() {
                    attempt.figures.first_step.get_or_insert(step.step);
                    attempt.figures.first_loss.get_or_insert(step.loss);
                    attempt.figures.last_step = Some(step.step);
                    attempt.figures.last_loss = Some(step.loss);
                    attempt.figures.peak_memory = attempt.figures.peak_memory.max(Some(step.peak));
                }
            }
            EventKind::Metrics(metrics) => {
                metrics.steps.into_iter().for_each(|steps| state.set_steps(steps));
                if let Some((attempt, peak)) = state.last_attempt_mut().zip(metrics.peak_memory()) {
                    attempt.figures.peak_memory = attempt.figures.peak_memory.max(Some(peak));
                    self.points.retain(|point| point.batch != attempt.batch || point.peak > peak);
                    self.points.push(Point { batch: attempt.batch, peak });
                }
                if let Some(attempt) = state.last_attempt_mut() {
                    attempt.figures.first_step.get_or_insert(metrics.step);
                    attempt.figures.last_step = attempt.figures.last_step.max(Some(metrics.step));
                    if let Some(loss) = metrics.loss() {
                        attempt.figures.first_loss.get_or_insert(loss);
                        attempt.figures.last_loss = Some(loss);
                    }
                }
            }
            EventKind::Oom(record) => {
                if let Some(attempt) = state.last_attempt_mut() {
                    attempt.figures.peak_memory = attempt.figures.peak_memory.max(record.sizes.peak);
                }
                self.oom = Some(record.clone());
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
}

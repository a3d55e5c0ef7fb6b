//! Staying with a job: its lines are kept, its events understood, its end waited for.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;
use std::time::{Duration, Instant};

use pipe_spec::Event;
use tokio::time::MissedTickBehavior;

use super::joblog::JobLog;
use super::{Supervisor, warn};
use crate::engine::{Ending, Engine, Job, Line, Source};
use crate::error::Error;
use crate::run::EventLog;
use crate::track::News;

/// How many of the last lines of a log are kept for an error.
const TAIL: usize = 20;

/// Between two times that the figures of a running attempt are written down.
const RHYTHM: Duration = Duration::from_secs(2);

/// A job that has ended.
pub(super) struct Watched<H> {
    pub handle: H,
    pub ending: Ending,
    pub tail: Vec<String>,
    pub stop_requested: bool,
}

impl<E: Engine> Supervisor<'_, E> {
    pub(super) async fn watch(
        &mut self,
        mut job: Job<E::Handle>,
        log: &mut JobLog,
        events: &mut EventLog,
    ) -> Result<Watched<E::Handle>, Error> {
        if let Some(attempt) = self.run.state.attempts.last_mut() {
            attempt.container = Some(job.id.clone());
        }
        let mut watched = self.run.set_doing("training");
        let mut tail = Tail::default();
        let mut kept = Instant::now();
        let mut interrupts = 0;
        let mut ask_again = tokio::time::interval(RHYTHM / 2);
        ask_again.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                line = job.lines.recv() => match line {
                    None => break,
                    // What cannot be written down must not stop the reading, or the job would hang on a full pipe.
                    Some(line) => {
                        let taken = self.take(&line, log, events, &mut tail);
                        if watched.is_ok() && taken.is_err() {
                            watched = taken;
                            self.engine.stop(&job.handle).await?;
                        }
                        // For those who look from outside.
                        if kept.elapsed() > RHYTHM && watched.is_ok() {
                            kept = Instant::now();
                            self.run.save().unwrap_or_else(|error| tracing::debug!("{error}"));
                        }
                    }
                },
                // A job that has only begun is deaf: the first process of a container has to listen before it hears.
                _ = ask_again.tick(), if interrupts == 1 => self.engine.stop(&job.handle).await?,
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
        let ending = self.engine.ending(&mut job.handle).await?;
        watched?;
        Ok(Watched { handle: job.handle, ending, tail: tail.0, stop_requested: interrupts > 0 })
    }

    /// One line of the job: kept, and understood when it is an event.
    fn take(&mut self, line: &Line, log: &mut JobLog, events: &mut EventLog, tail: &mut Tail) -> Result<(), Error> {
        if line.source == Source::Engine {
            self.reporter.note(&line.text);
            return Ok(());
        }
        log.write(&line.text)?;
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
    const ENOUGH: u64 = 64 << 10;
    let read = || {
        let mut file = File::open(log)?;
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(ENOUGH)))?;
        let mut bytes = Vec::new();
        file.take(ENOUGH).read_to_end(&mut bytes)?;
        std::io::Result::Ok(bytes)
    };
    let bytes = read().unwrap_or_default();
    let text = String::from_utf8_lossy(&bytes);
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(TAIL)..].iter().map(|line| format!("  {line}")).collect()
}

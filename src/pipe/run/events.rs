//! `events.jsonl`: every event of every attempt, each once.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;

use pipe_spec::event::RecordedEvent;
use pipe_spec::{Event, EventKind, RunFolder};

use crate::error::Error;

pub struct EventLog {
    path: PathBuf,
    file: File,
    attempt: u32,
    /// The last event of this attempt that was taken.
    last_seq: u64,
    /// The last step of the run that was taken.
    last_step: u64,
}

impl EventLog {
    /// The log of a run, with what it holds already.
    pub fn open(folder: &RunFolder) -> Result<Self, Error> {
        let path = folder.events();
        let write_error = |source| Error::Write { path: path.clone(), source };
        let mut file = File::options().create(true).read(true).append(true).open(&path).map_err(write_error)?;
        let mut log = Self {
            path: path.clone(),
            file: file.try_clone().map_err(write_error)?,
            attempt: 0,
            last_seq: 0,
            last_step: 0,
        };
        let mut whole = 0;
        let mut reader = BufReader::new(&mut file);
        let mut line = Vec::new();
        while reader.read_until(b'\n', &mut line).map_err(write_error)? > 0 && line.ends_with(b"\n") {
            whole += line.len() as u64;
            if let Ok(recorded) = serde_json::from_slice::<RecordedEvent>(&line) {
                (log.attempt, log.last_seq) = (recorded.attempt, recorded.event.seq);
                if let EventKind::Step(step) = &recorded.event.kind {
                    log.last_step = step.step;
                }
            }
            line.clear();
        }
        // Half a line is all that a killed `pipe` can have left; the event comes again.
        log.file.set_len(whole).map_err(write_error)?;
        Ok(log)
    }

    /// What comes is of this attempt, which may be one that was recorded in part.
    pub fn begin_attempt(&mut self, number: u32) {
        if self.attempt != number {
            (self.attempt, self.last_seq) = (number, 0);
        }
    }

    /// The last event of this attempt that was taken.
    pub fn last_seq(&self) -> u64 {
        self.last_seq
    }

    /// Whether it is none that was recorded before.
    pub fn is_new(&self, event: &Event) -> bool {
        event.seq > self.last_seq
    }

    /// How many events of this attempt lie between the last that was recorded and this one.
    pub fn gap_before(&self, event: &Event) -> u64 {
        event.seq.saturating_sub(self.last_seq.saturating_add(1))
    }

    /// Records an event. `None` when it was recorded before: the same line read again, or a step that an attempt before
    /// this one had done after its last checkpoint and that is now done over.
    pub fn record(&mut self, event: Event) -> Result<Option<RecordedEvent>, Error> {
        if !self.is_new(&event) {
            return Ok(None);
        }
        self.last_seq = event.seq;
        if let EventKind::Step(step) = &event.kind {
            if step.step <= self.last_step {
                return Ok(None);
            }
            self.last_step = step.step;
        }
        let recorded = RecordedEvent { attempt: self.attempt, event };
        let mut line = serde_json::to_vec(&recorded)
            .map_err(|error| Error::Write { path: self.path.clone(), source: error.into() })?;
        line.push(b'\n');
        self.file.write_all(&line).map_err(|source| Error::Write { path: self.path.clone(), source })?;
        Ok(Some(recorded))
    }
}

#[cfg(test)]
mod tests {
    use pipe_spec::event::{Step, Warning};

    use super::*;

    fn step(seq: u64, step: u64) -> Event {
        let kind = EventKind::Step(Step { step, loss: 1.0, tokens: 1, ms: 1.0, ..Step::default() });
        Event { seq, ts: 0.0, kind }
    }

    #[test]
    fn each_event_and_each_step_once() {
        let folder = RunFolder::new(std::env::temp_dir().join(format!("pipe-events-{}", std::process::id())));
        std::fs::create_dir_all(folder.path()).unwrap();
        let mut log = EventLog::open(&folder).unwrap();
        log.begin_attempt(1);
        for event in [step(1, 1), step(2, 2), step(2, 2), step(1, 1), step(3, 3)] {
            log.record(event).unwrap();
        }
        log.begin_attempt(2);
        let warning = Event { seq: 1, ts: 0.0, kind: EventKind::Warning(Warning { message: "again".into() }) };
        for event in [warning, step(2, 3), step(3, 4)] {
            log.record(event).unwrap();
        }
        let text = std::fs::read_to_string(folder.events()).unwrap();
        let recorded: Vec<RecordedEvent> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let seen: Vec<(u32, u64)> = recorded.iter().map(|event| (event.attempt, event.event.seq)).collect();
        assert_eq!(seen, [(1, 1), (1, 2), (1, 3), (2, 1), (2, 3)]);

        // Killed in the middle of a line, and read again from the beginning of the attempt.
        std::fs::write(folder.events(), format!("{text}{{\"attempt\":2,\"seq\":4,\"ty")).unwrap();
        let mut log = EventLog::open(&folder).unwrap();
        log.begin_attempt(2);
        for event in [step(2, 3), step(3, 4), step(4, 5)] {
            log.record(event).unwrap();
        }
        let again = std::fs::read_to_string(folder.events()).unwrap();
        assert!(again.starts_with(&text), "{again}");
        assert_eq!(again.lines().count(), 6);
        std::fs::remove_dir_all(folder.path()).unwrap();
    }
}

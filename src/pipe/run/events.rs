//! `events.jsonl`: every event of every attempt, each once.
//!
//! Reading a file along while another process writes it, in little memory.
//!
//! Lines of a log in which the trainer says for people what the event beside them says: steps and evaluations. `pipe logs`
//! prints the event.

use std::fs::File;
use std::io::{self, BufRead, BufReader, ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use pipe_spec::event::RecordedEvent;
use pipe_spec::{Event, EventKind, RunFolder};

use super::job_file::{self, Piece};
use crate::error::Error;
use crate::system::files;

pub struct EventLog {
    path: PathBuf,
    file: File,
    attempt: u32,
    /// The last event of this attempt that was taken.
    last_seq: u64,
    /// The last step of the run that was taken.
    last_step: u64,
    /// The step of the last evaluation, and of the last one of the attempts before this.
    last_eval: u64,
    last_eval_before: u64,
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
            last_eval: 0,
            last_eval_before: 0,
        };
        let mut whole = 0;
        let mut reader = BufReader::new(&mut file);
        let mut line = Vec::new();
        while reader.read_until(b'\n', &mut line).map_err(write_error)? > 0 && line.ends_with(b"\n") {
            whole += line.len() as u64;
            if let Ok(recorded) = serde_json::from_slice::<RecordedEvent>(&line) {
                log.begin_attempt(recorded.attempt);
                log.last_seq = recorded.event.seq;
                log.note(&recorded.event.kind);
            }
            line.clear();
        }
        // Half a line is all that a killed `pipe` can have left; the event comes again.
        log.file.set_len(whole).map_err(write_error)?;
        Ok(log)
    }

    /// The events that follow are of this attempt, which may be one that was recorded in part.
    pub fn begin_attempt(&mut self, number: u32) {
        if self.attempt != number {
            (self.attempt, self.last_seq) = (number, 0);
            self.last_eval_before = self.last_eval;
        }
    }

    fn note(&mut self, event: &EventKind) {
        match event {
            EventKind::Step(step) => self.last_step = step.step,
            EventKind::Eval(eval) => self.last_eval = self.last_eval.max(eval.step),
            _ => {}
        }
    }

    /// Whether an attempt before this one had done the same after its last checkpoint.
    fn is_done_over(&self, event: &EventKind) -> bool {
        match event {
            EventKind::Step(step) => step.step <= self.last_step,
            EventKind::Eval(eval) => eval.step <= self.last_eval_before,
            EventKind::Sample(sample) => sample.step <= self.last_eval_before,
            _ => false,
        }
    }

    /// Whether it is none that was recorded before.
    pub fn is_new(&self, event: &Event) -> bool {
        event.seq > self.last_seq
    }

    /// How many events of this attempt lie between the last that was recorded and this one.
    pub fn gap_before(&self, event: &Event) -> u64 {
        event.seq.saturating_sub(self.last_seq.saturating_add(1))
    }

    /// Records an event. `None` when it was recorded before: the same line read again, or a step or evaluation that an attempt
    /// before this one had done after its last checkpoint and that is now done over.
    pub fn record(&mut self, event: Event) -> Result<Option<RecordedEvent>, Error> {
        if !self.is_new(&event) {
            return Ok(None);
        }
        self.last_seq = event.seq;
        if self.is_done_over(&event.kind) {
            return Ok(None);
        }
        self.note(&event.kind);
        let recorded = RecordedEvent { attempt: self.attempt, event };
        let mut line = serde_json::to_vec(&recorded)
            .map_err(|error| Error::Write { path: self.path.clone(), source: error.into() })?;
        line.push(b'\n');
        self.file.write_all(&line).map_err(|source| Error::Write { path: self.path.clone(), source })?;
        Ok(Some(recorded))
    }
}

pub struct Follow {
    path: PathBuf,
    written_by: Writer,
    offset: u64,
    partial: Vec<u8>,
    /// Whether the line that is being read was too long, so that the rest of it is passed over.
    too_long: bool,
    /// Device and inode of the file that was read last.
    file: Option<(u64, u64)>,
}

/// Who writes the file.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Writer {
    Runner,
    Job,
}

impl Follow {
    /// As much as is read at once.
    const CHUNK: u64 = 1 << 20;
    /// A line longer than this is left out.
    const MAX_LINE: usize = 8 << 20;
    /// Pieces without the end of a line after which a look at the file ends, so that the caller is not held up.
    const MAX_PIECES: usize = 4096;

    pub fn new(path: PathBuf) -> Self {
        Self { path, written_by: Writer::Runner, offset: 0, partial: Vec::new(), too_long: false, file: None }
    }

    /// A file that a job writes, and that is not to be trusted.
    pub fn of_job(path: PathBuf) -> Self {
        Self { written_by: Writer::Job, ..Self::new(path) }
    }

    /// Whether another file, or a shorter one, has taken the place of the one that was read.
    pub fn is_of_another_file(&self) -> bool {
        let found = std::fs::metadata(&self.path);
        found.is_ok_and(|now| self.file.is_some_and(|file| file != (now.dev(), now.ino())) || now.len() < self.offset)
    }

    /// Passes over what is there.
    pub fn skip(&mut self) -> Result<(), Error> {
        match std::fs::metadata(&self.path) {
            Ok(found) => self.offset = found.len(),
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(source) => return Err(Error::Read { path: self.path.clone(), source }),
        }
        Ok(())
    }

    /// The next bytes, some at a time; none where nothing was added. A file that is not there yet is an empty one.
    pub fn bytes(&mut self) -> Result<Vec<u8>, Error> {
        match self.read() {
            Ok(bytes) => {
                self.offset += bytes.len() as u64;
                Ok(bytes)
            }
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(Vec::new()),
            Err(source) => Err(Error::Read { path: self.path.clone(), source }),
        }
    }

    fn read(&mut self) -> io::Result<Vec<u8>> {
        let mut file = self.open()?;
        if self.written_by == Writer::Job {
            return self.read_past_hole(&file);
        }
        let found = file.metadata()?;
        self.file = Some((found.dev(), found.ino()));
        file.seek(SeekFrom::Start(self.offset))?;
        let mut bytes = Vec::new();
        file.take(Self::CHUNK).read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    /// A line with a hole in it is none.
    fn read_past_hole(&mut self, file: &File) -> io::Result<Vec<u8>> {
        for _ in 0..Self::MAX_PIECES {
            match job_file::next_piece(file, self.offset)? {
                Piece::Bytes(bytes) => return Ok(bytes),
                Piece::End => break,
                Piece::Hole { end } => {
                    self.offset = end;
                    self.partial.clear();
                    self.too_long = false;
                }
            }
        }
        Ok(Vec::new())
    }

    /// The next whole lines, some at a time; none where no line was added.
    pub fn lines(&mut self) -> Result<Vec<String>, Error> {
        for _ in 0..Self::MAX_PIECES {
            let bytes = self.bytes()?;
            if bytes.is_empty() {
                return Ok(Vec::new());
            }
            let Some(end) = bytes.iter().rposition(|byte| *byte == b'\n') else {
                self.keep(&bytes);
                continue;
            };
            let (whole, rest) = bytes.split_at(end + 1);
            let mut text = std::mem::take(&mut self.partial);
            let whole = match std::mem::take(&mut self.too_long) {
                false => whole,
                true => &whole[whole.iter().position(|byte| *byte == b'\n').map_or(0, |first| first + 1)..],
            };
            text.extend_from_slice(whole);
            self.keep(rest);
            return Ok(String::from_utf8_lossy(&text).lines().map(str::to_owned).collect());
        }
        Ok(Vec::new())
    }

    /// Keeps the beginning of a line whose end was not written yet.
    fn keep(&mut self, bytes: &[u8]) {
        self.partial.extend_from_slice(bytes);
        if self.partial.len() > Self::MAX_LINE {
            self.partial = Vec::new();
            self.too_long = true;
        }
        if self.too_long {
            self.partial.clear();
        }
    }

    fn open(&self) -> io::Result<File> {
        match (self.written_by, self.path.parent(), self.path.file_name().and_then(|name| name.to_str())) {
            (Writer::Job, Some(folder), Some(name)) => job_file::open(folder, name),
            _ => files::open_own(&self.path),
        }
    }
}

/// Warnings that are remembered.
const MAX_WARNINGS: usize = 200;

/// Finds lines in the log of one attempt that say the same as an event.
pub struct Repeated {
    /// Whether the job is our trainer. A command of the user may write what it likes.
    is_trainer: bool,
    /// Whether the trainer has begun to send events.
    has_events: bool,
    /// Lines that came before its first event: stderr may overtake stdout.
    held: Vec<u8>,
    /// Warnings of which the line or the event has come, and the other has not.
    warnings: Vec<String>,
}

impl Repeated {
    pub fn new(is_trainer: bool) -> Self {
        Self { is_trainer, has_events: false, held: Vec::new(), warnings: Vec::new() }
    }

    pub fn begin_attempt(&mut self) {
        *self = Self::new(self.is_trainer);
    }

    /// Whether the line is not printed, because an event says the same.
    pub fn takes(&mut self, line: &[u8]) -> bool {
        let text = std::str::from_utf8(line).unwrap_or_default();
        if let Some(warning) = text.trim().strip_prefix("WARN ").filter(|_| self.is_trainer) {
            return self.is_second(warning.trim());
        }
        let repeats = self.is_trainer && repeats_an_event(text);
        if repeats && !self.has_events {
            self.held.extend_from_slice(line);
        }
        repeats
    }

    /// Takes in an event; returns whether it is not printed, because a line says the same.
    pub fn see(&mut self, event: &EventKind) -> bool {
        match event {
            EventKind::Started(_) => {
                self.has_events = true;
                self.held.clear();
                false
            }
            EventKind::Warning(warning) => self.is_trainer && self.is_second(warning.message.trim()),
            _ => false,
        }
    }

    /// Whether the other of line and event has come before.
    fn is_second(&mut self, warning: &str) -> bool {
        match self.warnings.iter().position(|known| known == warning) {
            Some(at) => {
                self.warnings.remove(at);
                true
            }
            None => {
                // Lines without an event stay, and are few.
                self.warnings.truncate(MAX_WARNINGS);
                self.warnings.push(warning.to_owned());
                false
            }
        }
    }

    /// Lines that were held back, and no event says the same.
    pub fn untold(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.held)
    }
}

/// `INFO step 3/10 loss 1.2500 lr 1.000e-4 grad norm 0.500`, or `INFO step 3 evaluation loss 1.2500`, and nothing else.
fn repeats_an_event(line: &str) -> bool {
    let words: Vec<&str> = line.split_whitespace().collect();
    let is_number = |word: &str| word.parse::<f64>().is_ok();
    let is_step = |word: &str| !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_digit());
    match words[..] {
        ["INFO", "step", step, "loss", loss, "lr", lr, "grad", "norm", norm] => {
            step.split_once('/').is_some_and(|(step, steps)| is_step(step) && is_step(steps))
                && [loss, lr, norm].into_iter().all(is_number)
        }
        ["INFO", "step", step, "evaluation", "loss", loss] => is_step(step) && is_number(loss),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use pipe_spec::event::{Eval, Step, Warning};

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

    #[test]
    fn a_file_in_the_place_of_the_one_that_was_read_is_noticed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("events.jsonl");
        std::fs::write(&path, "one\ntwo\n").unwrap();
        let mut follow = Follow::new(path.clone());
        assert!(!follow.is_of_another_file());
        assert_eq!(follow.lines().unwrap(), ["one", "two"]);
        std::fs::write(&path, "one\ntwo\nthree\n").unwrap();
        assert!(!follow.is_of_another_file(), "a line was added");
        std::fs::write(&path, "one\n").unwrap();
        assert!(follow.is_of_another_file(), "it is shorter");
        let other = folder.path().join("other");
        std::fs::write(&other, "one\ntwo\nthree\n").unwrap();
        std::fs::rename(other, &path).unwrap();
        assert!(follow.is_of_another_file(), "it is another file");
    }

    #[test]
    fn a_hole_that_a_job_made_is_skipped() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("events.jsonl");
        let mut file = File::create(&path).unwrap();
        file.write_all(b"one\nhalf").unwrap();
        file.set_len(4 << 40).unwrap();
        file.seek(SeekFrom::End(0)).unwrap();
        file.write_all(b"two\n").unwrap();
        let mut follow = Follow::of_job(path);
        assert_eq!(follow.lines().unwrap(), ["one"]);
        assert_eq!(follow.lines().unwrap(), ["two"]);
        assert!(follow.lines().unwrap().is_empty());
    }

    #[test]
    fn an_evaluation_that_is_done_over_is_there_once() {
        let folder = tempfile::tempdir().unwrap();
        let folder = RunFolder::new(folder.path());
        let eval = |seq: u64, step: u64| {
            let eval = Eval { step, loss: 1.0, samples: 1, ms: 1.0, headline: None, scores: Default::default() };
            Event { seq, ts: 0.0, kind: EventKind::Eval(eval) }
        };
        let record = |attempt: u32, events: Vec<Event>| {
            let mut log = EventLog::open(&folder).unwrap();
            log.begin_attempt(attempt);
            events.into_iter().filter(|event| log.record(event.clone()).unwrap().is_some()).count()
        };
        // Two of one step in one attempt are two.
        assert_eq!(record(1, vec![step(1, 30), eval(2, 30), eval(3, 30), eval(4, 60)]), 4);
        assert_eq!(record(2, vec![step(1, 30), eval(2, 30), eval(3, 60), eval(4, 90)]), 1);
        assert_eq!(record(2, vec![eval(3, 60), eval(4, 90), eval(5, 120)]), 1);
    }
}

#[cfg(test)]
mod follow_tests {
    use super::*;

    #[test]
    fn lines_come_when_they_are_whole() {
        let path = std::env::temp_dir().join(format!("pipe-follow-{}", std::process::id()));
        let mut follow = Follow::new(path.clone());
        assert!(follow.lines().unwrap().is_empty());
        for (text, want) in [("one\ntw", vec!["one"]), ("one\ntwo\n", vec!["two"]), ("one\ntwo\n", vec![])] {
            std::fs::write(&path, text).unwrap();
            assert_eq!(follow.lines().unwrap(), want);
        }
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn an_endless_line_is_left_out() {
        let path = std::env::temp_dir().join(format!("pipe-follow-endless-{}", std::process::id()));
        let endless = "x".repeat(Follow::MAX_LINE + Follow::MAX_LINE / 2);
        std::fs::write(&path, format!("first\n{endless}\nlast\n")).unwrap();
        let mut follow = Follow::of_job(path.clone());
        let mut lines = Vec::new();
        loop {
            let more = follow.lines().unwrap();
            assert!(follow.partial.len() <= Follow::MAX_LINE);
            if more.is_empty() {
                break;
            }
            lines.extend(more);
        }
        assert_eq!(lines, ["first", "last"]);
        std::fs::remove_file(&path).unwrap();
    }
}

#[cfg(test)]
mod repeated_tests {
    use pipe_spec::event::Warning;

    use super::*;

    #[test]
    fn only_what_an_event_says() {
        for (line, want) in [
            (" INFO step 3/10 loss 1.2500 lr 1.000e-4 grad norm 0.500\n", true),
            (" INFO step 3 evaluation loss 1.2500\n", true),
            (" INFO step 3 evaluation loss NaN", true),
            (" INFO step 3/10 loss 1.2500 lr 1.000e-4 grad norm 0.500 and more", false),
            (" WARN step 3/10 loss 1.2500 lr 1.000e-4 grad norm 0.500", false),
            (" INFO step three/10 loss 1.2500 lr 1.000e-4 grad norm 0.500", false),
            (" INFO stopped early at step 3: eval.loss did not improve", false),
            ("step 3/10: loss 1.2500", false),
            ("", false),
        ] {
            assert_eq!(repeats_an_event(line), want, "{line}");
        }
    }

    #[test]
    fn lines_without_events_stay() {
        let line = b" INFO step 3 evaluation loss 1.2500\n";
        let mut repeated = Repeated::new(true);
        assert!(repeated.takes(line) && !repeated.takes(b"other\n"));
        assert_eq!(repeated.untold(), line);
        assert!(repeated.untold().is_empty());
        assert!(!Repeated::new(false).takes(line));
    }

    #[test]
    fn a_warning_is_told_once_whichever_comes_first() {
        let mut repeated = Repeated::new(true);
        let event = EventKind::Warning(Warning { message: "a row is empty".to_owned() });
        assert!(!repeated.takes(b" WARN a row is empty\n") && repeated.see(&event));
        assert!(!repeated.see(&event) && repeated.takes(b" WARN a row is empty\n"));
        assert!(!repeated.takes(b" WARN another\n") && !repeated.see(&event));
        // A command may write what it likes.
        let mut command = Repeated::new(false);
        assert!(!command.takes(b"WARN x\n") && !command.takes(b"WARN x\n"));
    }
}

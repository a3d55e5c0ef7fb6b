//! The events: one JSON object a line, in the file of the attempt and on stdout.
//!
//! The file is what the runner relies on: no engine rotates it. Stdout shows the same lines in the log.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use pipe_spec::event::Warning;
use pipe_spec::run::JobFolder;
use pipe_spec::{Event, EventKind};

use crate::host::Stop;

/// Bytes of events that may wait for room on a full disk before the training is stopped.
const MAX_UNWRITTEN: usize = 16 << 20;

/// The outside world of a command: its process, or a test.
pub struct Console {
    /// Set when the command should save and end.
    pub stop: Stop,
    /// Where a training writes its events, beside the file of the attempt.
    pub events: Box<dyn Write + Send>,
}

pub struct Events {
    seq: u64,
    stop: Stop,
    file: Option<EventFile>,
    /// Stdout, or what stands for it. Absent for a rank whose events another one writes.
    out: Option<Box<dyn Write + Send>>,
}

impl Events {
    /// On stdout alone.
    pub fn new(console: Console) -> Self {
        Self { seq: 0, stop: console.stop, file: None, out: Some(console.events) }
    }

    /// Nowhere.
    pub fn silent(stop: Stop) -> Self {
        Self { seq: 0, stop, file: None, out: None }
    }

    /// After the first `seq`, which another process has written into the folder of an attempt.
    pub fn after(seq: u64, folder: &JobFolder, console: Console) -> Self {
        if seq == 0 {
            return Self::in_folder(folder, console);
        }
        let file = File::options().append(true).open(folder.events());
        let file = file.inspect_err(|error| tracing::warn!("cannot write {}: {error}", folder.events().display()));
        let file = file.ok().map(|file| EventFile { file, unwritten: Vec::new() });
        Self { seq, file, ..Self::new(console) }
    }

    /// How many there are.
    pub fn count(&self) -> u64 {
        self.seq
    }

    /// In the folder of an attempt too. Where its file cannot be created, events go to stdout alone.
    pub fn in_folder(folder: &JobFolder, console: Console) -> Self {
        let file = EventFile::create(&folder.events());
        let file = file.inspect_err(|error| tracing::warn!("cannot write {}: {error}", folder.events().display()));
        Self { file: file.ok(), ..Self::new(console) }
    }

    /// Writes one line. When neither the file nor stdout takes it, the training stops: a later attempt resumes it.
    pub fn emit(&mut self, kind: EventKind) {
        let Some(out) = &mut self.out else { return };
        self.seq += 1;
        let ts = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
        let event = Event { seq: self.seq, ts, kind };
        let mut line = serde_json::to_vec(&event).expect("an event is plain data");
        line.push(b'\n');
        // The file first: an event that was seen on stdout is in the file.
        if let Some(file) = &mut self.file
            && !file.append(&line)
        {
            self.stop.request();
        }
        if let Err(error) = out.write_all(&line).and_then(|()| out.flush()) {
            tracing::error!("cannot write events: {error}; stopping");
            self.stop.request();
        }
    }

    /// Waits until the disk has the events, so that none before a checkpoint is missing after a crash of the machine.
    pub fn sync(&self) {
        if let Some(file) = &self.file {
            file.file.sync_data().unwrap_or_else(|error| tracing::warn!("cannot sync the events: {error}"));
        }
    }

    pub fn warn(&mut self, message: String) {
        tracing::warn!("{message}");
        self.emit(EventKind::Warning(Warning { message }));
    }
}

struct EventFile {
    file: File,
    /// Bytes that could not be written yet, because the disk is full.
    unwritten: Vec<u8>,
}

impl EventFile {
    fn create(path: &Path) -> io::Result<Self> {
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder)?;
        }
        Ok(Self { file: File::create(path)?, unwritten: Vec::new() })
    }

    /// Appends a line, after those that could not be written before; whether the training may go on.
    fn append(&mut self, line: &[u8]) -> bool {
        self.unwritten.extend_from_slice(line);
        let had_room = self.unwritten.len() == line.len();
        while !self.unwritten.is_empty() {
            match self.file.write(&self.unwritten) {
                Ok(count @ 1..) => drop(self.unwritten.drain(..count)),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Ok(_) => break,
                Err(error) => {
                    if had_room {
                        tracing::warn!("cannot write events: {error}; trying again with the next");
                    }
                    break;
                }
            }
        }
        self.unwritten.len() < MAX_UNWRITTEN
    }
}

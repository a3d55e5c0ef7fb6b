//! All that a run's folder tells of it, as far as it can be read: what is damaged or missing is named, and no error.

use std::fs::File;
use std::io::{BufRead, BufReader, ErrorKind};
use std::path::Path;

use pipe_spec::event::{Eval, RecordedEvent, Sample, Started, Step};
use pipe_spec::{EventKind, RunFolder, RunState};
use serde_json::{Map, Value};

use super::Listed;

#[derive(Clone, Debug, Default)]
pub struct Record {
    /// The folder's name.
    pub id: String,
    pub state: Option<RunState>,
    pub history: History,
    /// `resolved.yaml`.
    pub resolved: Option<String>,
    /// `lock.json`.
    pub lock: Option<String>,
    /// The config.json of the exported model.
    pub config: Option<Map<String, Value>>,
    /// What could not be read, in words.
    pub missing: Vec<String>,
}

/// The events, by kind, without those that a report has no use for.
#[derive(Clone, Debug, Default)]
pub struct History {
    /// With the attempt that it belongs to.
    pub started: Vec<(u32, Started)>,
    pub steps: Vec<Step>,
    pub evals: Vec<Eval>,
    pub samples: Vec<Sample>,
    /// With the attempt that it belongs to.
    pub warnings: Vec<(u32, String)>,
}

impl Record {
    pub fn read(folder: &RunFolder) -> Self {
        let mut record = Self::default();
        let name = std::path::absolute(folder.path()).ok().and_then(|path| path.file_name().map(ToOwned::to_owned));
        record.id = name.unwrap_or_default().to_string_lossy().into_owned();
        if let Some(listed) = Listed::read(folder.path()) {
            record.missing.extend(listed.damage);
            record.state = Some(listed.state);
        }
        record.read_events(&folder.events());
        record.resolved = record.text(&folder.resolved());
        record.lock = record.text(&folder.lock());
        let config = std::fs::read(folder.model().join("config.json")).ok();
        record.config = config.and_then(|bytes| serde_json::from_slice(&bytes).ok());
        record
    }

    fn text(&mut self, path: &Path) -> Option<String> {
        match std::fs::read(path) {
            Ok(bytes) => Some(String::from_utf8_lossy(&bytes).into_owned()),
            Err(error) => {
                self.missing.push(unreadable(path, &error));
                None
            }
        }
    }

    fn read_events(&mut self, path: &Path) {
        let file = match File::open(path) {
            Ok(file) => file,
            Err(error) => return self.missing.push(unreadable(path, &error)),
        };
        let mut damaged = 0u64;
        for line in BufReader::new(file).split(b'\n') {
            let line = match line {
                Ok(line) => line,
                Err(error) => return self.missing.push(unreadable(path, &error)),
            };
            match serde_json::from_slice(&line) {
                Ok(event) => self.history.add(event),
                Err(_) if line.trim_ascii().is_empty() => {}
                Err(_) => damaged += 1,
            }
        }
        match damaged {
            0 => {}
            1 => self.missing.push("events.jsonl: one line cannot be read and was left out".to_owned()),
            _ => self.missing.push(format!("events.jsonl: {damaged} lines cannot be read and were left out")),
        }
    }
}

impl History {
    fn add(&mut self, recorded: RecordedEvent) {
        let attempt = recorded.attempt;
        match recorded.event.kind {
            EventKind::Started(started) => self.started.push((attempt, started)),
            EventKind::Step(step) => self.steps.push(step),
            EventKind::Eval(eval) => self.evals.push(eval),
            EventKind::Sample(sample) => self.samples.push(sample),
            EventKind::Warning(warning) => self.warnings.push((attempt, warning.message)),
            EventKind::Measured(_)
            | EventKind::Fitted(_)
            | EventKind::Rehearsed(_)
            | EventKind::Checkpoint(_)
            | EventKind::Oom(_)
            | EventKind::Finished(_) => {}
        }
    }

    /// Bytes that the device may hold, as the last attempt saw it.
    pub fn capacity(&self) -> Option<u64> {
        self.started.iter().rev().find_map(|(_, started)| started.capacity)
    }
}

fn unreadable(path: &Path, error: &std::io::Error) -> String {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    match error.kind() {
        ErrorKind::NotFound => format!("{name} is missing"),
        _ => format!("{name} cannot be read: {error}"),
    }
}

//! The content of a run folder, as far as it can be read. Damaged and missing files are listed and are no error.

use std::fs::File;
use std::io::{BufRead, BufReader, ErrorKind};
use std::path::Path;

use pipe_spec::evaluation::EvaluationDetails;
use pipe_spec::event::Step;
use pipe_spec::pipeline::LossUnit;
use pipe_spec::text::count;
use pipe_spec::{RunFolder, RunState};
use serde_json::{Map, Value};

use super::history::History;
use super::job_file;
use super::{Listed, result};

/// Bytes of a config.json, which the job has written, that are read at most.
const CONFIG_LIMIT: u64 = 16 << 20;

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
    /// What the evaluation of the model has shown beside its scores.
    pub evaluation: Option<EvaluationDetails>,
    /// What could not be read.
    pub missing: Vec<String>,
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
        // A run of several steps, or a study, trains nothing itself.
        if record.state.as_ref().is_some_and(|state| !state.work().is_single()) {
            record.resolved = record.text(&folder.resolved());
            return record;
        }
        record.read_events(&folder.events());
        let state = record.state.as_ref();
        record.evaluation = state.and_then(|state| result::of_model(folder, state, &record.history));
        record.resolved = record.text(&folder.resolved());
        record.lock = record.text(&folder.lock());
        record.missing.extend(record.history.missing_steps());
        let config = job_file::read(&folder.model(), "config.json", CONFIG_LIMIT).ok();
        record.config = config.and_then(|bytes| serde_json::from_slice(&bytes).ok());
        record
    }

    /// What its speed is counted in.
    pub fn unit(&self) -> LossUnit {
        self.resolved.as_deref().map_or_else(LossUnit::default, LossUnit::of_resolved)
    }

    /// Tokens, or samples, per second of the median step.
    pub fn tokens_per_second(&self) -> Option<f64> {
        let mut rates: Vec<f64> =
            self.history.steps.iter().map(Step::tokens_per_second).filter(|rate| rate.is_finite()).collect();
        rates.sort_by(f64::total_cmp);
        rates.get(rates.len() / 2).copied()
    }

    /// Bytes, of the last attempt that did a step.
    pub fn peak_memory(&self) -> Option<u64> {
        let attempts = self.state.iter().flat_map(|state| state.attempts().iter().rev());
        let recorded = attempts.filter(|attempt| attempt.last_step.is_some()).find_map(|attempt| attempt.peak_memory);
        recorded.or_else(|| self.history.steps.iter().map(|step| step.peak).max())
    }

    /// Seconds from the start of the run to the end of its last attempt.
    pub fn seconds(&self) -> Option<f64> {
        let state = self.state.as_ref()?;
        if !state.stages().is_empty() {
            let ends = state.stages().iter().filter_map(|step| Some(step.began? + step.seconds?));
            let last = ends.filter(|end| *end >= state.created).fold(state.created, f64::max);
            return Some(last - state.created);
        }
        let last = state.attempts().last()?;
        if last.began > 0.0 {
            return Some((last.began + last.seconds - state.created).max(0.0));
        }
        Some(state.attempts().iter().map(|attempt| attempt.seconds).sum())
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
        if damaged > 0 {
            self.missing.push(format!("events.jsonl: skipped {} that cannot be read", count(damaged, "line")));
        }
    }
}

/// What the speed of the run in this folder is counted in.
pub fn unit(folder: &RunFolder) -> LossUnit {
    LossUnit::of_resolved(&std::fs::read_to_string(folder.resolved()).unwrap_or_default())
}

fn unreadable(path: &Path, error: &std::io::Error) -> String {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    match error.kind() {
        ErrorKind::NotFound => format!("{name} is missing"),
        _ => format!("{name} cannot be read: {error}"),
    }
}

//! The content of a run folder, as far as it can be read. Damaged and missing files are listed and are no error.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader, ErrorKind, Read};
use std::path::Path;

use pipe_spec::evaluation::EvaluationDetails;
use pipe_spec::event::Step;
use pipe_spec::pipeline::LossUnit;
use pipe_spec::run::{Answer, StageState};
use pipe_spec::text::count;
use pipe_spec::{RunFolder, RunState, Status};
use serde::Deserialize;
use serde_json::{Map, Value};

use super::history::History;
use super::{Listed, Notes, job_file, result};
use crate::system::files;

/// Bytes of a config.json, which the job has written, that are read at most.
const CONFIG_LIMIT: u64 = 16 << 20;

#[derive(Clone, Debug, Default)]
pub struct Record {
    /// The folder's name.
    pub id: String,
    pub state: Option<RunState>,
    pub notes: Notes,
    pub history: History,
    /// `resolved.yaml`.
    pub resolved: Option<String>,
    /// `lock.json`.
    pub lock: Option<String>,
    /// The config.json of the exported model.
    pub config: Option<Map<String, Value>>,
    /// The details of the model's evaluation beside its scores.
    pub evaluation: Option<EvaluationDetails>,
    /// The results of the stages, by their names.
    pub stage_answers: BTreeMap<String, Answer>,
    /// Files and events that could not be read, each with the reason.
    pub missing: Vec<String>,
}

impl Record {
    pub fn read(folder: &RunFolder) -> Self {
        Self::read_with(folder, |record| record.read_events(&folder.events()))
    }

    /// The same with events that were read before, and what could not be read of them.
    pub fn with_history(folder: &RunFolder, history: History, missing: Vec<String>) -> Self {
        Self::read_with(folder, |record| {
            record.history = history;
            record.missing.extend(missing);
        })
    }

    fn read_with(folder: &RunFolder, read_events: impl FnOnce(&mut Self)) -> Self {
        let mut record = Self::default();
        let name = std::path::absolute(folder.path()).ok().and_then(|path| path.file_name().map(ToOwned::to_owned));
        record.id = name.unwrap_or_default().to_string_lossy().into_owned();
        if let Some(listed) = Listed::read(folder.path()) {
            record.missing.extend(listed.damage);
            (record.state, record.notes) = (Some(listed.state), listed.notes);
        }
        // A run of several stages, or a study, trains nothing itself.
        if record.state.as_ref().is_some_and(|state| !state.work().is_single()) {
            record.resolved = record.text(&folder.resolved());
            record.stage_answers =
                record.state.as_ref().map(|state| stage_answers(folder.path(), state)).unwrap_or_default();
            return record;
        }
        read_events(&mut record);
        let state = record.state.as_ref();
        record.evaluation = state.and_then(|state| result::of_model(folder, state, &record.history));
        record.resolved = record.text(&folder.resolved());
        record.lock = record.text(&folder.lock());
        record.missing.extend(record.history.missing_steps());
        let config = job_file::read(&folder.model(), "config.json", CONFIG_LIMIT).ok();
        record.config = config.and_then(|bytes| serde_json::from_slice(&bytes).ok());
        record
    }

    /// How good its model is. A run of an older version has it in its events alone.
    pub fn answer(&self) -> Option<Answer> {
        let known = self.state.as_ref().and_then(RunState::result).cloned().unwrap_or_default();
        known.answer.clone().or_else(|| result::result(&self.history, &known).answer)
    }

    /// The unit of its speed.
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
        let recorded = attempts
            .filter(|attempt| attempt.figures.last_step.is_some())
            .find_map(|attempt| attempt.figures.peak_memory);
        recorded.or_else(|| self.history.steps.iter().map(|step| step.peak).max())
    }

    /// Seconds from the start of the run to the end of its last attempt.
    pub fn seconds(&self) -> Option<f64> {
        let state = self.state.as_ref()?;
        if !state.stages().is_empty() {
            let ends = state.stages().iter().filter_map(|stage| Some(stage.began? + stage.seconds?));
            let last = ends.filter(|end| *end >= state.created).fold(state.created, f64::max);
            return Some(last - state.created);
        }
        let last = state.attempts().last()?;
        if last.began > 0.0 {
            return Some((last.began + last.figures.seconds - state.created).max(0.0));
        }
        Some(state.attempts().iter().map(|attempt| attempt.figures.seconds).sum())
    }

    fn text(&mut self, path: &Path) -> Option<String> {
        match files::read_own(path) {
            Ok(bytes) => Some(String::from_utf8_lossy(&bytes).into_owned()),
            Err(error) => {
                self.missing.push(unreadable(path, &error));
                None
            }
        }
    }

    fn read_events(&mut self, path: &Path) {
        let file = match files::open_own(path) {
            Ok(file) => file,
            Err(error) => return self.missing.push(unreadable(path, &error)),
        };
        let mut damaged = 0u64;
        let read = for_each_line(file, |line| match serde_json::from_slice(line) {
            Ok(event) => self.history.add(event),
            Err(_) if line.trim_ascii().is_empty() => {}
            Err(_) => damaged += 1,
        });
        self.history.complete();
        if let Err(error) = read {
            return self.missing.push(unreadable(path, &error));
        }
        if damaged > 0 {
            self.missing.push(format!("events.jsonl: skipped {} that cannot be read", count(damaged, "line")));
        }
    }
}

/// The results of the stages of the run in `folder`, by their names.
pub fn stage_answers(folder: &Path, state: &RunState) -> BTreeMap<String, Answer> {
    let answer = |stage: &StageState| {
        let stage_run = Listed::read(&folder.with_file_name(stage.run.as_ref()?))?;
        let known = stage_run.state.result().and_then(|result| result.answer.clone());
        Some((stage.name.clone(), known.or_else(|| Record::read(&stage_run.folder()).answer())?))
    };
    state.stages().iter().filter_map(answer).collect()
}

impl Listed {
    /// Reads what a run that has not ended has achieved so far.
    pub fn read_result(&mut self) {
        let running = matches!(self.state.status, Status::Running | Status::Orphaned);
        let folder = self.folder();
        let result = self.state.single_mut().map(|single| &mut single.result);
        if let Some(Some(known)) = result.filter(|_| running) {
            *known = result::result(&Record::read(&folder).history, known);
        }
    }
}

/// Bytes of a line of events. What is longer comes in pieces, none of which is an event.
const LINE: u64 = 16 << 20;

fn for_each_line(file: File, mut take: impl FnMut(&[u8])) -> std::io::Result<()> {
    let mut reader = BufReader::with_capacity(1 << 16, file);
    let mut line = Vec::new();
    while reader.by_ref().take(LINE).read_until(b'\n', &mut line)? > 0 {
        take(&line);
        line.clear();
    }
    Ok(())
}

/// The fields of an event that a comparison reads: the rest of a line is passed over.
#[derive(Deserialize)]
struct StepLoss {
    #[serde(rename = "type")]
    kind: String,
    step: u64,
    loss: f64,
}

/// The losses of a run, step by step, as they stand in its file: as many as there are.
pub fn losses(folder: &RunFolder) -> impl Iterator<Item = (u64, f64)> {
    let lines = files::open_own(&folder.events()).ok().map(|file| BufReader::with_capacity(1 << 16, file).split(b'\n'));
    let events = lines.into_iter().flatten().map_while(Result::ok);
    let steps = events.filter_map(|line| serde_json::from_slice::<StepLoss>(&line).ok());
    let steps = steps.filter(|line| line.kind == "step").map(|line| (line.step, line.loss));
    // No step is recorded twice; one that stands twice in a damaged file is left out.
    let mut next = 0;
    steps.filter(move |(step, _)| {
        let is_next = *step >= next;
        next = next.max(step.saturating_add(1));
        is_next
    })
}

/// The unit of the speed of the run in this folder.
pub fn unit(folder: &RunFolder) -> LossUnit {
    LossUnit::of_resolved(&files::read_own_text(&folder.resolved()).unwrap_or_default())
}

fn unreadable(path: &Path, error: &std::io::Error) -> String {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    match error.kind() {
        ErrorKind::NotFound => format!("{name} is missing"),
        _ => format!("{name} cannot be read: {error}"),
    }
}

//! A run as an offline run of Weights & Biases: `wandb sync` uploads the folder that is written here. Nothing is sent from
//! here, whether or not there is an API key.
//!
//! Everything in the file follows from the pipeline, `run.json` and `events.jsonl`. So a `pipe` that resumes a run or takes it
//! over rewrites the file under a temporary name and then appends to it: no step is missing, and none is there twice.
//!
//! The summary of a run: last values, the best evaluation, how it went.
//!
//! Which W&B run a run is. The id depends on the run's own id alone, so that a run that is resumed or taken over stays the
//! same W&B run.

mod log;

use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};

use log::{Log, RecordKind};
use pipe_spec::event::{Eval, RecordedEvent};
use pipe_spec::{EventKind, Pipeline, RunFolder, RunState, Status, Variables};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::tensorboard::Message;
use super::{Listener, Notice, retry, scalars, settings};
use crate::system::clock::{iso, now};
use crate::system::files::{self, write_json};

const KEY: &str = "track.wandb";

/// The file that says where the run ran.
const METADATA: &str = "wandb-metadata.json";

pub struct Wandb {
    folder: RunFolder,
    project: String,
    /// From W&B's own variables.
    labels: Option<Labels>,
    /// The settings, and under `pipe` what the run is.
    config: Map<String, Value>,
    /// Once the run has started.
    open: Option<Open>,
}

/// The file, and what is to be written to it next.
struct Open {
    identity: Identity,
    log: Log,
    /// Records so far.
    count: u64,
    /// The last step. It is written when the next one comes: until then an evaluation may add to it, and W&B takes a step once.
    row: Option<Row>,
    summary: Summary,
}

struct Row {
    attempt: u32,
    step: u64,
    /// Seconds since the Unix epoch.
    at: f64,
    values: Vec<(String, f64)>,
}

impl Wandb {
    /// An error says why it cannot be used.
    pub fn new(pipeline: &Pipeline, folder: &RunFolder, variables: &Variables) -> Result<Self, String> {
        let written = pipeline.track.wandb.as_deref().unwrap_or_default();
        let project = variables.expand(written).map_err(|name| format!("{KEY}: {}", variables.reason(&name)))?;
        Ok(Self {
            folder: folder.clone(),
            project,
            labels: Some(Labels::read(variables)),
            config: settings(pipeline),
            open: None,
        })
    }

    fn take_in(&mut self, notice: &Notice<'_>) -> io::Result<()> {
        match notice {
            Notice::RunStarted(state) => self.begin(state)?,
            Notice::Event(recorded) => self.event(recorded)?,
            Notice::AttemptEnded(state) | Notice::Retried(state) => {
                self.describe(state)?;
                self.open.as_mut().map_or(Ok(()), Open::write_summary)?;
            }
            Notice::RunEnded(state) => self.end(state)?,
        }
        self.open.as_mut().map_or(Ok(()), |open| open.log.flush())
    }

    /// Writes the file up to where the run stands.
    fn begin(&mut self, state: &RunState) -> io::Result<()> {
        let labels_file = self.folder.path().join("wandb/labels.json");
        let kept: Labels =
            files::read_own(&labels_file).ok().and_then(|text| serde_json::from_slice(&text).ok()).unwrap_or_default();
        let labels = self.labels.take().unwrap_or_default().or(kept);
        let identity = Identity::new(state, self.project.clone(), labels);
        let folder = identity.folder(self.folder.path());
        std::fs::create_dir_all(folder.join("files"))?;
        write(&labels_file, &identity.labels)?;
        write(&folder.join("files").join(METADATA), &metadata(&identity))?;

        let name = format!("run-{}.wandb", identity.id);
        let log = Log::create(&folder.join(&name))?;
        let mut open = Open { identity, log, count: 0, row: None, summary: Summary::default() };
        self.config.insert("pipe".to_owned(), about(state));
        open.write(RecordKind::Header, &log::header())?;
        open.write(RecordKind::Run, &log::run(&open.identity, &self.config))?;
        // A record for the machine would be newer than some versions of `wandb sync` that are in use.
        open.write(RecordKind::Files, &log::file(METADATA))?;
        self.open = Some(open);
        if !state.attempts().is_empty() {
            self.write_recorded_events()?;
        }
        self.describe(state)?;
        // The upload of before is no longer complete.
        std::fs::remove_file(folder.join(format!("{name}.synced"))).ok();
        self.open.as_mut().map_or(Ok(()), |open| open.log.publish())
    }

    /// Writes the values of every recorded event.
    fn write_recorded_events(&mut self) -> io::Result<()> {
        let Ok(file) = files::open_own(&self.folder.events()) else { return Ok(()) };
        for line in BufReader::new(file).split(b'\n') {
            if let Ok(recorded) = serde_json::from_slice(&line?) {
                self.event(&recorded)?;
            }
        }
        Ok(())
    }

    fn event(&mut self, recorded: &RecordedEvent) -> io::Result<()> {
        if let EventKind::Started(started) = &recorded.event.kind {
            let device = json!({ "device": started.device, "driver": started.driver, "libtorch": started.libtorch,
                                 "params": started.params });
            merge(&mut self.config, device);
            return self.write_config();
        }
        let Some(open) = &mut self.open else { return Ok(()) };
        if let EventKind::Eval(eval) = &recorded.event.kind {
            open.summary.evaluated(eval);
        }
        match scalars(&recorded.event.kind) {
            Some((step, values)) => open.add(Row { attempt: recorded.attempt, step, at: recorded.event.ts, values }),
            None => Ok(()),
        }
    }

    /// Writes the state of the run to config and summary.
    fn describe(&mut self, state: &RunState) -> io::Result<()> {
        merge(&mut self.config, about(state));
        if let Some(open) = &mut self.open {
            open.summary.describe(state);
        }
        self.write_config()
    }

    fn write_config(&mut self) -> io::Result<()> {
        let Some(open) = &mut self.open else { return Ok(()) };
        let changed: Map<String, Value> = self
            .config
            .iter()
            .filter(|(key, _)| *key == "pipe")
            .map(|(key, value)| (key.clone(), value.clone()))
            .collect();
        open.write(RecordKind::Config, &log::updates(&changed))?;
        // As W&B writes it: each key with its value under `value`. JSON is YAML.
        let file: Map<String, Value> =
            self.config.iter().map(|(key, value)| (key.clone(), json!({ "value": value }))).collect();
        write(&open.file("config.yaml", self.folder.path()), &file)
    }

    fn end(&mut self, state: &RunState) -> io::Result<()> {
        self.describe(state)?;
        let Some(open) = &mut self.open else { return Ok(()) };
        open.write_row()?;
        open.write_summary()?;
        let code = u64::from(state.status != Status::Finished);
        let seconds = (now() - state.created).max(0.0);
        open.write(RecordKind::Exit, &log::exit(code, seconds))?;
        write(&open.file("wandb-summary.json", self.folder.path()), &open.summary.values())
    }
}

impl Open {
    fn write(&mut self, kind: RecordKind, content: &Message) -> io::Result<()> {
        self.count += 1;
        self.log.append(log::record(self.count, kind, content).encoded())
    }

    /// A file of the folder `files`.
    fn file(&self, name: &str, run: &Path) -> PathBuf {
        self.identity.folder(run).join("files").join(name)
    }

    /// Adds values to their step. Those of a step that was written before are what an attempt that starts again from a
    /// checkpoint computes again.
    fn add(&mut self, row: Row) -> io::Result<()> {
        match &mut self.row {
            Some(last) if row.step < last.step => Ok(()),
            Some(last) if row.step == last.step => {
                last.values.retain(|(key, _)| row.values.iter().all(|(new, _)| new != key));
                last.values.extend(row.values);
                last.at = row.at;
                Ok(())
            }
            _ => {
                self.write_row()?;
                self.row = Some(row);
                Ok(())
            }
        }
    }

    /// The row stays the last one: later values of its step are too late.
    fn write_row(&mut self) -> io::Result<()> {
        let Some(row) = &self.row else { return Ok(()) };
        let (step, at) = (row.step, row.at);
        let own = [
            ("pipe/attempt", json!(row.attempt)),
            ("_step", json!(step)),
            ("_timestamp", json!(at)),
            ("_runtime", json!((at - self.identity.created).max(0.0))),
        ];
        let own = own.into_iter().map(|(key, value)| (key.to_owned(), value));
        let values: Map<String, Value> =
            row.values.iter().map(|(key, value)| (key.clone(), json!(value))).chain(own).collect();
        let is_evaluated = values.keys().any(|key| key.starts_with("eval/"));
        self.write(RecordKind::History, &log::history(step, &values))?;
        if self.summary.step(at, values) || is_evaluated { self.write_summary() } else { Ok(()) }
    }

    fn write_summary(&mut self) -> io::Result<()> {
        let values = self.summary.values();
        self.write(RecordKind::Summary, &log::updates(&values))
    }
}

impl Listener for Wandb {
    fn receive(&mut self, notice: &Notice<'_>) -> Result<(), String> {
        self.take_in(notice).map_err(|error| format!("{KEY}: cannot write: {error}"))
    }
}

/// The facts about the run for its config.
fn about(state: &RunState) -> Value {
    json!({
        "run": state.id,
        "engine": state.engine,
        "version": env!("CARGO_PKG_VERSION"),
        "retry": retries(state),
    })
}

/// Adds to what the config says under `pipe`.
fn merge(config: &mut Map<String, Value>, more: Value) {
    if let (Value::Object(pipe), Value::Object(more)) = (config.entry("pipe").or_insert_with(|| json!({})), more) {
        pipe.extend(more);
    }
}

fn metadata(identity: &Identity) -> Value {
    json!({ "os": identity.os, "host": identity.host, "program": "pipe", "startedAt": identity.started_at() })
}

fn write(path: &Path, value: &impl serde::Serialize) -> io::Result<()> {
    write_json(path, value).map_err(|error| io::Error::other(error.to_string()))
}

/// Seconds of training between two summaries in the file. One that is killed has a summary that is no older.
const SUMMARY_INTERVAL: f64 = 15.0;

#[derive(Default)]
pub struct Summary {
    last: Map<String, Value>,
    /// The evaluation with the lowest loss.
    best: Option<Eval>,
    pipe: Value,
    /// When it was last last_written, in seconds since the Unix epoch.
    last_written: f64,
}

impl Summary {
    /// Takes in the values of a step; returns whether a summary is due.
    pub fn step(&mut self, at: f64, values: Map<String, Value>) -> bool {
        self.last.extend(values);
        let is_due = at >= self.last_written + SUMMARY_INTERVAL;
        if is_due {
            self.last_written = at;
        }
        is_due
    }

    pub fn evaluated(&mut self, eval: &Eval) {
        if eval.loss.is_finite() && self.best.as_ref().is_none_or(|best| eval.loss < best.loss) {
            self.best = Some(eval.clone());
        }
    }

    pub fn describe(&mut self, state: &RunState) {
        let retries = retries(state);
        let peak = state.attempts().iter().filter_map(|attempt| attempt.figures.peak_memory).max();
        self.pipe = json!({
            "status": state.status.name(),
            "attempts": state.attempts().len(),
            "retries": retries.len(),
            "retry": retries,
            "peak_memory_bytes": peak,
            "error": state.error,
        });
    }

    pub fn values(&self) -> Map<String, Value> {
        let mut values = self.last.clone();
        if let Some(best) = &self.best {
            values.insert("best/step".to_owned(), json!(best.step));
            values.insert("best/eval/loss".to_owned(), json!(best.loss));
            values.extend(best.scores.iter().map(|(name, score)| (format!("best/eval/{name}"), json!(score))));
        }
        values.insert("pipe".to_owned(), self.pipe.clone());
        values
    }
}

/// The change after each attempt that another followed, and its reason, by the number of the attempt.
pub fn retries(state: &RunState) -> Map<String, Value> {
    let retries =
        state.attempts().iter().filter_map(|attempt| Some((attempt.number.to_string(), retry(attempt)?.into())));
    retries.collect()
}

/// Characters of an id. W&B's own have as many.
const ID_LENGTH: usize = 8;

pub struct Identity {
    pub id: String,
    pub project: String,
    /// The name that W&B shows: the run's own id.
    pub name: String,
    /// Seconds since the Unix epoch.
    pub created: f64,
    pub host: String,
    pub os: String,
    pub labels: Labels,
}

impl Identity {
    pub fn new(state: &RunState, project: String, labels: Labels) -> Self {
        let kernel = |name: &str| {
            let text = std::fs::read_to_string(format!("/proc/sys/kernel/{name}")).unwrap_or_default();
            text.trim().to_owned()
        };
        Self {
            id: id(&state.id),
            project,
            name: state.id.clone(),
            created: state.created,
            host: kernel("hostname"),
            os: format!("Linux-{}", kernel("osrelease")),
            labels,
        }
    }

    pub fn started_at(&self) -> String {
        iso(self.created)
    }

    /// The folder that `wandb sync` takes, in the folder of the run.
    pub fn folder(&self, run: &Path) -> PathBuf {
        let when = self.started_at().replace(['-', ':', 'Z'], "").replace('T', "_");
        run.join("wandb").join(format!("offline-run-{when}-{}", self.id))
    }
}

/// The settings of a run in W&B's own variables. They are kept, so that a `pipe` in another shell that takes the run over does not
/// change them.
#[derive(Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Labels {
    pub entity: String,
    pub group: String,
    pub tags: Vec<String>,
    pub notes: String,
}

impl Labels {
    pub fn read(variables: &Variables) -> Self {
        let get = |name: &str| variables.get(name).unwrap_or_default().to_owned();
        let tags = get("WANDB_TAGS");
        let tags = tags.split(',').map(str::trim).filter(|tag| !tag.is_empty());
        Self {
            entity: get("WANDB_ENTITY"),
            group: get("WANDB_RUN_GROUP"),
            tags: tags.map(str::to_owned).collect(),
            notes: get("WANDB_NOTES"),
        }
    }

    /// With what `kept` says where these say nothing.
    pub fn or(self, kept: Self) -> Self {
        let or = |own: String, kept: String| if own.is_empty() { kept } else { own };
        Self {
            entity: or(self.entity, kept.entity),
            group: or(self.group, kept.group),
            tags: if self.tags.is_empty() { kept.tags } else { self.tags },
            notes: or(self.notes, kept.notes),
        }
    }
}

/// Small letters and digits, as W&B's own ids.
fn id(run: &str) -> String {
    const LETTERS: &[u8; 36] = b"abcdefghijklmnopqrstuvwxyz0123456789";
    let hash = blake3::hash(run.as_bytes());
    hash.as_bytes()[..ID_LENGTH].iter().map(|byte| char::from(LETTERS[usize::from(*byte) % LETTERS.len()])).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_come_from_the_variables_and_then_from_what_was_kept() {
        let pairs = [("WANDB_TAGS", " a, b,,"), ("WANDB_ENTITY", "me"), ("WANDB_API_KEY", "s3cret")];
        let pairs = pairs.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let kept = Labels { entity: "other".to_owned(), notes: "kept".to_owned(), ..Labels::default() };
        let labels = Labels::read(&Variables::new(None, pairs.into_iter())).or(kept);
        let text = serde_json::to_string(&labels).unwrap();
        assert_eq!(text, r#"{"entity":"me","group":"","tags":["a","b"],"notes":"kept"}"#);
    }

    #[test]
    fn ids_are_stable_and_differ() {
        assert_eq!(id("job-20261115-014500-abcd"), id("job-20261115-014500-abcd"));
        assert_ne!(id("job-20261115-014500-abcd"), id("job-20261115-014500-abce"));
        assert!(id("x").len() == ID_LENGTH && id("x").chars().all(|c| c.is_ascii_alphanumeric()));
    }
}

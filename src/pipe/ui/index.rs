//! All runs, each as a row: read once, and again when it has changed.

use std::collections::{BTreeMap, HashMap};
use std::io::{BufRead, BufReader, Read};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use pipe_spec::event::{RecordedEvent, Started};
use pipe_spec::pipeline::WorkKind;
use pipe_spec::run::{RunResult, StageStatus};
use pipe_spec::{EventKind, RunFolder, RunState, Status};

use super::folders::{Changes, Folders, RunsFolder, What, key_of};
use super::opened::Progress;
use crate::report::bounded;
use crate::run::{Listed, Notes, result};
use crate::system::files;

/// Folders that are listed, at most.
const MAX_RUNS: usize = 100_000;
/// Bytes of a run.json that is read.
const MAX_STATE: u64 = 16 << 20;
/// Bytes at the beginning of the events of a run that say what it runs on.
const HEAD: u64 = 16 << 10;
/// Characters of texts of a row.
const TEXT: usize = 240;

/// A run in the list.
#[derive(Clone, Debug)]
pub struct Row {
    /// The name of its folder, in another folder than `PIPE_RUNS` after the label of that.
    pub key: String,
    pub path: PathBuf,
    /// Whether commands find it by the name of its folder.
    pub is_own: bool,
    /// Where it is in a bucket, where the folder is a copy from there.
    pub bucket: Option<String>,
    pub name: String,
    pub status: Status,
    pub created: f64,
    pub engine: String,
    pub work: WorkKind,
    pub part_of: Option<String>,
    pub attempts: usize,
    pub progress: Figures,
    /// The last lines of text: what it does, why it failed, what is damaged.
    pub remark: String,
    pub notes: Notes,
}

impl Row {
    /// The name that commands find it by.
    pub fn id(&self) -> &str {
        self.key.rsplit('/').next().unwrap_or_default()
    }

    /// The folder of runs that it is in.
    pub fn runs(&self) -> &Path {
        self.path.parent().unwrap_or(&self.path)
    }
}

/// The figures of a run in the list.
#[derive(Clone, Debug, Default)]
pub struct Figures {
    pub step: Option<u64>,
    pub steps: Option<u64>,
    pub metric: Option<(String, f64)>,
    pub best: Option<f64>,
    /// Bytes.
    pub peak: Option<u64>,
    pub capacity: Option<u64>,
    pub device: Option<String>,
    pub seconds: f64,
    pub left: Option<f64>,
}

pub struct Index {
    folders: Arc<Folders>,
    rows: BTreeMap<String, Arc<Row>>,
    /// The newest first.
    sorted: Option<Arc<[Arc<Row>]>>,
    /// The progress of the runs that run.
    live: HashMap<String, Progress>,
}

impl Index {
    pub fn new(folders: Arc<Folders>) -> Self {
        Self { folders, rows: BTreeMap::new(), sorted: None, live: HashMap::new() }
    }

    /// All rows, the newest first.
    pub fn rows(&mut self) -> Arc<[Arc<Row>]> {
        let rows = &self.rows;
        let sort = || {
            let mut sorted: Vec<Arc<Row>> = rows.values().cloned().collect();
            sorted.sort_by(|a, b| b.created.total_cmp(&a.created).then_with(|| a.key.cmp(&b.key)));
            sorted.into()
        };
        self.sorted.get_or_insert_with(sort).clone()
    }

    pub fn row(&self, key: &str) -> Option<Arc<Row>> {
        self.rows.get(key).cloned()
    }

    /// Reads what has changed, and returns it.
    pub fn update(&mut self, changes: &Changes) -> BTreeMap<String, What> {
        let mut dirty = changes.take();
        if dirty.all || !changes.sees_all() {
            let names = self.names();
            let gone = self.rows.keys().filter(|known| names.binary_search(known).is_err()).cloned();
            // Running ones are read again where their changes are not seen.
            let may_change =
                |name: &&String| dirty.all || self.rows.get(*name).is_none_or(|row| row.status == Status::Running);
            let again: Vec<String> = gone.chain(names.iter().filter(may_change).cloned()).collect();
            dirty.runs.extend(again.into_iter().map(|name| (name, What::Run)));
        }
        for name in dirty.runs.iter().filter(|(_, what)| **what == What::Run).map(|(name, _)| name) {
            changes.watch_run(name);
            match self.read(name) {
                Some(row) => self.rows.insert(name.clone(), Arc::new(row)),
                None => self.rows.remove(name),
            };
            self.sorted = None;
        }
        dirty.runs
    }

    /// The keys of all folders that may be runs.
    fn names(&self) -> Vec<String> {
        let names_in = |RunsFolder { label, path, .. }: &RunsFolder| {
            let entries = std::fs::read_dir(path).into_iter().flatten().flatten();
            let names = entries.filter(|entry| entry.path().is_dir()).map(|entry| entry.file_name());
            let names = names.filter_map(|name| name.into_string().ok()).filter(|name| !name.starts_with('.'));
            names.map(|name| key_of(label, &name)).collect::<Vec<_>>()
        };
        let mut names: Vec<String> = self.folders.iter().flat_map(names_in).take(MAX_RUNS).collect();
        names.sort();
        names
    }

    /// One run; whatever is in its folder harms no other.
    fn read(&mut self, key: &str) -> Option<Row> {
        let path = self.folders.path(key)?;
        let folder = RunFolder::new(&path);
        let size = std::fs::metadata(folder.state()).map_or(0, |found| found.len());
        if size > MAX_STATE {
            return Some(unreadable(key, path, "run.json is larger than any that pipe writes"));
        }
        let mut progress = self.live.remove(key);
        let row = catch_unwind(AssertUnwindSafe(|| {
            let listed = Listed::read(&path)?;
            if matches!(listed.state.status, Status::Running | Status::Orphaned) && listed.state.work().is_single() {
                progress.get_or_insert_with(|| Progress::new(&folder)).update();
            } else {
                progress = None;
            }
            let bucket = self.folders.address(key).map(|address| address.to_string());
            Some(Row { bucket, ..row(key, path.clone(), &listed, progress.as_ref()) })
        }));
        self.live.extend(progress.map(|progress| (key.to_owned(), progress)));
        row.unwrap_or_else(|_| Some(unreadable(key, path.clone(), "this folder cannot be read")))
    }
}

fn unreadable(key: &str, path: PathBuf, why: &str) -> Row {
    Row {
        key: key.to_owned(),
        path,
        is_own: false,
        bucket: None,
        name: bounded(key, TEXT),
        status: Status::Unknown,
        created: 0.0,
        engine: String::new(),
        work: WorkKind::Training,
        part_of: None,
        attempts: 0,
        progress: Figures::default(),
        remark: why.to_owned(),
        notes: Notes::default(),
    }
}

fn row(key: &str, path: PathBuf, listed: &Listed, live: Option<&Progress>) -> Row {
    let state = &listed.state;
    let known = state.result().cloned().unwrap_or_default();
    let found = live.map_or(known.clone(), |live| result::result(&live.history, &known));
    let of_attempts = || state.attempts().iter().rev();
    let started = match live {
        Some(live) => live.started.clone(),
        None if state.work().is_single() => first_started(&path),
        None => None,
    };
    let last =
        live.and_then(Progress::last_step).or_else(|| of_attempts().find_map(|attempt| attempt.figures.last_step));
    let peak = live.map(|live| live.peak).filter(|peak| *peak > 0);
    let steps = state.steps().or_else(|| started.as_ref().map(|started| started.steps)).filter(|steps| *steps > 0);
    let progress = Figures {
        step: last,
        steps,
        metric: metric(state, &found),
        best: best(&found),
        peak: peak.or_else(|| of_attempts().find_map(|attempt| attempt.figures.peak_memory)),
        capacity: started.as_ref().and_then(|started| started.memory.capacity),
        device: started.map(|started| bounded(&started.device, TEXT)),
        seconds: seconds(state),
        left: live.filter(|_| state.status == Status::Running).and_then(|live| live.left(steps?)),
    };
    Row {
        key: key.to_owned(),
        is_own: key.rsplit('/').next() == Some(state.id.as_str()),
        bucket: None,
        path,
        name: bounded(&state.name, TEXT),
        status: state.status,
        created: state.created,
        engine: bounded(&state.engine, TEXT),
        work: state.work(),
        part_of: state.part_of.clone(),
        attempts: state.attempts().len(),
        progress,
        remark: bounded(&remark(listed), TEXT),
        notes: listed.notes.clone(),
    }
}

/// The first `started` event of a run.
fn first_started(path: &Path) -> Option<Started> {
    let file = files::open_own(&RunFolder::new(path).events()).ok()?;
    let lines = BufReader::new(file.take(HEAD)).split(b'\n').map_while(Result::ok);
    let mut events = lines.filter_map(|line| serde_json::from_slice::<RecordedEvent>(&line).ok());
    let started = |recorded: RecordedEvent| match recorded.event.kind {
        EventKind::Started(started) => Some(started),
        _ => None,
    };
    events.find_map(started)
}

/// The metric that runs are compared by; of a run without a result its training loss.
fn metric(state: &RunState, found: &RunResult) -> Option<(String, f64)> {
    let result = || Some((found.metric.clone()?, found.value.filter(|value| value.is_finite())?));
    let last_loss = || state.attempts().iter().rev().find_map(|attempt| attempt.figures.last_loss);
    if let Some(study) = state.study() {
        return study.best.map(|(_, value)| ("best trial".to_owned(), value));
    }
    result().or_else(|| last_loss().map(|loss| ("loss".to_owned(), loss)))
}

fn best(found: &RunResult) -> Option<f64> {
    found.best.as_ref()?.metrics.get(found.metric.as_ref()?).copied()
}

fn seconds(state: &RunState) -> f64 {
    match state.work() {
        WorkKind::Training | WorkKind::Command => state.attempts().iter().map(|attempt| attempt.figures.seconds).sum(),
        WorkKind::Study => state.study().map_or(0.0, |study| study.seconds),
        WorkKind::Stages => {
            let ran = state.stages().iter().filter(|stage| stage.status != StageStatus::Unchanged);
            ran.filter_map(|stage| stage.seconds).sum()
        }
    }
}

/// A line about a run: its activity, its error, or how far its parts are.
fn remark(listed: &Listed) -> String {
    let state = &listed.state;
    if let Some(damage) = listed.damage.first() {
        return damage.clone();
    }
    if state.status == Status::Running
        && let Some(doing) = &state.doing
    {
        return doing.clone();
    }
    if let Some(error) = &state.error {
        return error.lines().next().unwrap_or_default().to_owned();
    }
    if let Some(study) = state.study() {
        let of = study.budget.map_or(String::new(), |budget| format!(" of {budget}"));
        return format!("{}{of} trials", study.trials.run());
    }
    if !state.stages().is_empty() {
        let done = state.stages().iter().filter(|stage| stage.status.is_done()).count();
        return format!("{done} of {} steps done", state.stages().len());
    }
    String::new()
}

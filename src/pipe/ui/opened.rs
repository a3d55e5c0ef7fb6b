//! Runs whose pages are open: their events are read once, and then as they are added, in little memory.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::SystemTime;

use pipe_spec::event::{RecordedEvent, Started, Step};
use pipe_spec::text::count;
use pipe_spec::{EventKind, RunFolder};

use crate::report::Pace;
use crate::run::history::History;
use crate::run::{Follow, Listed, Record};

/// Runs that are kept, at most.
const MAX: usize = 4;

/// The runs that were shown last, the newest first.
#[derive(Default)]
pub struct OpenedRuns(Mutex<Vec<(PathBuf, Arc<Mutex<OpenedRun>>)>>);

impl OpenedRuns {
    /// Calls `show` with what is known of the run in this folder.
    pub fn with<T>(&self, folder: &Path, show: impl FnOnce(&Record) -> T) -> T {
        let opened = {
            let mut runs = self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
            let found = runs.iter().position(|(path, _)| path == folder);
            let opened = match found {
                Some(at) => runs.remove(at).1,
                None => Arc::new(Mutex::new(OpenedRun::new(folder))),
            };
            runs.insert(0, (folder.to_owned(), opened.clone()));
            runs.truncate(MAX);
            opened
        };
        let mut opened = opened.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        opened.update();
        show(&opened.record)
    }
}

struct OpenedRun {
    folder: RunFolder,
    follow: Follow,
    record: Record,
    damaged: u64,
    /// Times and a count that change when other files than the events do.
    seen: Option<([Option<SystemTime>; 4], usize)>,
}

impl OpenedRun {
    fn new(folder: &Path) -> Self {
        let folder = RunFolder::new(folder);
        let follow = Follow::new(folder.events());
        Self { folder, follow, record: Record::default(), damaged: 0, seen: None }
    }

    /// Reads what was added.
    fn update(&mut self) {
        if self.follow.is_of_another_file() {
            *self = Self::new(self.folder.path());
        }
        let mut history = std::mem::take(&mut self.record.history);
        self.read_events(&mut history);
        history.complete();
        let modified = |path: &Path| std::fs::metadata(path).and_then(|found| found.modified()).ok();
        let files = [self.folder.state(), self.folder.lock(), self.folder.model(), self.folder.notes()];
        let times = files.map(|path| modified(&path));
        let seen = Some((times, history.evals.len()));
        if seen == self.seen {
            self.record.history = history;
            // How long it has run, and whether it has an owner, changes without its files.
            if let Some(listed) = Listed::read(self.folder.path()) {
                self.record.state = Some(listed.state);
            }
            return;
        }
        self.seen = seen;
        let damaged = (self.damaged > 0)
            .then(|| format!("events.jsonl: skipped {} that cannot be read", count(self.damaged, "line")));
        self.record = Record::with_history(&self.folder, history, damaged.into_iter().collect());
    }

    fn read_events(&mut self, history: &mut History) {
        while let Ok(lines) = self.follow.lines() {
            if lines.is_empty() {
                return;
            }
            for line in lines.iter().filter(|line| !line.trim().is_empty()) {
                match serde_json::from_str::<RecordedEvent>(line) {
                    Ok(event) => history.add(event),
                    Err(_) => self.damaged += 1,
                }
            }
        }
    }
}

pub struct Progress {
    folder: RunFolder,
    follow: Follow,
    /// Its evaluations and what a command measured. Of its steps, the last alone.
    pub history: History,
    pub started: Option<Started>,
    pub pace: Pace,
    /// Bytes, of the present attempt.
    pub peak: u64,
}

impl Progress {
    pub fn new(folder: &RunFolder) -> Self {
        Self {
            folder: folder.clone(),
            follow: Follow::new(folder.events()),
            history: History::default(),
            started: None,
            pace: Pace::default(),
            peak: 0,
        }
    }

    /// Reads what was added.
    pub fn update(&mut self) {
        if self.follow.is_of_another_file() {
            *self = Self::new(&self.folder);
        }
        while let Ok(lines) = self.follow.lines() {
            if lines.is_empty() {
                return;
            }
            lines.iter().filter_map(|line| serde_json::from_str(line).ok()).for_each(|event| self.take(event));
        }
    }

    fn take(&mut self, recorded: RecordedEvent) {
        match &recorded.event.kind {
            EventKind::Started(started) => {
                (self.started, self.pace, self.peak) = (Some(started.clone()), Pace::default(), 0);
            }
            EventKind::Step(step) => {
                self.pace.take(recorded.event.ts, step.ms, step.tokens);
                self.peak = self.peak.max(step.peak);
                self.history.steps = vec![step.clone()];
            }
            EventKind::Eval(_) | EventKind::Metrics(_) | EventKind::Finished(_) => self.history.add(recorded),
            _ => {}
        }
    }

    pub fn last_step(&self) -> Option<u64> {
        self.history.last_step()
    }

    /// Seconds until the last step, as far as that can be known.
    pub fn left(&self, steps: u64) -> Option<f64> {
        let done: u64 = self.history.steps.last().map(|step: &Step| step.step)?;
        self.pace.left(steps.saturating_sub(done)).filter(|seconds| seconds.is_finite())
    }
}

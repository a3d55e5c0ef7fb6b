//! How far a run is, from its events as they are added: little memory, and no line is read twice.

use pipe_spec::event::{RecordedEvent, Started, Step};
use pipe_spec::{EventKind, RunFolder};

use crate::report::Pace;
use crate::run::Follow;
use crate::run::history::History;

pub struct Progress {
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
            follow: Follow::new(folder.events()),
            history: History::default(),
            started: None,
            pace: Pace::default(),
            peak: 0,
        }
    }

    /// Reads what was added.
    pub fn update(&mut self) {
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

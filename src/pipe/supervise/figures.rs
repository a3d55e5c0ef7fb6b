//! What `run.json` keeps of the events.

use pipe_spec::event::{Measured, Point};
use pipe_spec::{Event, EventKind};

use super::Supervisor;
use crate::lock;

impl Supervisor<'_> {
    /// Takes in what an event says of the attempt, for `run.json` and the ledger.
    pub(super) fn note_event(&mut self, event: &Event) {
        self.note_figures(event);
        if let Some(session) = &mut self.session {
            session.observe(&event.kind);
        }
    }

    fn note_figures(&mut self, event: &Event) {
        let state = &mut self.run.state;
        match &event.kind {
            EventKind::Started(started) => {
                lock::record_started(&self.run.folder, started);
                state.steps = Some(started.steps);
                if let Some(attempt) = state.attempts.last_mut() {
                    (attempt.batch, attempt.accum) = (started.batch, started.accum);
                }
            }
            EventKind::Rehearsed(rehearsed) => {
                if let Some(attempt) = state.attempts.last_mut() {
                    attempt.peak_memory = attempt.peak_memory.max(Some(rehearsed.peak));
                }
                self.points.push(Point { batch: rehearsed.batch, peak: rehearsed.peak });
            }
            EventKind::Measured(Measured { batch, peak: Some(peak), .. }) => {
                self.points.push(Point { batch: *batch, peak: *peak });
            }
            EventKind::Step(step) => {
                if let Some(attempt) = state.attempts.last_mut() {
                    attempt.first_step.get_or_insert(step.step);
                    attempt.first_loss.get_or_insert(step.loss);
                    attempt.last_step = Some(step.step);
                    attempt.last_loss = Some(step.loss);
                    attempt.peak_memory = attempt.peak_memory.max(Some(step.peak));
                }
            }
            EventKind::Metrics(metrics) => {
                state.steps = metrics.steps.or(state.steps);
                if let Some((attempt, peak)) = state.attempts.last_mut().zip(metrics.peak_memory()) {
                    attempt.peak_memory = attempt.peak_memory.max(Some(peak));
                    self.points.retain(|point| point.batch != attempt.batch || point.peak > peak);
                    self.points.push(Point { batch: attempt.batch, peak });
                }
                if let Some(attempt) = state.attempts.last_mut() {
                    attempt.first_step.get_or_insert(metrics.step);
                    attempt.last_step = attempt.last_step.max(Some(metrics.step));
                    if let Some(loss) = metrics.loss() {
                        attempt.first_loss.get_or_insert(loss);
                        attempt.last_loss = Some(loss);
                    }
                }
            }
            EventKind::Oom(record) => {
                if let Some(attempt) = state.attempts.last_mut() {
                    attempt.peak_memory = attempt.peak_memory.max(record.peak);
                }
                self.oom = Some(record.clone());
            }
            EventKind::Fitted(fitted) => self.fitted = Some(fitted.clone()),
            EventKind::Measured(_)
            | EventKind::Eval(_)
            | EventKind::Sample(_)
            | EventKind::Checkpoint(_)
            | EventKind::Warning(_)
            | EventKind::Finished(_) => {}
        }
    }
}

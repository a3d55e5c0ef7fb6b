//! The events of a run, by kind.

use pipe_spec::EventKind;
use pipe_spec::event::{Eval, Finished, Metrics, RecordedEvent, Sample, Started, Step};

/// The events, by kind, without those that a report has no use for.
#[derive(Clone, Debug, Default)]
pub struct History {
    /// With the attempt that it belongs to.
    pub started: Vec<(u32, Started)>,
    pub steps: Vec<Step>,
    pub evals: Vec<Eval>,
    /// Of a command.
    pub metrics: Vec<Metrics>,
    pub samples: Vec<Sample>,
    /// With the attempt that it belongs to.
    pub warnings: Vec<(u32, String)>,
    pub finished: Option<Finished>,
}

impl History {
    pub fn add(&mut self, recorded: RecordedEvent) {
        let attempt = recorded.attempt;
        match recorded.event.kind {
            EventKind::Started(started) => self.started.push((attempt, started)),
            EventKind::Step(step) => self.steps.push(step),
            EventKind::Eval(eval) => self.evals.push(eval),
            EventKind::Metrics(metrics) => self.metrics.push(metrics),
            EventKind::Sample(sample) => self.samples.push(sample),
            EventKind::Warning(warning) => self.warnings.push((attempt, warning.message)),
            EventKind::Measured(_)
            | EventKind::Fitted(_)
            | EventKind::Rehearsed(_)
            | EventKind::Checkpoint(_)
            | EventKind::Oom(_) => {}
            EventKind::Finished(finished) => self.finished = Some(finished),
        }
    }

    /// The last step of a trainer or of a command.
    pub fn last_step(&self) -> Option<u64> {
        let of_command = || self.metrics.iter().map(|metrics| metrics.step).max();
        self.steps.last().map(|step| step.step).or_else(of_command)
    }

    /// The last loss of a trainer or of a command.
    pub fn last_loss(&self) -> Option<f64> {
        let of_command = || self.metrics.iter().rev().find_map(Metrics::loss);
        self.steps.last().map(|step| step.loss).or_else(of_command)
    }

    /// The steps whose events are missing, as text.
    pub fn missing_steps(&self) -> Option<String> {
        let mut gaps = Vec::new();
        let mut next = 1;
        for step in &self.steps {
            if step.step > next {
                gaps.push((next, step.step - 1));
            }
            next = step.step.saturating_add(1).max(next);
        }
        let missing: u64 = gaps.iter().map(|(first, last)| last - first + 1).sum();
        let (first, last) = (gaps.first()?.0, gaps.last()?.1);
        Some(match missing {
            1 => format!("events.jsonl: step {first} is missing"),
            _ => format!("events.jsonl: {missing} of the steps {first} to {last} are missing"),
        })
    }

    /// Bytes that the device may hold, as the last attempt saw it.
    pub fn capacity(&self) -> Option<u64> {
        self.started.iter().rev().find_map(|(_, started)| started.capacity)
    }
}

//! The state of a running run: its stage and the figures of its training.

use std::collections::BTreeMap;
use std::time::Instant;

use pipe_spec::event::{Event, Metrics, Started, Step};
use pipe_spec::pipeline::LossUnit;
use pipe_spec::run::StageStatus;
use pipe_spec::{Attempt, EventKind, Outcome};

use super::pace::{Curve, Pace, span};
use crate::report::figure;
use crate::report::text::{self, visible_line};

/// How wide the curve of one of several runs is drawn.
const CURVE_COLUMNS: usize = 16;

pub struct View {
    /// The current stage.
    pub stage: String,
    pub since: Instant,
    pub attempt: Option<CurrentAttempt>,
    pub training: Option<Training>,
    /// The last metrics of a command.
    pub metrics: Option<CommandMetrics>,
    /// Loss over the whole run.
    pub curve: Curve,
    /// The unit that the loss averages over.
    pub unit: LossUnit,
    /// The stages of a pipeline that has several, or the trials of a study.
    pub children: Vec<ChildLine>,
    /// The progress of a study: names and values.
    pub facts: Vec<(&'static str, String)>,
}

/// A stage of a pipeline, or a trial of a study, and its progress.
pub struct ChildLine {
    pub name: String,
    pub status: StageStatus,
    pub text: String,
}

/// The attempt that runs.
pub struct CurrentAttempt {
    pub number: u32,
    /// The most attempts of the run.
    pub of: u32,
    pub batch: String,
    /// Seconds since the Unix epoch.
    pub began: f64,
    /// Why there is another one, and what was changed for it.
    pub reason: Option<String>,
    pub action: Option<String>,
}

pub struct Training {
    pub started: Started,
    pub unit: LossUnit,
    pub pace: Pace,
    pub last: Option<Step>,
    /// When the latest step, evaluation or checkpoint came.
    pub heard: Instant,
    /// The latest evaluation: step and loss.
    pub eval: Option<(u64, f64)>,
    /// The step of the latest checkpoint.
    pub saved: Option<u64>,
}

/// The latest that a command said of its steps.
#[derive(Default)]
pub struct CommandMetrics {
    pub step: u64,
    pub steps: Option<u64>,
    values: BTreeMap<String, f64>,
}

impl CommandMetrics {
    fn add(&mut self, metrics: &Metrics) {
        self.step = self.step.max(metrics.step);
        self.steps = metrics.steps.or(self.steps);
        self.values.extend(metrics.values.iter().map(|(name, value)| (name.clone(), *value)));
    }

    /// As text, the loss first.
    pub fn values(&self) -> Option<String> {
        let mut values: Vec<(&String, &f64)> = self.values.iter().collect();
        values.sort_by_key(|(name, _)| name.as_str() != "loss");
        let texts: Vec<String> =
            values.iter().map(|(name, value)| format!("{} {}", visible_line(name), figure(**value))).collect();
        (!texts.is_empty()).then(|| texts.join("   "))
    }
}

impl Default for View {
    fn default() -> Self {
        Self {
            stage: String::new(),
            since: Instant::now(),
            attempt: None,
            training: None,
            metrics: None,
            curve: Curve::default(),
            unit: LossUnit::default(),
            children: Vec::new(),
            facts: Vec::new(),
        }
    }
}

impl View {
    pub fn set_stage(&mut self, stage: &str) {
        let stage = visible_line(stage);
        if self.stage != stage {
            self.stage = stage.into_owned();
            self.since = Instant::now();
        }
    }

    pub fn begin(&mut self, attempt: &Attempt, of: u32, batch: String, before: Option<&Attempt>) {
        let before = before.filter(|before| before.outcome != Some(Outcome::Finished));
        let reason = before.and_then(|before| before.reason.as_deref()).and_then(|reason| reason.lines().next());
        self.attempt = Some(CurrentAttempt {
            number: attempt.number,
            of,
            batch,
            began: attempt.began,
            reason: reason.map(|reason| visible_line(reason).into_owned()),
            action: before.and_then(|before| before.action.as_deref()).map(|action| visible_line(action).into_owned()),
        });
        (self.training, self.metrics) = (None, None);
    }

    pub fn take(&mut self, event: &Event) {
        match &event.kind {
            EventKind::Measured(_) => self.set_stage("looking for the largest batch"),
            EventKind::Started(started) => self.start(started),
            EventKind::Step(step) => self.step(event.ts, step),
            EventKind::Metrics(metrics) => {
                metrics.loss().iter().for_each(|loss| self.curve.take(metrics.step, *loss));
                self.metrics.get_or_insert_default().add(metrics);
            }
            EventKind::Eval(eval) => self.receive(|training| training.eval = Some((eval.step, eval.loss))),
            EventKind::Checkpoint(checkpoint) => self.receive(|training| training.saved = Some(checkpoint.step)),
            EventKind::Sample(_) => self.receive(|_| {}),
            EventKind::Finished(_) => self.set_stage("ending"),
            EventKind::Fitted(_) | EventKind::Rehearsed(_) | EventKind::Warning(_) | EventKind::Oom(_) => {}
        }
    }

    /// In a few words.
    pub fn brief(&self) -> String {
        let mut words = Vec::new();
        words.extend(
            self.attempt
                .as_ref()
                .filter(|attempt| attempt.number > 1)
                .map(|attempt| format!("attempt {}", attempt.number)),
        );
        match (&self.training, &self.metrics) {
            (Some(training), _) if training.last.is_some() => {
                words.push(format!("step {} of {}", training.done(), training.started.steps));
                words.extend(training.last.as_ref().map(|step| format!("loss {}", figure(step.loss))));
                words.extend(training.left().filter(|left| *left >= 1.0).map(|left| format!("{} left", span(left))));
            }
            (_, Some(metrics)) => {
                let of = metrics.steps.map_or(String::new(), |steps| format!(" of {steps}"));
                words.push(format!("step {}{of}", metrics.step));
                words.extend(metrics.values());
            }
            _ => words.push(self.stage.clone()),
        }
        let curve = self.curve.draw(CURVE_COLUMNS);
        words.extend(Some(curve).filter(|curve| curve.chars().count() > 1));
        words.join("   ")
    }

    fn start(&mut self, started: &Started) {
        self.set_stage("training");
        self.curve.forget_after(started.resumed_from.unwrap_or(0));
        if let Some(attempt) = &mut self.attempt {
            attempt.batch = format!("batch {} x accum {}", started.batch, started.accum);
        }
        self.training = Some(Training {
            started: started.clone(),
            unit: self.unit,
            pace: Pace::default(),
            last: None,
            heard: Instant::now(),
            eval: None,
            saved: started.resumed_from,
        });
    }

    fn step(&mut self, ts: f64, step: &Step) {
        self.curve.take(step.step, step.loss);
        let mut stage = "training";
        if let Some(training) = &mut self.training {
            training.pace.take(ts, step.ms, step.tokens);
            training.last = Some(step.clone());
            // The trainer reports what follows the last step only when it is done.
            if step.step == training.started.steps {
                stage = "evaluating and saving";
            }
        }
        self.set_stage(stage);
        self.receive(|_| {});
    }

    fn receive(&mut self, note: impl FnOnce(&mut Training)) {
        if let Some(training) = &mut self.training {
            training.heard = Instant::now();
            note(training);
        }
    }
}

impl Training {
    /// Steps that are done, of those of the whole run.
    pub fn done(&self) -> u64 {
        self.last.as_ref().map_or(self.started.resumed_from.unwrap_or(0), |step| step.step)
    }

    /// Seconds to its end.
    pub fn left(&self) -> Option<f64> {
        self.pace.left(self.started.steps.saturating_sub(self.done()))
    }

    /// Passes over the data in all.
    pub fn epochs(&self) -> Option<f64> {
        let step = self.last.as_ref().filter(|step| step.epoch > 0.0 && step.step > 0)?;
        let of_a_step = step.epoch / step.step as f64;
        Some(whole_epochs(of_a_step * self.started.steps as f64, of_a_step))
    }

    pub fn speed(&self) -> Option<String> {
        self.pace.tokens_per_second().map(|speed| text::speed(speed, self.unit))
    }
}

/// The passes that a training has when all of its steps are `epochs` passes: the last step may go beyond the last pass.
fn whole_epochs(epochs: f64, of_a_step: f64) -> f64 {
    let below = (epochs + 1e-6).floor();
    if below > 0.0 && epochs - below < of_a_step - 1e-6 { below } else { (epochs - 1e-6).ceil().max(1.0) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_step_goes_beyond_the_last_epoch() {
        for (epochs, of_a_step, want) in
            [(4.0, 0.25, 4.0), (4.02, 0.067, 4.0), (60.4, 0.5, 60.0), (2.5, 0.1, 3.0), (0.4, 0.1, 1.0), (5.0, 1.0, 5.0)]
        {
            assert_eq!(whole_epochs(epochs, of_a_step), want, "{epochs} {of_a_step}");
        }
    }
}

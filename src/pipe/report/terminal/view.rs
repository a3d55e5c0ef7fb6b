//! The state of a running run: its stage and the figures of its training.
//!
//! Events as text, a line each.

use std::collections::BTreeMap;
use std::time::Instant;

use pipe_spec::event::{
    Eval, Event, Finished, Fitted, Measured, MemoryKind, Metrics, OomSizes, Rehearsed, Sample, Started, Step,
};
use pipe_spec::pipeline::LossUnit;
use pipe_spec::run::StageStatus;
use pipe_spec::text::{count, human_bytes};
use pipe_spec::{Attempt, EventKind, OomRecord, Outcome};

use super::pace::{Curve, Pace, span};
use crate::report::text::{self, visible_line};
use crate::report::{bounded, figure, grouped};

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

/// Characters of a sample text.
const SAMPLE: usize = 200;

pub fn start(started: &Started) -> String {
    let from = started.resumed_from.map_or(String::new(), |step| format!(", resuming from step {step}"));
    let capacity = started.memory.capacity.map_or(String::new(), |bytes| format!(" with {}", human_bytes(bytes)));
    let parts =
        started.memory.part_bytes.map_or(String::new(), |bytes| format!(" in parts of up to {}", human_bytes(bytes)));
    let sums_by = started.sums_by.as_ref().map_or(String::new(), |name| format!(" ({name})"));
    let ranks = if started.ranks > 1 { format!(", {} ranks{sums_by}", started.ranks) } else { String::new() };
    format!(
        "training {} on {}{capacity}{ranks}: {} of {}{parts}{from}",
        match started.params {
            1 => "1 parameter".to_owned(),
            more => format!("{} parameters", grouped(more)),
        },
        started.device,
        count(started.steps, "step"),
        count(started.effective_batch, "sample")
    )
}

/// The latest step.
pub fn step(training: &Training) -> Option<String> {
    let step = training.last.as_ref()?;
    let speed = training.speed().map_or(String::new(), |speed| format!("  {speed}"));
    let left =
        training.left().filter(|left| *left >= 1.0).map_or(String::new(), |left| format!("  {} left", span(left)));
    Some(format!(
        "step {}/{}: loss {:.4}  lr {:.1e}{speed}  {}{left}",
        step.step,
        training.started.steps,
        step.loss,
        step.lr,
        human_bytes(step.peak)
    ))
}

/// The metrics that a command printed for a step.
pub fn metrics(metrics: &Metrics) -> String {
    let of = metrics.steps.map_or(String::new(), |steps| format!("/{steps}"));
    let values: Vec<String> = metrics.values.iter().map(|(name, value)| format!("{name} {}", figure(*value))).collect();
    format!("step {}{of}: {}", metrics.step, values.join("  "))
}

pub fn measurement(measured: &Measured) -> String {
    let Measured { batch, longest, peak, .. } = measured;
    let held = peak.map_or("does not fit".to_owned(), |peak| format!("peak {}", human_bytes(peak)));
    format!("measured batch {batch}{}: {held}", tokens(longest))
}

pub fn finding(fitted: &Fitted) -> String {
    let Fitted { batch, accum, peak, .. } = fitted;
    if fitted.is_whole_step() {
        let peak = human_bytes(*peak);
        return format!("{batch} fits, and it is the whole effective batch; larger was not tried (peak {peak})");
    }
    format!("the largest batch that fits is {batch} (x accum {accum}), with a peak of {}", human_bytes(*peak))
}

pub fn rehearsal(rehearsed: &Rehearsed) -> String {
    format!("the longest samples{} fit: peak {}", tokens(&rehearsed.longest), human_bytes(rehearsed.peak))
}

/// How long rows are, where they are of tokens.
fn tokens(longest: &str) -> String {
    if longest.is_empty() { String::new() } else { format!(" ({longest} tokens)") }
}

pub fn evaluation(eval: &Eval) -> String {
    let Eval { step, loss, samples, .. } = eval;
    let score = |(name, score): (&str, f64)| format!(", {} {score:.3}", name.replace('_', " "));
    let scores: String = eval.shown_scores().map(score).collect();
    format!("step {step}: eval loss {loss:.4}{scores}, {}", count(*samples, "sample"))
}

/// A text that the model wrote, in one line.
pub fn sample(sample: &Sample) -> String {
    let short = |text: &str| bounded(&text.split_whitespace().collect::<Vec<_>>().join(" "), SAMPLE);
    format!("{} -> {}", short(&sample.source), short(&sample.generated))
}

pub fn shortage(record: &OomRecord) -> String {
    let OomRecord { phase, step, batch, sizes: OomSizes { requested, free, total, .. }, .. } = record;
    let memory = match record.memory {
        MemoryKind::Device => "the card's memory",
        MemoryKind::Host => "the host's memory",
    };
    let requested = requested.map_or(String::new(), |bytes| format!(", {} requested", human_bytes(bytes)));
    let free = match (free, total) {
        (Some(free), Some(total)) => format!(", {} of {} free", human_bytes(*free), human_bytes(*total)),
        _ => String::new(),
    };
    format!("out of memory: {memory} ran out in step {step} ({}) with batch {batch}{requested}{free}", phase.name())
}

pub fn end(finished: &Finished) -> String {
    let model = finished.model.as_ref().map_or(String::new(), |model| format!("; the model is in {model}"));
    format!("finished after {} and {}{model}", count(finished.step, "step"), count(finished.samples, "sample"))
}

#[cfg(test)]
mod tests {
    use pipe_spec::Phase;

    use super::*;

    #[test]
    fn the_last_step_goes_beyond_the_last_epoch() {
        for (epochs, of_a_step, want) in
            [(4.0, 0.25, 4.0), (4.02, 0.067, 4.0), (60.4, 0.5, 60.0), (2.5, 0.1, 3.0), (0.4, 0.1, 1.0), (5.0, 1.0, 5.0)]
        {
            assert_eq!(whole_epochs(epochs, of_a_step), want, "{epochs} {of_a_step}");
        }
    }

    #[test]
    fn a_long_sample_is_cut() {
        let one = Sample { step: 1, source: "a\n b".into(), target: String::new(), generated: "c".repeat(500) };
        assert_eq!(sample(&one), format!("a b -> {}…", "c".repeat(199)));
    }

    #[test]
    fn ends_in_a_line() {
        let record = OomRecord {
            step: 3,
            batch: 64,
            sizes: OomSizes {
                requested: Some(600 << 20),
                free: Some(1 << 20),
                total: Some(16 << 30),
                ..OomSizes::default()
            },
            ..OomRecord::new(MemoryKind::Device, Phase::Backward)
        };
        let want = "out of memory: the card's memory ran out in step 3 (backward) with batch 64, 600.0 MiB requested, \
                    1.0 MiB of 16.0 GiB free";
        assert_eq!(shortage(&record), want);
        let done = Finished { step: 9, samples: 1, model: Some("model".to_owned()), ..Finished::default() };
        assert_eq!(end(&done), "finished after 9 steps and 1 sample; the model is in model");
    }

    #[test]
    fn an_evaluation_in_a_line() {
        let scores = [("perplexity", 1.6487), ("exact_match", 0.125)].map(|(name, score)| (name.to_owned(), score));
        let eval = Eval { step: 4, loss: 0.5, samples: 20, ms: 1.0, headline: None, scores: scores.into() };
        let want = "step 4: eval loss 0.5000, exact match 0.125, perplexity 1.649, 20 samples";
        assert_eq!(evaluation(&eval), want);
        let scores = ["f1", "macro_f1"].map(|name| (name.to_owned(), 0.5));
        let eval = Eval { scores: scores.into(), ..eval };
        assert_eq!(evaluation(&eval), "step 4: eval loss 0.5000, macro f1 0.500, 20 samples");
    }
}

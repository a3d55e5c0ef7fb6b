//! The events: one JSON object a line on the trainer's stdout.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::pipeline::Metric;

/// One line of the trainer's stdout. `seq` counts from 1 within an attempt, so a log that is read twice gives each event
/// once.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Event {
    pub seq: u64,
    /// Seconds since the Unix epoch.
    pub ts: f64,
    #[serde(flatten)]
    pub kind: EventKind,
}

impl Event {
    /// Reads one line; `None` when it is not an event.
    pub fn parse(line: &str) -> Option<Self> {
        let line = line.trim();
        if !line.starts_with('{') {
            return None;
        }
        serde_json::from_str(line).ok()
    }
}

/// A line of `events.jsonl`: an event with the attempt that it belongs to.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RecordedEvent {
    pub attempt: u32,
    #[serde(flatten)]
    pub event: Event,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum EventKind {
    Measured(Measured),
    Fitted(Fitted),
    Started(Started),
    Rehearsed(Rehearsed),
    Step(Step),
    /// Metrics that a command printed.
    Metrics(Metrics),
    Eval(Eval),
    Sample(Sample),
    Checkpoint(Checkpoint),
    Oom(OomRecord),
    Warning(Warning),
    Finished(Finished),
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Started {
    /// `cpu`, or the name of the card.
    pub device: String,
    #[serde(flatten)]
    pub memory: StartedMemory,
    pub driver: Option<String>,
    pub libtorch: String,
    pub params: u64,
    pub batch: u32,
    pub accum: u32,
    pub effective_batch: u32,
    /// Steps of the whole run.
    pub steps: u64,
    pub samples: u64,
    /// Since the trainer began: reading the data, loading the model.
    #[serde(default)]
    pub ready_ms: f64,
    /// Tokens of the longest row of the data, such as `480`, or `512+128` of a source and its target; with `split: fill` those of
    /// a row of full length.
    #[serde(default)]
    pub longest: Option<String>,
    /// The step of the checkpoint that this attempt resumed from.
    pub resumed_from: Option<u64>,
    /// Processes that share the steps; 0 where it was not written down.
    #[serde(default, skip_serializing_if = "is_at_most_one")]
    pub ranks: u32,
    /// The library that sums the gradients of several ranks: `nccl` or `gloo`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sums_by: Option<String>,
}

/// The memory of a training as it starts, in bytes. Its keys stand beside those of the event.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct StartedMemory {
    /// The memory that the device may give to this run.
    pub capacity: Option<u64>,
    pub weights: Option<u64>,
    /// The most that the card held while the weights were loaded.
    pub load_peak: Option<u64>,
    /// With `split: fill`: what a part may hold beside the state of the model, by the estimate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub part_bytes: Option<u64>,
}

fn is_at_most_one(ranks: &u32) -> bool {
    *ranks <= 1
}

/// A batch that was tried for its memory alone, in steps that train nothing.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    pub batch: u32,
    pub fits: bool,
    /// Bytes, where it fits.
    pub peak: Option<u64>,
    pub reserved: Option<u64>,
    /// Tokens of the longest row, as in `Started`.
    pub longest: String,
    pub ms: f64,
}

/// The largest batch that fits.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Fitted {
    pub batch: u32,
    pub accum: u32,
    pub effective_batch: u32,
    pub peak: u64,
    pub capacity: Option<u64>,
    pub device: String,
    pub driver: Option<String>,
    /// Tokens of the longest row, as in `Started`.
    pub longest: String,
}

impl Fitted {
    /// Whether the batch is the whole effective batch, where a search ends: larger ones were not tried.
    pub fn is_whole_step(&self) -> bool {
        self.accum <= 1
    }
}

/// The longest samples went through a step whose update was discarded.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Rehearsed {
    pub batch: u32,
    /// Tokens of the longest row, as in `Started`.
    pub longest: String,
    pub peak: u64,
    pub reserved: u64,
    pub ms: f64,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Step {
    pub step: u64,
    /// Passes over the data after this step, with its fraction.
    pub epoch: f64,
    /// Samples seen by the run so far.
    pub samples: u64,
    pub loss: f64,
    pub lr: f64,
    pub grad_norm: f64,
    /// Target tokens (or samples) that this step's loss averages over.
    pub tokens: u64,
    pub ms: f64,
    /// How much of it was spent waiting for data.
    #[serde(default)]
    pub data_ms: f64,
    /// Parts that its samples were cut into; 0 where it was not written down.
    #[serde(default)]
    pub parts: u32,
    /// With `split: fill`: how much of what `batch` samples of full length would hold was held by the fullest part, by the
    /// estimate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub filled: Option<f64>,
    /// Bytes that the rank with most has allocated.
    pub allocated: u64,
    pub reserved: u64,
    pub peak: u64,
    /// Each of several ranks.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ranks: Vec<RankUse>,
}

/// Memory and time that a rank used in a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RankUse {
    pub allocated: u64,
    pub reserved: u64,
    pub peak: u64,
    /// Until its gradient was complete, without waiting for those of the others.
    pub ms: f64,
    pub parts: u32,
}

impl Step {
    /// Target tokens (or samples) per second; not a number where the step has no time.
    pub fn tokens_per_second(&self) -> f64 {
        if self.ms > 0.0 { self.tokens as f64 * 1000.0 / self.ms } else { f64::NAN }
    }
}

/// Metrics of a step from the log of a command. Names that begin with `eval_` are of an evaluation.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Metrics {
    pub step: u64,
    /// Steps of the whole run, where it says so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub steps: Option<u64>,
    pub values: BTreeMap<String, f64>,
}

impl Metrics {
    pub fn loss(&self) -> Option<f64> {
        self.values.get("loss").copied()
    }

    /// Bytes that the command says it has held at most, under one of the usual names.
    pub fn peak_memory(&self) -> Option<u64> {
        let told = ["peak_memory", "max_memory_allocated"].iter().find_map(|name| self.values.get(*name));
        told.filter(|bytes| **bytes >= 1.0).map(|bytes| *bytes as u64)
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Eval {
    pub step: u64,
    pub loss: f64,
    pub samples: u64,
    pub ms: f64,
    /// Absent in events of older versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub headline: Option<Headline>,
    #[serde(flatten)]
    pub scores: Scores,
}

/// The score that says best how good a model is, and the same score of an answer that ignores the input.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Headline {
    /// The name of one of the scores: `accuracy`.
    pub metric: String,
    /// Rows, texts, pictures or tokens that it is counted over.
    pub rows: u64,
    /// How many classes these rows have, where classes are predicted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub classes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub baseline: Option<Baseline>,
}

/// An answer that ignores the input.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Baseline {
    /// The answer in words: `always answering Billing`.
    pub name: String,
    pub value: f64,
}

impl Headline {
    pub fn new(metric: &str, rows: u64) -> Self {
        Self { metric: metric.to_owned(), rows, ..Self::default() }
    }

    /// With the score of an answer that ignores the input, where that is a number.
    pub fn against(self, name: impl Into<String>, value: f64) -> Self {
        Self { baseline: value.is_finite().then(|| Baseline { name: name.into(), value }), ..self }
    }
}

impl Eval {
    /// The value of a metric, where this evaluation has it.
    pub fn value(&self, metric: &Metric) -> Option<f64> {
        match metric.name()? {
            Metric::LOSS => Some(self.loss),
            name => self.scores.get(name).copied(),
        }
    }

    /// The scores without those that are there under another name too.
    pub fn shown_scores(&self) -> impl Iterator<Item = (&str, f64)> {
        // `f1` is the older name of `macro_f1`.
        let has_macro_f1 = self.scores.contains_key("macro_f1");
        let shown = self.scores.iter().filter(move |(name, _)| *name != "f1" || !has_macro_f1);
        shown.map(|(name, score)| (name.as_str(), *score))
    }
}

/// How good a model is, beside its loss, by the task's own measures: `perplexity`, `exact_match` and `rouge_l` (of generated
/// texts), `accuracy`, `macro_f1`, `f1` (the same as `macro_f1`) and `mcc`, `text_recall_1` and the like.
pub type Scores = BTreeMap<String, f64>;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    pub step: u64,
    pub source: String,
    pub target: String,
    pub generated: String,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Checkpoint {
    pub step: u64,
    /// Relative to the run folder.
    pub path: String,
    pub bytes: u64,
    pub ms: f64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Warning {
    pub message: String,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Finished {
    pub step: u64,
    pub samples: u64,
    /// Relative to the run folder; absent when nothing was exported.
    pub model: Option<String>,
    /// The step that the exported model is from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model_step: Option<u64>,
    /// The best evaluation by `save.best`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub best: Option<BestEval>,
    /// Why the training ended before its last step, where `train.early_stop` ended it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stopped_early: Option<StoppedEarly>,
    /// The CUDA graphs of the last attempt, where there were any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub graphs: Option<GraphUse>,
}

/// The parts that were launched as CUDA graphs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct GraphUse {
    /// Graphs that were recorded: one for each shape of a part that came up often.
    pub recorded: u64,
    /// Parts that were launched as graphs, and all parts.
    pub launched: u64,
    pub parts: u64,
    /// The share of the computed tokens that belong to no sample: parts are rounded up to one of few numbers of tokens.
    pub rounding: f64,
}

/// The evaluation where a metric was best.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BestEval {
    pub metric: Metric,
    pub step: u64,
    pub value: f64,
}

/// A metric did not improve in `patience` evaluations in a row.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StoppedEarly {
    pub metric: Metric,
    pub patience: u32,
    /// The step of the best evaluation; absent where none had a value.
    pub best_step: Option<u64>,
    pub best: Option<f64>,
}

impl fmt::Display for StoppedEarly {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { metric, patience, .. } = self;
        let evaluations = if *patience == 1 { "evaluation" } else { "evaluations" };
        write!(f, "{metric} did not improve in {patience} {evaluations}")?;
        match (self.best_step, self.best) {
            (Some(step), Some(best)) => write!(f, "; its best is {best:.4} at step {step}"),
            _ => Ok(()),
        }
    }
}

/// The activity of the trainer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    Load,
    Forward,
    Backward,
    Optimizer,
    Eval,
    Checkpoint,
    Resume,
}

impl Phase {
    pub const ALL: [Self; 7] =
        [Self::Load, Self::Forward, Self::Backward, Self::Optimizer, Self::Eval, Self::Checkpoint, Self::Resume];

    pub fn name(self) -> &'static str {
        match self {
            Self::Load => "load",
            Self::Forward => "forward",
            Self::Backward => "backward",
            Self::Optimizer => "optimizer",
            Self::Eval => "eval",
            Self::Checkpoint => "checkpoint",
            Self::Resume => "resume",
        }
    }
}

/// Whose memory ran out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MemoryKind {
    Device,
    Host,
}

/// The peak memory of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Point {
    pub batch: u32,
    /// Bytes.
    pub peak: u64,
}

/// The memory of the card and the host when it ran out: `oom.json`, and the `oom` event. Sizes are bytes; an unknown one
/// is absent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OomRecord {
    /// The rank that ran out of memory.
    #[serde(default, skip_serializing_if = "is_first_rank")]
    pub rank: u32,
    pub memory: MemoryKind,
    pub phase: Phase,
    /// The step that was being computed.
    pub step: u64,
    pub batch: u32,
    /// With `split: fill`: how much of what a part may hold the fullest part of the step held.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub filled: Option<f64>,
    /// As in `Started`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub part_bytes: Option<u64>,
    pub longest_sequence: Option<u32>,
    #[serde(flatten)]
    pub sizes: OomSizes,
    pub allocator: Option<String>,
    pub alloc_retries: Option<u64>,
    /// Peak memory of smaller batches, measured afterwards.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub points: Vec<Point>,
    /// The message of torch or the kernel.
    pub message: String,
}

/// The sizes of an `OomRecord`, in bytes. Their keys stand beside its others.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct OomSizes {
    pub requested: Option<u64>,
    pub allocated: Option<u64>,
    pub reserved: Option<u64>,
    pub peak: Option<u64>,
    pub free: Option<u64>,
    pub total: Option<u64>,
    /// Memory of the whole card, whatever this run may use: all, free, held by this process, held by others.
    pub card_total: Option<u64>,
    pub card_free: Option<u64>,
    pub own: Option<u64>,
    pub others: Option<u64>,
}

impl OomRecord {
    /// A record of which nothing else is known.
    pub fn new(memory: MemoryKind, phase: Phase) -> Self {
        Self {
            filled: None,
            part_bytes: None,
            rank: 0,
            memory,
            phase,
            step: 0,
            batch: 0,
            longest_sequence: None,
            sizes: OomSizes::default(),
            allocator: None,
            alloc_retries: None,
            points: Vec::new(),
            message: String::new(),
        }
    }
}

fn is_first_rank(rank: &u32) -> bool {
    *rank == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_one_flat_object() {
        let event = Event { seq: 3, ts: 1.5, kind: EventKind::Warning(Warning { message: "hm".into() }) };
        let line = serde_json::to_string(&event).unwrap();
        assert_eq!(line, r#"{"seq":3,"ts":1.5,"type":"warning","message":"hm"}"#);
        assert_eq!(Event::parse(&line), Some(event));
    }

    #[test]
    fn other_text_is_no_event() {
        for line in ["", "hello", "{", "{\"seq\":1}", "{\"seq\":1,\"ts\":0,\"type\":\"nonsense\"}"] {
            assert_eq!(Event::parse(line), None, "{line}");
        }
    }
}

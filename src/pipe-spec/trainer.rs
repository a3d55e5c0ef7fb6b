//! The contract of the trainer's commands: the resolved spec of an attempt (`attempts/NN/spec.json`), what `pipe-trainer inspect`
//! finds in the data of a training, what `pipe-trainer predict` is to do and prints meanwhile.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::event::Scores;
use crate::pipeline::{Adapter, Data, Evaluate, Memory, Model, Save, Train};

/// A field for each key of `spec.json`, which attempts of earlier versions have too: they are read when a run is resumed.
/// Paths are as the trainer sees them: inside the container, or on the host under the `process` engine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TrainerSpec {
    pub version: u32,
    pub run: PathBuf,
    pub attempt: u32,
    /// Which of the processes that share a step this one is.
    #[serde(default, skip_serializing_if = "Rank::is_only")]
    pub rank: Rank,
    /// How many machines the ranks are on, as many of them on each; `NODE_VARIABLE` says which one this is.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub nodes: u32,
    pub device: Device,
    /// How many cards the ranks of a machine have among them.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub cards: u32,
    /// Which of the cards that the trainer sees, counted from 0. Of several ranks each has the next one.
    #[serde(default, skip_serializing_if = "is_first")]
    pub device_index: u32,
    /// Threads for computation; absent leaves it to libtorch.
    pub threads: Option<u32>,
    pub model: Model,
    /// The name of the model that an adapter is trained for, as the pipeline has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base_model: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub adapter: Option<Adapter>,
    /// Absent where nothing is read as text.
    #[serde(default)]
    pub tokenizer: Option<PathBuf>,
    pub data: Data,
    pub train: Train,
    pub memory: Memory,
    pub evaluate: Evaluate,
    pub save: Save,
    /// Whether `on_oom.then` has changed the training result: a checkpoint in another precision or of another optimizer may be used.
    #[serde(default)]
    pub maths_changed: bool,
}

/// One trainer process among those that share a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rank {
    /// From 0.
    pub index: u32,
    pub count: u32,
}

impl Rank {
    fn is_only(&self) -> bool {
        self.count == 1
    }
}

impl Default for Rank {
    fn default() -> Self {
        Self { index: 0, count: 1 }
    }
}

/// Set for a trainer that is to end with the program that started it: `LEASE_ON_STDIN`, where its stdin stays open for as long
/// as that program lives.
pub const LEASE_VARIABLE: &str = "PIPE_LEASE";
pub const LEASE_ON_STDIN: &str = "stdin";

/// Set where the ranks are on several machines: which of them this is, counted from 0, or `${NAME}` of a variable that holds it. All
/// machines see the run folder, unless `FIRST_NODE_VARIABLE` is set.
pub const NODE_VARIABLE: &str = "PIPE_NODE";

/// Set where the machines share no folder: `HOST:PORT` of the first one. The port after it is used too.
pub const FIRST_NODE_VARIABLE: &str = "PIPE_FIRST_NODE";

/// Set where the ranks of other machines reach this one by another address than that of its name.
pub const ADDRESS_VARIABLE: &str = "PIPE_ADDRESS";

/// The text in the trainer's message before the row or file that it was reading when memory ran out.
pub const WHILE_READING: &str = " while reading ";

fn one() -> u32 {
    1
}

fn is_one(number: &u32) -> bool {
    *number == 1
}

fn is_first(index: &u32) -> bool {
    *index == 0
}

impl TrainerSpec {
    pub const VERSION: u32 = 1;
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Device {
    Cpu,
    Cuda,
}

/// The error in what the trainer wrote to stderr; all of it where there is none.
pub fn error_message(stderr: &str) -> &str {
    stderr.split_once("error: ").map_or(stderr.trim(), |(_, message)| message.trim())
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Inspection {
    pub train: Split,
    #[serde(default)]
    pub eval: Option<Split>,
    /// Steps of the whole training.
    pub steps: u64,
    /// How a step is cut, where that depends on the lengths of the data (`train.split: fill`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step_parts: Option<StepParts>,
    /// The first conversation as the model reads it: pieces of text, each with whether the loss counts it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub example: Vec<(String, bool)>,
    /// Notices about the rows, such as those that are skipped.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notices: Vec<String>,
}

/// The parts of a step.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct StepParts {
    /// Samples in a step.
    pub samples: u32,
    /// On average.
    pub parts: f64,
}

/// The rows to train with, or those to evaluate with.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Split {
    pub rows: u64,
    /// Rows that were read to count lengths and classes: all of them, or as many as can be read in a moment.
    pub read: u64,
    /// Rows among those read that cannot be used and are skipped.
    pub skipped: u64,
    /// Empty where the model takes no tokens.
    pub lengths: Vec<Lengths>,
    /// Rows of each class among those read, in the order of the model's class numbers. Empty where the model does not classify.
    pub classes: Vec<ClassCount>,
}

/// Tokens of the rows in one column.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Lengths {
    /// `source` and `target`, or `text`.
    pub column: String,
    pub mean: f64,
    /// 95 % of the rows are not longer.
    pub p95: u64,
    pub longest: u64,
    /// Rows of the longest length that is allowed, the most of which were cut there.
    pub at_limit: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClassCount {
    pub name: String,
    pub rows: u64,
}

/// Paths are as the trainer sees them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PredictSpec {
    /// Settings that the model was trained with. `model.from` is the trained model, `data.train` the rows to predict.
    pub settings: TrainerSpec,
    /// Written: one JSON object for each prediction, in the order of the rows.
    pub out: PathBuf,
    /// Columns of the data that the output repeats.
    #[serde(default)]
    pub keep: Vec<String>,
}

/// One line of the trainer's stdout.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum PredictEvent {
    /// The model is loaded and the data open.
    Started {
        predictions: u64,
    },
    Progress {
        predictions: u64,
    },
    Warning {
        message: String,
    },
    /// `out` is complete.
    Done(Predicted),
}

impl PredictEvent {
    /// Reads one line; `None` when it is not an event.
    pub fn parse(line: &str) -> Option<Self> {
        serde_json::from_str(line.trim()).ok()
    }
}

/// The result of a prediction.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Predicted {
    pub predictions: u64,
    /// Rows that could not be read and were left out.
    pub skipped: u64,
    /// `cpu`, or the name of the card.
    pub device: String,
    /// The batch at the end: smaller than that of the spec after an out-of-memory.
    pub batch: u32,
    /// Since the model was loaded.
    pub ms: f64,
    /// Absent where no row has a label or target.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub evaluation: Option<Evaluation>,
}

/// The figures of an evaluation of the model on these rows.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Evaluation {
    /// Rows that have a label or target.
    pub rows: u64,
    /// The loss and the scores of the task that are finite.
    pub metrics: Scores,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_one_line() {
        let event = PredictEvent::Done(Predicted { predictions: 3, ..Predicted::default() });
        let line = serde_json::to_string(&event).unwrap();
        assert_eq!(line, r#"{"type":"done","predictions":3,"skipped":0,"device":"","batch":0,"ms":0.0}"#);
        assert_eq!(PredictEvent::parse(&line), Some(event));
        assert_eq!(PredictEvent::parse("loading"), None);
    }
}

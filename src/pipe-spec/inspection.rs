//! The findings of `pipe-trainer inspect` in the data of a training, as JSON on its stdout.

use serde::{Deserialize, Serialize};

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

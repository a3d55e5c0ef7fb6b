//! The contract of `pipe-trainer predict`: what it is to do, and the lines it prints while it does so.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::TrainerSpec;
use crate::event::Scores;

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

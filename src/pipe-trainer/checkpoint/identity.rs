//! Which training a checkpoint belongs to: resuming from it is the same training only when these agree.

use pipe_spec::event::Eval;
use pipe_spec::pipeline::{ClassWeights, OptimizerKind, Precision};
use serde::{Deserialize, Serialize};

use super::metric_record::MetricRecords;
use crate::optim::LossScale;

/// What must not change within a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    pub seed: u64,
    pub effective_batch: u32,
    pub shuffle: bool,
    pub precision: Precision,
    pub optimizer: OptimizerKind,
    /// Rows of the training data.
    pub rows: u64,
    #[serde(default, skip_serializing_if = "ClassWeights::is_none")]
    pub class_weights: ClassWeights,
}

impl Identity {
    /// How `self`, found in a checkpoint, differs from what the run asks for. Where `on_oom.then` changed settings on purpose,
    /// precision and optimizer may differ.
    pub fn difference(&self, run: &Self, maths_changed: bool) -> Option<String> {
        let differs = |what: &str, saved: String, asked: String| {
            (saved != asked).then(|| format!("it was made with {what} {saved}, this run has {asked}"))
        };
        differs("seed", self.seed.to_string(), run.seed.to_string())
            .or_else(|| differs("effective batch", self.effective_batch.to_string(), run.effective_batch.to_string()))
            .or_else(|| {
                let maths = || {
                    differs("precision", format!("{:?}", self.precision), format!("{:?}", run.precision)).or_else(
                        || differs("optimizer", format!("{:?}", self.optimizer), format!("{:?}", run.optimizer)),
                    )
                };
                if maths_changed { None } else { maths() }
            })
            .or_else(|| differs("shuffle", self.shuffle.to_string(), run.shuffle.to_string()))
            .or_else(|| differs("training rows", self.rows.to_string(), run.rows.to_string()))
            .or_else(|| {
                let [saved, asked] = [self, run].map(|one| format!("{:?}", one.class_weights));
                differs("class weights", saved, asked)
            })
    }
}

/// `state.json`. Order, dropout and schedule are functions of these numbers, so nothing more needs saving.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SavedState {
    pub version: u32,
    /// Completed steps.
    pub step: u64,
    /// The last step after which the model was evaluated.
    pub evaluated: u64,
    /// What came of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_eval: Option<Eval>,
    pub samples: u64,
    pub total_steps: u64,
    /// The batch it was made with; a resumed run may have another one.
    pub batch: u32,
    pub loss_scale: Option<LossScale>,
    /// What the evaluations so far have shown. Checkpoints from before `save.best` do not have it.
    #[serde(default, skip_serializing_if = "MetricRecords::is_empty")]
    pub metrics: MetricRecords,
    pub identity: Identity,
}

impl SavedState {
    pub const VERSION: u32 = 1;
}

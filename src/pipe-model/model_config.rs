//! What every model says about itself without tensors.

use serde_json::{Map, Value};

use crate::memory::StepMemory;
use crate::{Labels, Parameter, TaskData};

/// The config of a model, read and checked.
pub trait ModelConfig {
    fn parameters(&self) -> Vec<Parameter>;

    /// What its data must be like. `labels` are what a classifier predicts; absent where the data decides.
    fn task_data(&self, labels: Option<Labels>) -> TaskData;

    /// The parameter whose rows are the labels, for a classifier: where a checkpoint lacks it, the data decides the labels.
    fn head(&self) -> Option<&'static str> {
        None
    }

    /// Whether dropout is on in training, unless the pipeline says otherwise.
    fn drops(&self) -> bool;

    /// The width of its heads, where all of its attention has a kernel if such heads have one: then rows need not be rounded up on a card.
    fn head_width(&self) -> Option<i64> {
        None
    }

    /// The keys of config.json, as transformers reads them.
    fn export(&self) -> Map<String, Value>;

    /// The estimate of what a step holds, where the model has one.
    fn step_memory(&self) -> Option<&dyn StepMemory> {
        None
    }
}

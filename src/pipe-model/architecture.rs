//! Everything that the runner and the trainer know about an architecture. Each model's folder defines its own.

use serde_json::{Map, Value};

use crate::adaptable::Adaptable;
use crate::config_keys::ConfigError;
use crate::estimate::StepMemory;
use crate::parameter::Parameter;
use crate::starter::Starter;
use crate::task_data::{Labels, TaskData};
use crate::tokenization::Tokenization;

/// Reads and checks the config.json of a model.
pub type ReadConfig = fn(&Map<String, Value>) -> Result<Box<dyn ModelConfig>, ConfigError>;

pub struct Architecture {
    pub read: ReadConfig,
    /// The settings that `pipe init` writes.
    pub starter: Starter,
    /// Absent for a model that reads no text.
    pub tokenization: Option<Tokenization>,
    /// Whether transformers loads the exported model.
    pub in_transformers: bool,
    /// Keys of config.json that `generation_config.json` repeats. Empty: the export has no such file.
    pub generation_keys: &'static [&'static str],
    /// The layers that can have an adapter.
    pub adapts: Adaptable,
}

/// The config of a model, read and checked.
pub trait ModelConfig {
    fn parameters(&self) -> Vec<Parameter>;

    /// The data that it needs. `labels` are what a classifier predicts; absent where the data decides.
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

    /// The estimate of what a step holds, where the model has one.
    fn step_memory(&self) -> Option<&dyn StepMemory> {
        None
    }
}

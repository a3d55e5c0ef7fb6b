//! Everything that the runner and the trainer know about an architecture. Each model's folder defines its own.

use serde_json::{Map, Value};

use crate::tokenization::Tokenization;
use crate::{ConfigError, ModelConfig, Starter};

/// Reads and checks the config.json of a model.
pub type ReadConfig = fn(&Map<String, Value>) -> Result<Box<dyn ModelConfig>, ConfigError>;

pub struct Architecture {
    pub read: ReadConfig,
    /// What `pipe init` writes.
    pub starter: Starter,
    /// Absent for a model that reads no text.
    pub tokenization: Option<Tokenization>,
    /// Whether transformers loads the exported model.
    pub in_transformers: bool,
    /// Keys of config.json that `generation_config.json` repeats. Empty: the export has no such file.
    pub generation_keys: &'static [&'static str],
}

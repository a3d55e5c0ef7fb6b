//! What a model's folder gives to the registry.

use pipe_spec::pipeline::Arch;
use serde_json::{Map, Value};

use crate::{ConfigError, ModelConfig, Starter};

/// Reads the config.json of a model.
pub type ReadConfig = fn(Arch, &Map<String, Value>) -> Result<Box<dyn ModelConfig>, ConfigError>;

pub struct Architecture {
    /// Reads and checks a config.json. Architectures that share a folder differ in the first argument.
    pub read: ReadConfig,
    pub starter: fn(Arch) -> Starter,
}

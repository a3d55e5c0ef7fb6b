//! What can be wrong with a model's config.

use thiserror::Error;

#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("model config: {key}: {message}")]
pub struct ConfigError {
    pub key: String,
    pub message: String,
}

impl ConfigError {
    pub(crate) const MISSING: &str = "missing";

    /// Whether the config lacks a key, rather than saying something wrong.
    pub fn is_missing(&self) -> bool {
        self.message == Self::MISSING
    }
}

//! What can be wrong with a model's config.

use thiserror::Error;

#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("model config: {key}: {message}")]
pub struct ConfigError {
    pub key: String,
    pub message: String,
}

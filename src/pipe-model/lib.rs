//! The models as numbers: their configs, the parameters that follow from them, and what a training of them holds. Knows no
//! tensors, so that a plan needs no libtorch.

mod activation;
pub mod bert;
pub mod clip;
mod config_keys;
pub mod deberta;
mod error;
mod expects;
pub mod hybrid_cnn_lstm;
mod labels;
pub mod memory;
mod model;
pub mod mu_sota;
mod parameter;
pub mod t5;

pub use activation::Activation;
pub use config_keys::ConfigKeys;
pub use error::ConfigError;
pub use expects::{Expects, Scale};
pub use labels::Labels;
pub use model::ModelConfig;
pub use parameter::{Init, Parameter};

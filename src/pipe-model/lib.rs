//! The models as numbers: their configs, the parameters that follow from them, and what a training of them holds. Knows no
//! tensors, so that a plan needs no libtorch.

mod activation;
mod architecture;
pub mod bag_of_words;
pub mod bert;
pub mod clip;
mod config_keys;
pub mod deberta;
mod error;
pub mod hybrid_cnn_lstm;
mod labels;
pub mod memory;
mod model_config;
pub mod mu_sota;
mod parameter;
mod registry;
mod starter;
pub mod t5;
mod task_data;
mod tokenization;

pub use activation::Activation;
pub use architecture::Architecture;
pub use config_keys::ConfigKeys;
pub use error::ConfigError;
pub use labels::Labels;
pub use model_config::ModelConfig;
pub use parameter::{Init, Parameter};
pub use registry::{architecture, read_config, starter};
pub use starter::{ModelSize, Recipe, Starter, StarterSizes};
pub use task_data::{Scale, TaskData};
pub use tokenization::{Algorithm, Roles, Template, Tokenization, TrainedTokenizer, VocabularyFormat};

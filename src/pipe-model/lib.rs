//! The models as numbers: their configs, the parameters that follow from them, and what a training of them holds. Knows
//! no tensors, so that a plan needs no libtorch.

mod adaptable;
pub mod adapter;
mod architecture;
pub mod bag_of_words;
pub mod bert;
pub mod clip;
mod config_keys;
pub mod deberta;
mod estimate;
pub mod hybrid_cnn_lstm;
pub mod llama;
pub mod memory;
pub mod mu_sota;
mod parameter;
mod registry;
pub mod resnet;
pub mod t5;
pub mod tabular;
mod task_data;
pub mod vit;

pub use adaptable::Adaptable;
pub use architecture::{Algorithm, Roles, Template, Tokenization, TrainedTokenizer, VocabularyFormat};
pub use architecture::{Architecture, ModelConfig};
pub use architecture::{ModelSize, Starter, StarterSizes, StarterTraining};
pub use config_keys::{Activation, ConfigError, ConfigKeys};
pub use parameter::{Init, Parameter};
pub use registry::{architecture, read_config, starter};
pub use task_data::{Feature, FeatureKind, LabelUnit, Labels, Scale, TableColumns, TaskData, named_task, with_task};

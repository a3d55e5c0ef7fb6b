//! What a run reads: the pipeline file, and the data, tokenizer and model that it names, found, checked and prepared. Starts nothing.

pub mod data_cache;
mod inputs;
pub mod load;
mod model_config;
mod named_paths;
pub mod preflight;

pub use inputs::{Input, Inputs, Mount, Numbering, Prepared, TOKENIZER_FOLDER, TokenizerTraining};
pub use model_config::{model_config, read_config};
pub use named_paths::named_paths;

//! The inputs of a run: the pipeline file, and the data, tokenizer and model that it names, found, checked and prepared. Starts nothing.

pub mod data_cache;
pub mod hub;
mod inputs;
pub mod load;
pub mod preflight;

pub use inputs::{
    ADAPTER_FOLDER, Input, Inputs, Mount, Numbering, Prepared, TOKENIZER_FOLDER, TokenizerTraining, data_hash,
    model_config, named_paths, read_config,
};

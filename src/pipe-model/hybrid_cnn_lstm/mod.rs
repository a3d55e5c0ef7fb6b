//! HybridCNNLSTM.

mod config;
mod memory;
mod parameters;

pub use config::{HybridConfig, NormKind};
pub use memory::stages;
pub use parameters::{lstm_suffixes, parameters};

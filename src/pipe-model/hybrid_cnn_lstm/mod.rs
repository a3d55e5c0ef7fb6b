//! HybridCNNLSTM.

mod attention;
mod config;
mod lstm;
mod memory;
mod parameters;
mod sizes;

pub use config::{HybridConfig, NormKind};
pub use memory::stages;
pub use parameters::{lstm_suffixes, parameters};

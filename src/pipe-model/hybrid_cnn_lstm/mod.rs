//! HybridCNNLSTM.

mod architecture;
mod attention;
mod config;
mod lstm;
mod memory;
mod parameters;
mod sizes;

pub use architecture::ARCHITECTURE;
pub use config::{HybridConfig, NormKind};
pub use parameters::{lstm_suffixes, parameters};

//! DeBERTa-v2 and -v3.

mod config;
mod memory;
mod parameters;

pub use config::{ConvConfig, DebertaConfig, Relative};
pub use memory::stages;
pub use parameters::parameters;

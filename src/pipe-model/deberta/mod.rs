//! DeBERTa-v2 and -v3.

mod architecture;
mod config;
mod memory;
mod parameters;

pub use architecture::ARCHITECTURE;
pub use config::{ConvConfig, DebertaConfig, Relative};
pub use parameters::parameters;

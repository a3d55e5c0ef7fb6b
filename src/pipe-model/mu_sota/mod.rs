//! MU-SOTA.

mod config;
mod memory;
mod parameters;

pub use config::MuSotaConfig;
pub use memory::stages;
pub use parameters::parameters;

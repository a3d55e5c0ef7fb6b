//! MU-SOTA.

mod config;
mod memory;
mod parameters;
mod sizes;

pub use config::MuSotaConfig;
pub use memory::stages;
pub use parameters::parameters;

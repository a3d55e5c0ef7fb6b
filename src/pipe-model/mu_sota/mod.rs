//! MU-SOTA.

mod architecture;
mod config;
mod memory;
mod parameters;
mod sizes;

pub use architecture::ARCHITECTURE;
pub use config::MuSotaConfig;
pub use parameters::parameters;

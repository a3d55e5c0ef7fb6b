//! T5.

mod architecture;
mod config;
mod memory;
mod parameters;
mod sizes;

pub use architecture::ARCHITECTURE;
pub use config::{FeedForwardKind, T5Config};
pub use parameters::parameters;

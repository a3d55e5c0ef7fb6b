//! T5.

mod config;
mod memory;
mod parameters;
mod sizes;

pub use config::{FeedForwardKind, T5Config};
pub use memory::stages;
pub use parameters::parameters;

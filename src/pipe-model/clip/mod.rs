//! CLIP.

mod architecture;
mod config;
mod layer;
mod memory;
mod parameters;

pub use architecture::ARCHITECTURE;
pub use config::{ClipConfig, TextConfig, TowerConfig, VisionConfig};
pub use parameters::parameters;

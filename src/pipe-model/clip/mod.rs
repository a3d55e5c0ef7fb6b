//! CLIP.

mod config;
mod layer;
mod memory;
mod parameters;

pub use config::{ClipConfig, TextConfig, TowerConfig, VisionConfig};
pub use memory::stages;
pub use parameters::parameters;

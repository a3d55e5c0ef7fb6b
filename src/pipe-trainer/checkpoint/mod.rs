//! Checkpoints: folders that are complete or absent, each file with its checksum.

mod identity;
mod manifest;
mod store;

pub use identity::{Identity, SavedState};
pub use store::{Checkpoint, Store};

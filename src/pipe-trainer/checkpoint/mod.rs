//! Checkpoints: folders that are complete or absent, each file with its checksum.

mod manifest;
mod store;

pub use manifest::{Identity, MetricRecords, SavedState};
pub use store::{Checkpoint, Store};

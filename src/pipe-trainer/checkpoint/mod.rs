//! Checkpoints: folders that are complete or absent, each file with its checksum.

mod manifest;
mod metric_record;
mod store;

pub use manifest::{Identity, SavedState};
pub use metric_record::MetricRecords;
pub use store::{Checkpoint, Store};

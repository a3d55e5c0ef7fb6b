//! From files to the parts of a step: rows, their order, their tokens, and a loader that prepares steps ahead.

mod encoder;
mod jsonl;
mod loader;
mod part;
mod plan;
mod rows;

pub use encoder::{Encoder, Sample};
pub use loader::{Loader, Reader, workers};
pub use part::{IGNORED, Part, PartShape};
pub use plan::Plan;
pub use rows::Rows;

//! Data files that cannot be read at random (Parquet, gzip, zstd) are written out once as files that can, in a cache folder:
//! JSON lines, CSV or plain text. The trainer reads these; the lock and the user's messages name the original. A tokenizer that
//! is trained on data lies there too.
//!
//! Knows nothing of engines and containers.

mod entry;
mod output;
mod prepared_inputs;
mod source;
#[cfg(test)]
mod tests;
mod tokenizer;

pub use entry::{entries, is_used, remove_entry};
pub use pipe_data::{ColumnSelection, Format, check, full_ending};
pub use prepared_inputs::{PreparedInputs, needs_preparation, prepare_inputs};

//! Rows out of data files: CSV, JSON lines, plain texts and Parquet, plain or compressed. The runner and the trainer read data
//! files with this crate alone.
//!
//! - [`Rows`] and [`Documents`] read plain files at random, as a training does; [`CsvRecords`] reads a table from its beginning.
//! - [`ParquetTable`] and [`compressed`] turn Parquet and compressed files into plain ones, in bounded memory.
//! - [`DataTable`] is the beginning of any data file.
//!
//! Files are not trusted: every error names the file, and the line or row where there is one. The crate knows nothing of caches,
//! containers, tokenizers and tensors.

mod columns;
pub mod compressed;
mod csv;
mod format;
mod jsonl;
mod parquet;
mod preview;
mod row;
mod rows;
#[cfg(test)]
mod tests;

pub use columns::ColumnSelection;
pub use csv::{CsvRecords, StringRecord, line_of};
pub use format::{Compression, Format, content_size, full_ending, guarded, inner_ending, panic_message, reader_thread};
pub use parquet::ParquetTable;
pub use preview::{DataTable, Layout, check};
pub use row::{DataError, Place, kind};
pub use rows::{Documents, Rows};

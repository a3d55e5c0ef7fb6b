//! Rows out of data files: CSV, JSON, CoNLL, plain texts, Parquet and Excel workbooks, plain or compressed, in UTF-8 or not. The runner
//! and the trainer read data files with this crate alone.
//!
//! - [`Rows`] and [`Documents`] read plain files at random, as a training does; [`CsvRecords`] reads a table from its beginning.
//! - [`ParquetTable`], [`tables`] and [`compressed`] turn other files into plain ones, in bounded memory.
//! - [`open_pictures`] lists the pictures of folders, whose names are classes.
//! - [`DataTable`] is the beginning of any data file.
//!
//! Files are not trusted: every error names the file, and the line or row where there is one. The crate knows nothing of caches,
//! containers, tokenizers and tensors.

mod columns;
pub mod compressed;
mod conll;
mod csv;
mod first_line;
mod format;
mod jsonl;
mod parquet;
mod pictures;
mod preview;
mod row;
mod rows;
pub mod tables;
#[cfg(test)]
mod tests;

pub use columns::{ColumnSelection, amount};
pub use csv::{CsvRecords, StringRecord, line_of, uneven};
pub use first_line::is_missing_number;
pub use format::{
    Compression, Format, content_size, full_ending, guarded, inner_ending, panic_message, reader_thread, text_ending,
};
pub use jsonl::write_csv;
pub use parquet::ParquetTable;
pub use pictures::{ListedPicture, is_picture, list_pictures, open_pictures};
pub use preview::{DataTable, Layout, check, notes, unreadable};
pub use row::{DataError, Place, kind};
pub use rows::{Documents, Rows};

//! What people and scripts see: progress, tables, JSON. stdout is data, stderr is everything else.

pub mod html;
mod progress;
mod stdout;
mod summary;
mod table;

pub use progress::{FetchProgress, Reporter, grouped};
pub use stdout::{print, print_bytes, print_json};
pub use table::{Table, attempts_table, duration};

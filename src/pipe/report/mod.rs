//! What people and scripts see: progress, tables, JSON. stdout is data, stderr is everything else.

mod check;
mod classes;
mod number;
mod progress;
mod result;
mod stderr;
mod stdout;
mod summary;
mod table;
mod visible;
mod wrap;

pub use check::{Check, CheckStatus};
pub use classes::class_table;
pub use number::{figure, grouped, speed, times_ranks};
pub use progress::{FetchProgress, Reporter, StepLine};
pub use result::{ResultFiles, metrics_table, result_lines};
pub use stderr::{ask, say};
pub use stdout::{outlive_stdout, print, print_data, print_json, print_json_line};
pub use table::{Table, attempts_table, duration, steps, steps_table};
pub use visible::{visible, visible_line};
pub use wrap::{bounded, stdout_columns, wrap};

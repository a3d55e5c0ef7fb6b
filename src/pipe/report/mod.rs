//! What people and scripts see: progress, tables, JSON. stdout is data, stderr is everything else.

pub mod compare;
pub mod html;
mod output;
mod result;
mod table;
mod terminal;
mod text;

pub use output::{ask, outlive_stdout, print, print_data, print_json, print_json_line, say};
pub use result::{ResultFiles, class_table, metrics_table, result_lines};
pub use table::{Table, attempts_table, duration, steps, steps_table};
pub use terminal::{FetchProgress, Output, Reporter, StepLine};
pub use text::{bounded, figure, grouped, speed, stdout_columns, times_ranks, visible, visible_line, wrap};

//! The output for people and scripts: progress, tables, JSON. stdout is data, stderr is everything else.

pub mod compare;
pub mod html;
mod output;
mod result;
mod table;
mod terminal;
mod text;

pub use output::{ask, outlive_stdout, print, print_data, print_json, print_json_line, say};
pub use result::{ResultFiles, class_table, metrics_table, result_lines};
pub use table::{Table, attempts_table, duration, stages_table, steps};
pub use terminal::{ChildLine, FetchProgress, Output, Reporter};
pub use text::{bounded, figure, grouped, speed, stdout_columns, times_ranks, visible, visible_line, wrap};

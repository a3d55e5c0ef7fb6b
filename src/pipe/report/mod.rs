//! The output for people and scripts: progress, tables, JSON. stdout is data, stderr is everything else.

pub mod answer;
pub mod compare;
pub mod html;
mod result;
mod table;
mod terminal;
mod text;

use std::io::{ErrorKind, IsTerminal, Write};
use std::sync::atomic::{AtomicBool, Ordering};

use serde::Serialize;
use text::visible_json;

pub use result::{ResultFiles, answer_lines, class_table, metrics_table, result_lines};
pub use table::{Table, attempts_table, duration, stages_table, steps};
pub use terminal::{ChildLine, FetchProgress, Output, Pace, Reporter, span};
pub use text::{bounded, figure, grouped, speed, stdout_columns, times_ranks, visible, visible_line, wrap};

/// Whether this process goes on where stdout cannot be written.
static OUTLIVES_STDOUT: AtomicBool = AtomicBool::new(false);
/// Whether stdout could not be written.
static IS_CLOSED: AtomicBool = AtomicBool::new(false);

/// From here on this process drives a run, which ends by itself whoever reads its output: where stdout is closed or full,
/// the output is dropped.
pub fn outlive_stdout() {
    OUTLIVES_STDOUT.store(true, Ordering::Relaxed);
}

/// Prints `text` for people, with a line end.
pub fn print(text: &str) {
    write_line(&visible(text));
}

/// Prints the content of a file, as it is; a terminal shows its control characters and does not obey them.
pub fn print_data(bytes: &[u8]) {
    let out = std::io::stdout();
    if out.is_terminal() { write(visible(&String::from_utf8_lossy(bytes)).as_bytes()) } else { write(bytes) }
}

/// Prints `value` as indented JSON.
pub fn print_json(value: &impl Serialize) {
    write_json(&serde_json::to_string_pretty(value).expect("what pipe prints can be written as JSON"));
}

/// Prints `value` as a line of JSON.
pub fn print_json_line(value: &impl Serialize) {
    write_json(&serde_json::to_string(value).expect("what pipe prints can be written as JSON"));
}

fn write_json(text: &str) {
    if std::io::stdout().is_terminal() { write_line(&visible_json(text)) } else { write_line(text) }
}

fn write_line(text: &str) {
    write(format!("{text}\n").as_bytes());
}

fn write(bytes: &[u8]) {
    if IS_CLOSED.load(Ordering::Relaxed) {
        return;
    }
    let mut out = std::io::stdout().lock();
    let Err(error) = out.write_all(bytes).and_then(|()| out.flush()) else { return };
    let has_reader = error.kind() != ErrorKind::BrokenPipe;
    let outlives = OUTLIVES_STDOUT.load(Ordering::Relaxed);
    if has_reader {
        let more = if outlives { "; the run goes on without it" } else { "" };
        say(&format!("warning: cannot write to stdout: {error}{more}"));
    }
    if !outlives {
        std::process::exit(i32::from(has_reader));
    }
    IS_CLOSED.store(true, Ordering::Relaxed);
}

/// Prints `text` with a line end.
pub fn say(text: &str) {
    // A closed terminal does not stop the command.
    writeln!(std::io::stderr().lock(), "{}", visible(text)).ok();
}

/// Prints a question, after which the cursor stays.
pub fn ask(question: &str) {
    let mut stderr = std::io::stderr().lock();
    write!(stderr, "{}", visible_line(question)).and_then(|()| stderr.flush()).ok();
}

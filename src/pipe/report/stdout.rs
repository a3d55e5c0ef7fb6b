//! Data on stdout, the only place that writes to it. A reader that has seen enough and closes the pipe is no error.

use std::io::{ErrorKind, IsTerminal, Write};

use serde::Serialize;

use super::visible::{visible, visible_json};

/// Prints `text` for people, with a line end.
pub fn print(text: &str) {
    write_line(&visible(text));
}

/// Prints the content of a file, as it is; a terminal shows its control characters and does not obey them.
pub fn print_data(bytes: &[u8]) {
    let out = std::io::stdout();
    match out.is_terminal() {
        true => write(visible(&String::from_utf8_lossy(bytes)).as_bytes()),
        false => write(bytes),
    }
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
    match std::io::stdout().is_terminal() {
        true => write_line(&visible_json(text)),
        false => write_line(text),
    }
}

fn write_line(text: &str) {
    let mut out = std::io::stdout().lock();
    end_unless(writeln!(out, "{text}").and_then(|()| out.flush()));
}

fn write(bytes: &[u8]) {
    let mut out = std::io::stdout().lock();
    end_unless(out.write_all(bytes).and_then(|()| out.flush()));
}

fn end_unless(written: std::io::Result<()>) {
    if let Err(error) = written {
        let code = if error.kind() == ErrorKind::BrokenPipe { 0 } else { 1 };
        std::process::exit(code);
    }
}

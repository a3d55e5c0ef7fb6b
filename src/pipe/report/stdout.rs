//! Data on stdout. A reader that has seen enough and closes the pipe is no error.

use std::io::{ErrorKind, Write};

use serde::Serialize;

/// Prints `text` with a line end.
pub fn print(text: &str) {
    let mut out = std::io::stdout().lock();
    if let Err(error) = writeln!(out, "{text}").and_then(|()| out.flush()) {
        let code = if error.kind() == ErrorKind::BrokenPipe { 0 } else { 1 };
        std::process::exit(code);
    }
}

/// Prints `value` as indented JSON.
pub fn print_json(value: &impl Serialize) {
    print(&serde_json::to_string_pretty(value).expect("what pipe prints can be written as JSON"));
}

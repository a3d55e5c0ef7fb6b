//! Data on stdout. A reader that has seen enough and closes the pipe is no error.

use std::io::{ErrorKind, Write};

use serde::Serialize;

/// Prints `text` with a line end.
pub fn print(text: &str) {
    let mut out = std::io::stdout().lock();
    end_unless(writeln!(out, "{text}").and_then(|()| out.flush()));
}

/// Prints bytes as they are.
pub fn print_bytes(bytes: &[u8]) {
    let mut out = std::io::stdout().lock();
    end_unless(out.write_all(bytes).and_then(|()| out.flush()));
}

fn end_unless(written: std::io::Result<()>) {
    if let Err(error) = written {
        let code = if error.kind() == ErrorKind::BrokenPipe { 0 } else { 1 };
        std::process::exit(code);
    }
}

/// Prints `value` as indented JSON.
pub fn print_json(value: &impl Serialize) {
    print(&serde_json::to_string_pretty(value).expect("what pipe prints can be written as JSON"));
}

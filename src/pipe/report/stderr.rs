//! Text for people on stderr, outside of the block of a run.

use std::io::Write;

use super::visible::{visible, visible_line};

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

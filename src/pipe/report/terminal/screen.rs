//! The bottom of a terminal, where the block of a run is drawn a few times a second by a thread of its own.
//!
//! Every line ends where its text ends. Lines that are filled up to the edge of the terminal, as those of a progress bar are,
//! become one long line to it, and garbage when it is resized in the course of hours.

use std::io::Write;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use console::{Term, measure_text_width};

use super::block::{self, TerminalSize};
use super::view::View;
use crate::system::clock::now;

/// The time between two drawings.
const REDRAW_INTERVAL: Duration = Duration::from_millis(250);

pub struct Screen {
    terminal: Arc<Mutex<Terminal>>,
    /// Dropped to end the thread.
    end: Option<Sender<()>>,
    painter: Option<JoinHandle<()>>,
}

impl Screen {
    /// Shows `view` until it is dropped, and nothing of it afterwards.
    pub fn open(view: Arc<Mutex<View>>) -> Self {
        let terminal = Arc::new(Mutex::new(Terminal { term: Term::stderr(), drawn: Vec::new(), view }));
        let (end, ended) = mpsc::channel::<()>();
        let painter = {
            let terminal = terminal.clone();
            std::thread::spawn(move || {
                while ended.recv_timeout(REDRAW_INTERVAL) == Err(RecvTimeoutError::Timeout) {
                    lock(&terminal).draw("");
                }
            })
        };
        lock(&terminal).draw("");
        Self { terminal, end: Some(end), painter: Some(painter) }
    }

    /// A line above the block.
    pub fn say(&self, line: &str) {
        lock(&self.terminal).draw(&format!("{line}\n"));
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        self.end.take();
        if let Some(painter) = self.painter.take() {
            painter.join().ok();
        }
        lock(&self.terminal).clear();
    }
}

/// A panic while drawing leaves nothing that cannot be drawn over.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Terminal {
    term: Term,
    /// The widths of the lines that are on the screen; the cursor is at the end of the last one.
    drawn: Vec<usize>,
    view: Arc<Mutex<View>>,
}

impl Terminal {
    fn size(&self) -> TerminalSize {
        let (rows, columns) = self.term.size_checked().filter(|size| size.1 > 0).unwrap_or((24, 80));
        TerminalSize { columns: columns.into(), rows: rows.into(), colours: console::colors_enabled_stderr() }
    }

    /// Writes `above` and redraws the block below it, in one write, so that nothing flickers.
    fn draw(&mut self, above: &str) {
        let size = self.size();
        let lines = block::lines(&lock(&self.view), now(), size);
        let mut text = back(&self.drawn, size.columns);
        let above = if above.is_empty() { String::new() } else { format!("\u{1b}[J{above}") };
        // The old text may be longer, or have more lines.
        text.push_str(&format!("{above}{}\u{1b}[K\u{1b}[J", lines.join("\u{1b}[K\n")));
        self.drawn = lines.iter().map(|line| measure_text_width(line)).collect();
        self.write(&text);
    }

    fn clear(&mut self) {
        let text = format!("{}\u{1b}[J", back(&self.drawn, self.size().columns));
        self.drawn.clear();
        self.write(&text);
    }

    fn write(&self, text: &str) {
        // A closed terminal does not stop the run.
        let mut stderr = std::io::stderr().lock();
        stderr.write_all(text.as_bytes()).and_then(|()| stderr.flush()).ok();
    }
}

/// To the beginning of lines of these widths. A terminal that has become narrower has broken those that were too wide.
fn back(drawn: &[usize], columns: usize) -> String {
    let rows: usize = drawn.iter().map(|width| width.div_ceil(columns.max(1)).max(1)).sum();
    match rows.saturating_sub(1) {
        0 => "\r".to_owned(),
        rows => format!("\r\u{1b}[{rows}A"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_way_back_counts_broken_lines() {
        for (drawn, columns, want) in [
            (&[][..], 80, "\r"),
            (&[0], 80, "\r"),
            (&[80], 80, "\r"),
            (&[80, 80], 80, "\r\u{1b}[1A"),
            (&[80, 0, 41], 40, "\r\u{1b}[4A"),
            (&[5], 0, "\r\u{1b}[4A"),
        ] {
            assert_eq!(back(drawn, columns), want, "{drawn:?} {columns}");
        }
    }
}

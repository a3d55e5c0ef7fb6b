//! The progress of data that is prepared: a bar for the bytes that are read, now and then a line where there is no terminal.

use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use pipe_spec::text::human_bytes;

use super::Reporter;
use super::pace::line_interval;

/// Shows that data is prepared while it is there.
pub struct DataProgress<'a> {
    reporter: &'a mut Reporter,
    bar: Option<ProgressBar>,
    on_terminal: bool,
    bytes: u64,
    began: Instant,
    last_line: Instant,
}

impl<'a> DataProgress<'a> {
    /// Draws only where `on_terminal`.
    pub(super) fn new(reporter: &'a mut Reporter, on_terminal: bool) -> Self {
        let now = Instant::now();
        Self { reporter, bar: None, on_terminal, bytes: 0, began: now, last_line: now }
    }

    /// `what` is prepared from here on, in which `bytes` are to be read.
    pub fn begin(&mut self, what: &str, bytes: u64) {
        self.reporter.note(&format!("preparing {what} ({}), once", human_bytes(bytes)));
        self.reporter.hide();
        (self.bytes, self.began, self.last_line) = (bytes, Instant::now(), Instant::now());
        let bar = if self.on_terminal { ProgressBar::new(bytes) } else { ProgressBar::hidden() };
        let template = "{msg} {bar:24} {bytes} of {total_bytes}, {bytes_per_sec}, {eta}";
        bar.set_style(ProgressStyle::with_template(template).expect("the template is valid"));
        bar.set_message("preparing");
        bar.enable_steady_tick(Duration::from_millis(250));
        self.bar = Some(bar);
    }

    /// So many bytes were read.
    pub fn set(&mut self, bytes: u64) {
        let Some(bar) = &self.bar else { return };
        bar.set_position(bytes);
        if !self.on_terminal && self.last_line.elapsed() >= line_interval(self.began.elapsed()) {
            self.last_line = Instant::now();
            self.reporter.say(&format!("  {} of {} read", human_bytes(bytes), human_bytes(self.bytes)));
        }
    }

    /// A line above the bar.
    pub fn note(&self, line: &str) {
        match &self.bar {
            Some(bar) => bar.suspend(|| self.reporter.note(line)),
            None => self.reporter.note(line),
        }
    }

    /// All of it is there.
    pub fn end(&mut self, line: &str) {
        self.clear();
        self.reporter.note(line);
    }

    fn clear(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
    }
}

impl Drop for DataProgress<'_> {
    fn drop(&mut self) {
        self.clear();
    }
}

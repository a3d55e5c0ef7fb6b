//! The progress of an image build: a bar for the bytes that are sent, the log of the builder above it.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

use super::Reporter;
use crate::image::BuildWatcher;

/// Shows an image build while it is there.
pub struct ImageProgress<'a> {
    reporter: &'a mut Reporter,
    bar: ProgressBar,
}

impl<'a> ImageProgress<'a> {
    /// Draws only where `on_terminal`.
    pub(super) fn new(reporter: &'a mut Reporter, size: u64, on_terminal: bool) -> Self {
        let bar = if on_terminal { ProgressBar::new(size) } else { ProgressBar::hidden() };
        let template = "{msg} {bar:24} {bytes} of {total_bytes}, {bytes_per_sec}, {eta}";
        bar.set_style(ProgressStyle::with_template(template).expect("the template is valid"));
        bar.set_message("sending");
        bar.enable_steady_tick(Duration::from_millis(250));
        Self { reporter, bar }
    }
}

impl BuildWatcher for ImageProgress<'_> {
    fn sent(&mut self, bytes: u64) {
        self.bar.inc(bytes);
    }

    fn line(&mut self, line: &str) {
        self.bar.set_message("building");
        // The names that the builder gives to its intermediate containers are of no use to anybody.
        if !line.starts_with(" ---> ") && !line.starts_with("Removing intermediate container ") {
            self.bar.suspend(|| self.reporter.note(&format!("  {line}")));
        }
    }
}

impl Drop for ImageProgress<'_> {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

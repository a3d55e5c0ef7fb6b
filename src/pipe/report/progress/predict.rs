//! The progress of a prediction: a bar on a terminal, nothing elsewhere.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

use super::Reporter;

/// Shows a bar from `begin` on, while it is there.
pub struct PredictProgress<'a> {
    reporter: &'a mut Reporter,
    bar: Option<ProgressBar>,
    on_terminal: bool,
}

impl<'a> PredictProgress<'a> {
    /// Draws only where `on_terminal`.
    pub(super) fn new(reporter: &'a mut Reporter, on_terminal: bool) -> Self {
        Self { reporter, bar: None, on_terminal }
    }

    /// So many predictions will be made.
    pub fn begin(&mut self, predictions: u64) {
        if !self.on_terminal {
            return;
        }
        let bar = ProgressBar::new(predictions);
        let template = "predicting {bar:24} {human_pos} of {human_len}, {eta}";
        bar.set_style(ProgressStyle::with_template(template).expect("the template is valid"));
        bar.enable_steady_tick(Duration::from_millis(250));
        self.bar = Some(bar);
    }

    /// So many are made.
    pub fn set(&mut self, predictions: u64) {
        if let Some(bar) = &self.bar {
            bar.set_position(predictions);
        }
    }

    /// A line above the bar.
    pub fn note(&self, line: &str) {
        match &self.bar {
            Some(bar) => bar.suspend(|| self.reporter.note(line)),
            None => self.reporter.note(line),
        }
    }
}

impl Drop for PredictProgress<'_> {
    fn drop(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
    }
}

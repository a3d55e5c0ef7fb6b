//! The progress of an image build.

use super::Reporter;
use super::screen::lock;
use crate::engine::docker::build::BuildWatcher;

/// Shows an image build while it is there.
pub struct ImageProgress<'a> {
    pub(super) reporter: &'a mut Reporter,
}

impl BuildWatcher for ImageProgress<'_> {
    fn sent(&mut self, bytes: u64) {
        if let Some((sent, _)) = &mut lock(&self.reporter.view).sent {
            *sent += bytes;
        }
    }

    fn line(&mut self, line: &str) {
        // The names that the builder gives to its intermediate containers are of no use to anybody.
        if !line.starts_with(" ---> ") && !line.starts_with("Removing intermediate container ") {
            self.reporter.note(&format!("  {line}"));
        }
    }
}

impl Drop for ImageProgress<'_> {
    fn drop(&mut self) {
        lock(&self.reporter.view).sent = None;
        self.reporter.hide();
    }
}

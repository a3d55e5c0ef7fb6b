//! Progress bars: data, downloads, images, predictions.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use pipe_spec::text::{count, human_bytes};

use super::pace::{line_interval, span};
use super::view::lock;
use super::{Mode, Reporter};
use crate::image::BuildWatcher;
use crate::report::say;

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

/// Shows how far files have come. Clones show the same.
#[derive(Clone)]
pub struct FetchProgress {
    mode: Mode,
    state: Arc<Mutex<Option<State>>>,
}

/// While files are fetched.
struct State {
    name: String,
    bar: ProgressBar,
    /// Bytes of each file that are there.
    done: Vec<u64>,
    /// Bytes that were there at the beginning.
    before: u64,
    total: u64,
    began: Instant,
    last_line: Instant,
}

impl FetchProgress {
    pub(super) fn new(mode: Mode) -> Self {
        Self { mode, state: Arc::default() }
    }

    /// Files of `name` are fetched, each with so many bytes that are there, and its size.
    pub fn begin(&self, name: &str, sizes: Vec<(u64, u64)>) {
        let (before, total) = sizes.iter().fold((0, 0), |sum, file| (sum.0 + file.0, sum.1 + file.1));
        let files = count(sizes.len(), "file");
        let here = if before > 0 { format!(", {} of them here already", human_bytes(before)) } else { String::new() };
        self.note(&format!("fetching {name}: {files}, {}{here}", human_bytes(total)));
        let bar = if self.mode == Mode::Block { ProgressBar::new(total) } else { ProgressBar::hidden() };
        let template = "{msg} {bar:24} {bytes} of {total_bytes}, {bytes_per_sec}, {eta}";
        bar.set_style(ProgressStyle::with_template(template).expect("the template is valid"));
        bar.set_message("fetching");
        bar.set_position(before);
        // Speed and time left are those of what is fetched now.
        bar.reset_eta();
        bar.enable_steady_tick(Duration::from_millis(250));
        let (done, now) = (sizes.into_iter().map(|file| file.0).collect(), Instant::now());
        *lock(&self.state) =
            Some(State { name: name.to_owned(), bar, done, before, total, began: now, last_line: now });
    }

    /// File number `index` has come so far.
    pub fn at(&self, index: usize, bytes: u64) {
        let line = {
            let mut state = lock(&self.state);
            let Some(state) = state.as_mut() else { return };
            let Some(done) = state.done.get_mut(index) else { return };
            *done = bytes;
            state.bar.set_position(state.done.iter().sum());
            state.line()
        };
        if let Some(line) = line.filter(|_| matches!(self.mode, Mode::Lines | Mode::Json)) {
            self.note(&line);
        }
    }

    /// A line for people.
    pub fn note(&self, line: &str) {
        match (self.mode, lock(&self.state).as_ref()) {
            (Mode::Quiet, _) => {}
            (_, Some(state)) => state.bar.suspend(|| say(line)),
            (_, None) => say(line),
        }
    }

    /// Everything is there, or something failed.
    pub fn end(&self, is_done: bool) {
        let Some(state) = lock(&self.state).take() else { return };
        state.bar.finish_and_clear();
        if is_done {
            let time = span(state.began.elapsed().as_secs_f64());
            self.note(&format!("fetched {}: {} in {time}", state.name, human_bytes(state.total - state.before)));
        }
    }
}

impl State {
    /// How far it is, where that is worth a line.
    fn line(&mut self) -> Option<String> {
        if self.last_line.elapsed() < line_interval(self.began.elapsed()) {
            return None;
        }
        self.last_line = Instant::now();
        let done: u64 = self.done.iter().sum();
        let speed = done.saturating_sub(self.before) as f64 / self.began.elapsed().as_secs_f64().max(1e-3);
        let left = if speed > 0.0 { span((self.total - done) as f64 / speed) } else { "unknown time".to_owned() };
        let (done, total, speed) = (human_bytes(done), human_bytes(self.total), human_bytes(speed as u64));
        Some(format!("fetched {done} of {total}, {speed}/s, {left} left"))
    }
}

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

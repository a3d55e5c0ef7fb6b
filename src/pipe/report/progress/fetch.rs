//! The progress of what is fetched from the hub: a bar on a terminal, elsewhere a line now and then.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use pipe_spec::text::{count, human_bytes};

use super::Mode;
use super::pace::{line_interval, span};
use super::screen::lock;
use crate::report::say;

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

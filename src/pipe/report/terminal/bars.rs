//! Progress bars: data, downloads, images, predictions.
//!
//! The bottom of a terminal, where the block of a run is drawn a few times a second by a thread of its own.
//!
//! Every line ends where its text ends. Lines that are filled up to the edge of the terminal, as those of a progress bar are,
//! become one long line to it, and garbage when it is resized in the course of hours.

use std::io::Write;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use console::{Term, measure_text_width};
use indicatif::{ProgressBar, ProgressStyle};
use pipe_spec::text::{count, human_bytes};

use super::block::{self, TerminalSize};
use super::pace::{line_interval, span};
use super::view::View;
use super::{Mode, Reporter};
use crate::image::BuildWatcher;
use crate::report::say;
use crate::system::clock::now;

/// The time between two drawings.
const REDRAW_INTERVAL: Duration = Duration::from_millis(250);

/// A bar of bytes, which is drawn only `on_terminal`.
fn byte_bar(message: &'static str, total: u64, on_terminal: bool) -> ProgressBar {
    let bar = if on_terminal { ProgressBar::new(total) } else { ProgressBar::hidden() };
    let template = "{msg} {bar:24} {bytes} of {total_bytes}, {bytes_per_sec}, {eta}";
    bar.set_style(ProgressStyle::with_template(template).expect("the template is valid"));
    bar.set_message(message);
    bar.enable_steady_tick(REDRAW_INTERVAL);
    bar
}

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
        self.bar = Some(byte_bar("preparing", bytes, self.on_terminal));
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
        let bar = byte_bar("fetching", total, self.mode == Mode::Block);
        bar.set_position(before);
        // Speed and time left are those of this download.
        bar.reset_eta();
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
        Self { reporter, bar: byte_bar("sending", size, on_terminal) }
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
        bar.enable_steady_tick(REDRAW_INTERVAL);
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

//! The progress of a run: a block at the bottom of a terminal, plain lines elsewhere, events as JSON lines where a script
//! reads.

mod bars;
mod block;
mod pace;
mod view;

use std::fs::File;
use std::io::{IsTerminal, Write};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bars::{DataProgress, ImageProgress, PredictProgress, Screen, lock};
use pace::line_interval;
use pipe_spec::event::RecordedEvent;
use pipe_spec::pipeline::LossUnit;
use pipe_spec::text::human_bytes;
use pipe_spec::{Attempt, EventKind, RunState};
use serde_json::json;
use view::View;

use super::table::{ends_with_error_of_last_attempt, stages_table};
use super::text::{times_ranks, visible, visible_line};
use super::{
    ResultFiles, answer_lines, attempts_table, bounded, metrics_table, print, print_json_line, result, result_lines,
    say,
};
use crate::engine::Progress;
use crate::image::BuildWatcher;
use crate::run::stage_answers;

pub use bars::FetchProgress;
pub use pace::{Pace, span};
pub use view::ChildLine;

/// Characters of a command's line that are shown; its log has all of it.
const JOB_LINE: usize = 2000;

/// How much is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    /// Events on stdout, nothing but notes on stderr.
    Json,
    Block,
    Lines,
    /// Lines on stdout, from the log of an attempt.
    Log,
    Quiet,
}

pub struct Reporter {
    mode: Mode,
    view: Arc<Mutex<View>>,
    /// While the block is shown.
    screen: Option<Screen>,
    began: Instant,
    /// When the last line about a step was printed, since the beginning.
    last_line: Option<Duration>,
    journal: Option<File>,
    /// Why the last attempt ended: printed before the next line, unless the run ends with an error that says the same.
    reason: Mutex<Option<String>>,
    /// The name of a stage, and the lines that it would have printed.
    child: Option<(String, Mutex<Vec<String>>)>,
}

impl Progress for Reporter {
    fn note(&self, line: &str) {
        Self::note(self, line);
    }

    fn image_build<'a>(&'a mut self, name: &str, size: u64) -> Box<dyn BuildWatcher + 'a> {
        self.note(&format!("building the image {name} ({})", human_bytes(size)));
        self.hide();
        let on_terminal = self.mode == Mode::Block;
        Box::new(ImageProgress::new(self, size, on_terminal))
    }

    fn image_push<'a>(&'a mut self, name: &str, size: u64) -> Box<dyn BuildWatcher + 'a> {
        self.note(&format!("sending the image {name} ({})", human_bytes(size)));
        self.hide();
        let on_terminal = self.mode == Mode::Block;
        Box::new(ImageProgress::new(self, size, on_terminal))
    }
}

/// The form in which a command prints.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Output {
    /// Text for people.
    #[default]
    Text,
    /// Only errors and data.
    Quiet,
    /// JSON for scripts.
    Json,
}

impl Output {
    /// `--json` is stronger than `--quiet`.
    pub fn new(json: bool, quiet: bool) -> Self {
        match (json, quiet) {
            (true, _) => Self::Json,
            (false, true) => Self::Quiet,
            (false, false) => Self::Text,
        }
    }

    pub fn is_json(self) -> bool {
        self == Self::Json
    }
}

impl Reporter {
    pub fn new(output: Output) -> Self {
        let mode = match output {
            Output::Json => Mode::Json,
            Output::Quiet => Mode::Quiet,
            Output::Text if has_room_for_a_block() => Mode::Block,
            Output::Text => Mode::Lines,
        };
        Self::with_mode(mode)
    }

    /// For the events of a log: the lines of a run without a terminal, on stdout, with a line for every step.
    pub fn of_log() -> Self {
        Self::with_mode(Mode::Log)
    }

    /// For the run of a stage, or of a trial, whose lines are taken by `take_lines`.
    pub fn of_child(name: &str, json: bool) -> Self {
        let mode = if json { Mode::Json } else { Mode::Lines };
        Self { child: Some((name.to_owned(), Mutex::default())), ..Self::with_mode(mode) }
    }

    /// The lines of the child since the last time.
    pub fn take_lines(&self) -> Vec<String> {
        self.child.as_ref().map(|(_, lines)| std::mem::take(&mut *lock(lines))).unwrap_or_default()
    }

    /// How far the child has come, in a few words.
    pub fn brief(&self) -> String {
        lock(&self.view).brief()
    }

    /// Shows the stages of a pipeline in the block.
    pub fn show_stages(&mut self, stages: Vec<ChildLine>) {
        lock(&self.view).children = stages;
        self.show();
    }

    /// Shows a study in the block: its progress, and the trials that run.
    pub fn show_study(&mut self, facts: Vec<(&'static str, String)>, trials: Vec<ChildLine>) {
        let mut view = lock(&self.view);
        (view.facts, view.children) = (facts, trials);
        drop(view);
        self.show();
    }

    /// A study is over: `lines` say what it has found.
    pub fn study_ended(&mut self, state: &RunState, folder: &str, lines: &[String]) {
        self.hide();
        match self.mode {
            Mode::Json => {
                let mut line = json!({ "type": "study", "folder": folder });
                merge(&mut line, state);
                print_json_line(&line);
            }
            Mode::Block | Mode::Lines => {
                lines.iter().for_each(|line| print(line));
                print(&format!("study {} {}: {folder}", state.id, state.status.name()));
            }
            Mode::Log | Mode::Quiet => {}
        }
    }

    fn with_mode(mode: Mode) -> Self {
        Self {
            mode,
            view: Arc::default(),
            screen: None,
            began: Instant::now(),
            last_line: None,
            journal: None,
            reason: Mutex::default(),
            child: None,
        }
    }

    /// Whether stdout is for a script.
    pub fn prints_json(&self) -> bool {
        self.mode == Mode::Json
    }

    /// Sets the unit of the speed of the run.
    pub fn set_unit(&mut self, unit: LossUnit) {
        lock(&self.view).unit = unit;
    }

    /// From here on notes are written to `path` as well, for `pipe attach`.
    pub fn keep_journal(&mut self, path: &Path) {
        match File::options().create(true).append(true).open(path) {
            Ok(file) => self.journal = Some(file),
            Err(error) => self.say(&format!("warning: cannot write {}: {error}", path.display())),
        }
    }

    /// A line for people, which is also kept in the journal.
    pub fn note(&self, line: &str) {
        if let Some(mut journal) = self.journal.as_ref() {
            // A line that cannot be written is still shown.
            writeln!(journal, "{line}").ok();
        }
        self.say(line);
    }

    /// A line that a command has written, for people. Of a line that a progress bar wrote over and over the last state is shown.
    pub fn job_line(&self, line: &str) {
        let shown = line.trim_end_matches('\r').rsplit('\r').next().unwrap_or_default();
        self.say(&bounded(&visible_line(shown), JOB_LINE));
    }

    /// A line for people, above the block.
    pub fn say(&self, line: &str) {
        if let Some(reason) = lock(&self.reason).take() {
            self.write(&reason);
        }
        self.write(line);
    }

    fn write(&self, line: &str) {
        if let Some((_, lines)) = &self.child {
            return lock(lines).push(line.to_owned());
        }
        match (&self.screen, self.mode) {
            (_, Mode::Quiet) => {}
            (_, Mode::Log) => print(line),
            (Some(screen), _) => screen.say(&visible(line)),
            (None, Mode::Block | Mode::Json | Mode::Lines) => say(line),
        }
    }

    /// Sets the stage of the run.
    pub fn doing(&mut self, stage: &str) {
        lock(&self.view).set_stage(stage);
        self.show();
    }

    /// With `auto` the trainer finds the batch itself. `before` is the attempt before this one.
    pub fn attempt_started(&mut self, attempt: &Attempt, of: u32, auto: bool, before: Option<&Attempt>) {
        let batch = match (auto, attempt.has_batch) {
            (true, _) => "looking for the largest batch".to_owned(),
            (false, true) => format!("batch {} x accum {}{}", attempt.batch, attempt.accum, times_ranks(attempt.ranks)),
            (false, false) => String::new(),
        };
        let with = if batch.is_empty() { String::new() } else { format!(": {batch}") };
        self.say(&format!("attempt {} of at most {of}{with}", attempt.number));
        self.last_line = None;
        {
            let mut view = lock(&self.view);
            view.begin(attempt, of, batch, before);
            view.set_stage("starting");
        }
        self.show();
    }

    /// Takes in a past event without printing it, for `pipe attach`.
    pub fn replay(&mut self, recorded: &RecordedEvent) {
        lock(&self.view).take(&recorded.event);
    }

    pub fn event(&mut self, recorded: &RecordedEvent) {
        if self.mode == Mode::Json {
            self.print_json(recorded);
        }
        lock(&self.view).take(&recorded.event);
        match &recorded.event.kind {
            EventKind::Measured(measured) => self.say(&view::measurement(measured)),
            EventKind::Fitted(fitted) => self.say(&view::finding(fitted)),
            EventKind::Rehearsed(rehearsed) => self.say(&view::rehearsal(rehearsed)),
            EventKind::Started(started) => self.say(&view::start(started)),
            EventKind::Step(step) => self.step(step.step),
            EventKind::Eval(eval) => self.say(&view::evaluation(eval)),
            // The command's own line was shown.
            EventKind::Metrics(metrics) if self.mode == Mode::Log => self.say(&view::metrics(metrics)),
            EventKind::Metrics(_) => {}
            EventKind::Sample(sample) => self.say(&view::sample(sample)),
            EventKind::Checkpoint(checkpoint) => {
                tracing::debug!("saved {} ({})", checkpoint.path, human_bytes(checkpoint.bytes));
            }
            EventKind::Warning(warning) => self.say(&format!("warning: {}", warning.message)),
            // In a run the end of the attempt tells it.
            EventKind::Oom(record) if self.mode == Mode::Log => self.say(&view::shortage(record)),
            EventKind::Finished(finished) if self.mode == Mode::Log => self.say(&view::end(finished)),
            EventKind::Oom(_) | EventKind::Finished(_) => {}
        }
    }

    /// A plain line for the first step, the last, and now and then one between them; in a log for every step.
    fn step(&mut self, step: u64) {
        let since = self.began.elapsed();
        let interval = match self.mode {
            Mode::Lines => line_interval(since),
            Mode::Log => Duration::ZERO,
            Mode::Json | Mode::Block | Mode::Quiet => return,
        };
        let line = {
            let view = lock(&self.view);
            let Some(training) = &view.training else { return };
            let is_due = self.last_line.is_none_or(|at| since.saturating_sub(at) >= interval);
            view::step(training).filter(|_| is_due || step == training.started.steps)
        };
        if let Some(line) = line {
            self.last_line = Some(since);
            self.say(&line);
        }
    }

    pub fn attempt_ended(&mut self, attempt: &Attempt) {
        self.hide();
        {
            let mut view = lock(&self.view);
            (view.training, view.metrics) = (None, None);
        }
        if self.mode == Mode::Json {
            let mut line = json!({ "type": "attempt" });
            merge(&mut line, attempt);
            self.print_json(&line);
        }
        if let Some(reason) = &attempt.reason {
            let outcome = attempt.outcome.map_or("", pipe_spec::Outcome::name);
            *lock(&self.reason) = Some(format!("attempt {}: {outcome}: {reason}", attempt.number));
        }
    }

    /// A line for a script, with the name of the stage or trial that it is about.
    fn print_json(&self, line: &impl serde::Serialize) {
        let Some((name, _)) = &self.child else { return print_json_line(line) };
        let mut named = json!({ "in": name });
        merge(&mut named, line);
        print_json_line(&named);
    }

    /// The run is over: the table of its attempts, its evaluations, and where its model is.
    pub fn run_ended(&mut self, state: &RunState, folder: &str) {
        self.hide();
        let reason = lock(&self.reason).take();
        reason.filter(|_| !ends_with_error_of_last_attempt(state)).iter().for_each(|reason| self.say(reason));
        if let Err(error) = result::add(state) {
            self.say(&format!("warning: cannot write to GITHUB_STEP_SUMMARY: {error}"));
        }
        match self.mode {
            Mode::Json => {
                let mut line = json!({ "type": "run", "folder": folder });
                merge(&mut line, state);
                merge(&mut line, &ResultFiles::find(state, Path::new(folder)));
                print_json_line(&line);
            }
            Mode::Block | Mode::Lines => {
                let table = match state.stages() {
                    [] => attempts_table(state),
                    _ => stages_table(state, &stage_answers(Path::new(folder), state)),
                };
                print(&table.on_stdout());
                if let Some(table) = state.result().and_then(metrics_table) {
                    print(&format!("\n{}\n", table.on_stdout()));
                }
                let answer = state.result().and_then(|result| result.answer.as_ref()).map(answer_lines);
                answer.iter().flatten().for_each(|line| print(line));
                result_lines(state, Path::new(folder)).iter().for_each(|line| print(line));
                print(&format!("run {} {}: {folder}", state.id, state.status.name()));
            }
            Mode::Log | Mode::Quiet => {}
        }
    }

    /// For what is fetched before there is a run.
    pub fn fetch_progress(&self) -> FetchProgress {
        FetchProgress::new(self.mode)
    }

    /// For data that is prepared. Shows nothing until it begins.
    pub fn data_progress(&mut self) -> DataProgress<'_> {
        let on_terminal = self.mode == Mode::Block;
        DataProgress::new(self, on_terminal)
    }

    /// For rows that are predicted.
    pub fn predict_progress(&mut self) -> PredictProgress<'_> {
        let on_terminal = self.mode == Mode::Block;
        PredictProgress::new(self, on_terminal)
    }

    fn show(&mut self) {
        if self.mode == Mode::Block && self.screen.is_none() {
            self.screen = Some(Screen::open(self.view.clone()));
        }
    }

    fn hide(&mut self) {
        self.screen = None;
    }
}

/// On a terminal that can move its cursor, with nothing else written to it.
fn has_room_for_a_block() -> bool {
    let var = |name: &str| std::env::var(name).unwrap_or_default();
    let logs = tracing::enabled!(tracing::Level::INFO);
    let in_ci = !matches!(var("CI").as_str(), "" | "0" | "false");
    std::io::stderr().is_terminal() && !matches!(var("TERM").as_str(), "" | "dumb") && !in_ci && !logs
}

fn merge(line: &mut serde_json::Value, with: &impl serde::Serialize) {
    let fields = serde_json::to_value(with).expect("what pipe reports can be written as JSON");
    if let (Some(line), serde_json::Value::Object(fields)) = (line.as_object_mut(), fields) {
        line.extend(fields);
    }
}

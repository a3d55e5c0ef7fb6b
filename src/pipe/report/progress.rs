//! The progress of a run: bars on a terminal, plain lines elsewhere, events as JSON lines where a script reads.

use std::fs::File;
use std::io::{IsTerminal, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};
use pipe_spec::event::{Eval, Measured, RecordedEvent, Started, Step};
use pipe_spec::text::human_bytes;
use pipe_spec::{Attempt, EventKind, RunState};
use serde_json::json;

use super::{attempts_table, print, summary};
use crate::engine::docker::build::BuildWatcher;

/// How much is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    /// Events on stdout, nothing but notes on stderr.
    Json,
    Bars,
    Lines,
    Quiet,
}

pub struct Reporter {
    mode: Mode,
    bars: MultiProgress,
    bar: Option<ProgressBar>,
    steps: u64,
    last_line: Option<Instant>,
    journal: Option<File>,
}

/// Between two plain lines of training progress.
const RHYTHM: Duration = Duration::from_secs(2);

impl Reporter {
    pub fn new(json: bool, quiet: bool) -> Self {
        let mode = match (json, quiet, std::io::stderr().is_terminal()) {
            (true, _, _) => Mode::Json,
            (false, true, _) => Mode::Quiet,
            (false, false, true) => Mode::Bars,
            (false, false, false) => Mode::Lines,
        };
        let target = if mode == Mode::Bars { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
        Self {
            mode,
            bars: MultiProgress::with_draw_target(target),
            bar: None,
            steps: 0,
            last_line: None,
            journal: None,
        }
    }

    /// From here on what is noted is written to `path` as well, for those who come later.
    pub fn keep_journal(&mut self, path: &Path) {
        match File::options().create(true).append(true).open(path) {
            Ok(file) => self.journal = Some(file),
            Err(error) => self.say(&format!("warning: cannot write {}: {error}", path.display())),
        }
    }

    /// A line for people that no event and no state tells.
    pub fn note(&self, line: &str) {
        if let Some(mut journal) = self.journal.as_ref() {
            // What cannot be written is seen all the same.
            writeln!(journal, "{line}").ok();
        }
        self.say(line);
    }

    /// What the run is at.
    pub fn doing(&mut self, what: &str) {
        if let Some(bar) = self.bar.as_ref().filter(|_| !what.is_empty()) {
            bar.set_prefix(what.to_owned());
        }
    }

    /// An event of the past.
    pub fn replay(&mut self, recorded: &RecordedEvent) {
        if let EventKind::Started(started) = &recorded.event.kind {
            self.steps = started.steps;
        }
    }

    /// A line for people, above the bars.
    fn say(&self, line: &str) {
        match self.mode {
            Mode::Quiet => {}
            Mode::Bars => self.bars.suspend(|| eprintln!("{line}")),
            Mode::Json | Mode::Lines => eprintln!("{line}"),
        }
    }

    /// With `auto` the trainer finds the batch itself.
    pub fn attempt_started(&mut self, attempt: &Attempt, of: u32, auto: bool) {
        let batch = match auto {
            true => "looking for the largest batch".to_owned(),
            false => format!("batch {} x accum {}", attempt.batch, attempt.accum),
        };
        self.say(&format!("attempt {} of at most {of}: {batch}", attempt.number));
        self.last_line = None;
        self.show_bar(0, "{spinner} {msg}", "starting");
    }

    pub fn event(&mut self, recorded: &RecordedEvent) {
        if self.mode == Mode::Json {
            print(&serde_json::to_string(recorded).expect("events are JSON"));
        }
        match &recorded.event.kind {
            EventKind::Measured(measured) => self.say(&measurement(measured)),
            EventKind::Fitted(fitted) => self.say(&format!(
                "the largest batch that fits is {} (x accum {}), with a peak of {}",
                fitted.batch,
                fitted.accum,
                human_bytes(fitted.peak)
            )),
            EventKind::Rehearsed(rehearsed) => self.say(&format!(
                "the longest samples{} fit: peak {}",
                tokens(&rehearsed.longest),
                human_bytes(rehearsed.peak)
            )),
            EventKind::Started(started) => self.started(started),
            EventKind::Step(step) => self.step(step),
            EventKind::Eval(eval) => self.say(&evaluation(eval)),
            EventKind::Sample(sample) => self.say(&format!("{} -> {}", sample.source, sample.generated)),
            EventKind::Checkpoint(checkpoint) => {
                tracing::debug!("saved {} ({})", checkpoint.path, human_bytes(checkpoint.bytes));
            }
            EventKind::Warning(warning) => self.say(&format!("warning: {}", warning.message)),
            EventKind::Oom(_) => {}
            EventKind::Finished(_) => {}
        }
    }

    fn started(&mut self, started: &Started) {
        self.steps = started.steps;
        let from = started.resumed_from.map_or(String::new(), |step| format!(", going on from step {step}"));
        let capacity = started.capacity.map_or(String::new(), |bytes| format!(" with {}", human_bytes(bytes)));
        self.say(&format!(
            "training {} parameters on {}{capacity}: {} steps of {} samples{from}",
            grouped(started.params),
            started.device,
            started.steps,
            started.effective_batch
        ));
        self.show_bar(started.steps, "{bar:30} {pos}/{len} {msg} {eta}", "");
        if let Some(bar) = &self.bar {
            bar.set_position(started.resumed_from.unwrap_or(0));
            bar.reset_eta();
        }
    }

    fn step(&mut self, step: &Step) {
        let rate = if step.ms > 0.0 { step.tokens as f64 * 1000.0 / step.ms } else { 0.0 };
        let figures = format!("loss {:.4}  lr {:.1e}  {rate:.0} tok/s  {}", step.loss, step.lr, human_bytes(step.peak));
        if let Some(bar) = &self.bar {
            bar.set_position(step.step);
            bar.set_message(figures);
        } else if self.mode == Mode::Lines {
            let due = self.last_line.is_none_or(|at| at.elapsed() >= RHYTHM) || step.step == self.steps;
            if due {
                self.last_line = Some(Instant::now());
                self.say(&format!("step {}/{}: {figures}", step.step, self.steps));
            }
        }
    }

    pub fn attempt_ended(&mut self, attempt: &Attempt) {
        self.clear_bar();
        if self.mode == Mode::Json {
            let mut line = json!({ "type": "attempt" });
            merge(&mut line, attempt);
            print(&line.to_string());
        }
        if let Some(reason) = &attempt.reason {
            let outcome = attempt.outcome.map_or("", pipe_spec::Outcome::name);
            self.say(&format!("attempt {}: {outcome}: {reason}", attempt.number));
        }
    }

    /// The run is over: the table of its attempts.
    pub fn run_ended(&mut self, state: &RunState, folder: &str) {
        self.clear_bar();
        if let Err(error) = summary::add(state) {
            self.say(&format!("warning: cannot write to GITHUB_STEP_SUMMARY: {error}"));
        }
        match self.mode {
            Mode::Json => {
                let mut line = json!({ "type": "run", "folder": folder });
                merge(&mut line, state);
                print(&line.to_string());
            }
            Mode::Bars | Mode::Lines => {
                print(&attempts_table(&state.attempts).to_string());
                print(&format!("run {} {}: {folder}", state.id, state.status.name()));
            }
            Mode::Quiet => {}
        }
    }

    pub fn image_progress(&mut self, name: &str, size: u64) -> ImageProgress<'_> {
        self.note(&format!("building the image {name} ({})", human_bytes(size)));
        self.show_bar(size, "{bar:30} {bytes}/{total_bytes} {msg}", "sending");
        ImageProgress { reporter: self }
    }

    fn show_bar(&mut self, length: u64, template: &str, message: &'static str) {
        self.clear_bar();
        if self.mode != Mode::Bars {
            return;
        }
        let bar = if length == 0 { ProgressBar::new_spinner() } else { ProgressBar::new(length) };
        let bar = self.bars.add(bar);
        bar.set_style(ProgressStyle::with_template(template).expect("the templates here are valid"));
        bar.set_message(message);
        bar.enable_steady_tick(Duration::from_millis(200));
        self.bar = Some(bar);
    }

    fn clear_bar(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
    }
}

/// Shows an image build.
pub struct ImageProgress<'a> {
    reporter: &'a mut Reporter,
}

impl BuildWatcher for ImageProgress<'_> {
    fn sent(&mut self, bytes: u64) {
        if let Some(bar) = &self.reporter.bar {
            bar.inc(bytes);
        }
    }

    fn line(&mut self, line: &str) {
        if let Some(bar) = &self.reporter.bar {
            bar.set_message("building");
        }
        // The names that the builder gives to its intermediate containers are of no use to anybody.
        if !line.starts_with(" ---> ") && !line.starts_with("Removing intermediate container ") {
            self.reporter.note(&format!("  {line}"));
        }
    }
}

impl Drop for ImageProgress<'_> {
    fn drop(&mut self) {
        self.reporter.clear_bar();
    }
}

fn measurement(measured: &Measured) -> String {
    let Measured { batch, longest, peak, .. } = measured;
    let held = peak.map_or("does not fit".to_owned(), |peak| format!("peak {}", human_bytes(peak)));
    format!("measured batch {batch}{}: {held}", tokens(longest))
}

/// How long rows are, where they are of tokens.
fn tokens(longest: &str) -> String {
    if longest.is_empty() { String::new() } else { format!(" ({longest} tokens)") }
}

fn evaluation(eval: &Eval) -> String {
    let Eval { step, loss, samples, scores, .. } = eval;
    let scores: String =
        scores.iter().map(|(name, score)| format!(", {} {score:.3}", name.replace('_', " "))).collect();
    format!("step {step}: eval loss {loss:.4}{scores}, {samples} samples")
}

fn merge(line: &mut serde_json::Value, with: &impl serde::Serialize) {
    let fields = serde_json::to_value(with).expect("what pipe reports can be written as JSON");
    if let (Some(line), serde_json::Value::Object(fields)) = (line.as_object_mut(), fields) {
        line.extend(fields);
    }
}

/// 2850000 as `2,850,000`.
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_evaluation_in_a_line() {
        let scores = [("perplexity", 1.6487), ("exact_match", 0.125)].map(|(name, score)| (name.to_owned(), score));
        let eval = Eval { step: 4, loss: 0.5, samples: 20, ms: 1.0, scores: scores.into() };
        let want = "step 4: eval loss 0.5000, exact match 0.125, perplexity 1.649, 20 samples";
        assert_eq!(evaluation(&eval), want);
    }

    #[test]
    fn digits_in_groups() {
        for (number, want) in [(7, "7"), (999, "999"), (1000, "1,000"), (2_850_000, "2,850,000")] {
            assert_eq!(grouped(number), want);
        }
    }
}

//! `pipe logs`: prints the log of an attempt for people, or the events of all attempts for scripts, and follows them.

use std::time::Duration;

use pipe_spec::event::RecordedEvent;
use pipe_spec::pipeline::WorkKind;
use pipe_spec::{Event, Status};

use crate::error::Error;
use crate::report::{Reporter, print_data, say};
use crate::run::{self, Follow, Listed, Repeated};

/// How often the file is read.
const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// A line that is longer is text, and printed in parts.
const MAX_LINE: usize = 1 << 20;

pub struct LogsOptions {
    pub run: String,
    pub attempt: Option<u32>,
    /// The events instead of the log.
    pub events: bool,
    /// Until the run has ended.
    pub follow: bool,
}

pub fn run(options: &LogsOptions) -> Result<(), Error> {
    let found = run::find(&options.run)?;
    match found.state.work() {
        WorkKind::Training | WorkKind::Command => of_run(&found, options),
        WorkKind::Stages => of_steps(&found, options),
        WorkKind::Study => Err(Error::HasTrials { id: found.state.id }),
    }
}

/// The logs of all steps, one after the other. To follow one it must be named.
fn of_steps(found: &Listed, options: &LogsOptions) -> Result<(), Error> {
    let runs: Vec<String> = found.state.stages().iter().filter_map(|step| step.run.clone()).collect();
    if options.follow || options.attempt.is_some() {
        return Err(Error::HasStages { id: found.state.id.clone(), runs });
    }
    for run in runs {
        if !options.events {
            print_data(format!("== {run}\n").as_bytes());
        }
        if let Some(step) = Listed::read(run::folder_of(&run).path()).filter(|step| !step.state.attempts().is_empty()) {
            of_run(&step, options)?;
        }
    }
    Ok(())
}

fn of_run(found: &Listed, options: &LogsOptions) -> Result<(), Error> {
    let folder = found.folder();
    let last = found.state.attempts().last().map_or(1, |attempt| attempt.number);
    let mut number = options.attempt.unwrap_or(last);
    let path = |number: u32| if options.events { folder.events() } else { folder.attempt(number).log() };
    if !options.follow && !path(number).is_file() {
        let source = std::io::Error::from(std::io::ErrorKind::NotFound);
        return Err(Error::Read { path: path(number), source });
    }
    let mut file = Follow::new(path(number));
    let mut printer = Printer::new(options.events, found.state.work(), number);
    printer.reporter.set_unit(run::unit(&folder));
    loop {
        // Asked before the file is read: what was written before its end is then all there.
        let now = Listed::read(folder.path());
        let bytes = file.bytes()?;
        if !bytes.is_empty() {
            printer.take(&bytes);
            continue;
        }
        let Some(now) = now.filter(|_| options.follow) else {
            printer.end();
            return Ok(());
        };
        let next = now.state.attempts().iter().find(|attempt| attempt.number > number);
        if let Some(next) = next.filter(|_| !options.events && options.attempt.is_none()) {
            printer.end();
            number = next.number;
            file = Follow::new(path(number));
            let before = now.state.attempts().iter().rfind(|attempt| attempt.number < number);
            printer.begin(number);
            printer.reporter.attempt_started(next, now.state.at_most(), false, before);
            continue;
        }
        match now.state.status {
            Status::Running if options.attempt.is_none() || !has_ended(&now, number) => {
                std::thread::sleep(POLL_INTERVAL)
            }
            Status::Orphaned => {
                printer.end();
                let id = &now.state.id;
                say(&match now.state.choices.supervised {
                    true => {
                        format!("the run continues in a job of its engine: `pipe attach {id}` brings its files here")
                    }
                    false => format!("no pipe process is running this run: `pipe attach {id}` continues it"),
                });
                return Ok(());
            }
            _ => {
                printer.end();
                return Ok(());
            }
        }
    }
}

fn has_ended(found: &Listed, number: u32) -> bool {
    found.state.attempts().iter().any(|attempt| attempt.number == number && attempt.outcome.is_some())
}

/// Prints what is read as whole lines: text as it is, an event as the sentence that `pipe run` prints for it. Text that
/// repeats an event is skipped.
struct Printer {
    reporter: Reporter,
    /// Whether events are printed as they are.
    raw: bool,
    attempt: u32,
    /// A line whose end is not there yet.
    rest: Vec<u8>,
    /// Whether the beginning of that line was printed already.
    is_text: bool,
    repeated: Repeated,
}

impl Printer {
    fn new(raw: bool, work: WorkKind, attempt: u32) -> Self {
        let repeated = Repeated::new(!raw && work == WorkKind::Training);
        Self { reporter: Reporter::of_log(), raw, attempt, rest: Vec::new(), is_text: false, repeated }
    }

    fn begin(&mut self, attempt: u32) {
        self.attempt = attempt;
        self.repeated.begin_attempt();
    }

    fn take(&mut self, bytes: &[u8]) {
        let mut bytes = bytes.to_vec();
        std::mem::swap(&mut self.rest, &mut bytes);
        bytes.append(&mut self.rest);
        let end = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
        self.rest = bytes.split_off(end);
        let mut text = Vec::new();
        for line in bytes.split_inclusive(|byte| *byte == b'\n') {
            match self.event(line) {
                None if self.repeated.takes(line) => {}
                None => text.extend_from_slice(line),
                Some(event) => {
                    print_text(&std::mem::take(&mut text));
                    if !self.repeated.see(&event.kind) {
                        self.reporter.event(&RecordedEvent { attempt: self.attempt, event });
                    }
                }
            }
        }
        print_text(&text);
        if self.rest.len() > MAX_LINE {
            // A character whose end is not there yet is printed with what comes.
            let whole = match std::str::from_utf8(&self.rest) {
                Err(error) if error.error_len().is_none() => error.valid_up_to(),
                _ => self.rest.len(),
            };
            print_text(&self.rest[..whole]);
            self.rest.drain(..whole);
            self.is_text = true;
        }
    }

    fn event(&mut self, line: &[u8]) -> Option<Event> {
        let is_text = std::mem::take(&mut self.is_text) || self.raw;
        std::str::from_utf8(line).ok().filter(|_| !is_text).and_then(Event::parse)
    }

    /// Prints the rest of the last line.
    fn end(&mut self) {
        let rest = std::mem::take(&mut self.rest);
        match self.event(&rest) {
            Some(event) => self.reporter.event(&RecordedEvent { attempt: self.attempt, event }),
            None => print_text(&rest),
        }
        print_text(&self.repeated.untold());
    }
}

fn print_text(bytes: &[u8]) {
    if !bytes.is_empty() {
        print_data(bytes);
    }
}

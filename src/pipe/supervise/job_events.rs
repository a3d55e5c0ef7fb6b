//! The events of a job, from two sources: the file in its folder, which is never rotated, and the lines on its stdout, which
//! arrive at once. Both have the same numbered events, so that each fills the gaps of the other.

use pipe_spec::Event;
use pipe_spec::run::AttemptFolder;

use crate::error::Error;
use crate::run::Follow;

pub struct JobEvents {
    file: Follow,
    /// Whether a warning was given that the file cannot be read.
    unreadable: bool,
    /// The last event that came on stdout.
    on_stdout: u64,
    /// Whether stdout has passed over events.
    pub log_has_gaps: bool,
}

impl JobEvents {
    /// The events of an attempt of which those up to `recorded` are known.
    pub fn open(attempt: &AttemptFolder, recorded: u64) -> Self {
        let file = Follow::of_job(attempt.job().events());
        Self { file, unreadable: false, on_stdout: recorded, log_has_gaps: false }
    }

    /// Notes an event on stdout.
    pub fn seen_on_stdout(&mut self, event: &Event) {
        self.log_has_gaps |= event.seq > self.on_stdout.saturating_add(1);
        self.on_stdout = self.on_stdout.max(event.seq);
    }

    /// Events that were added to the file, some at a time; none where no more are there. A file that cannot be read is
    /// reported once; stdout still has the events.
    pub fn next(&mut self) -> (Vec<Event>, Option<Error>) {
        loop {
            match self.file.lines() {
                Ok(lines) if lines.is_empty() => return (Vec::new(), None),
                Ok(lines) => {
                    let events: Vec<Event> = lines.iter().filter_map(|line| Event::parse(line)).collect();
                    if !events.is_empty() {
                        return (events, None);
                    }
                }
                Err(_) if self.unreadable => return (Vec::new(), None),
                Err(error) => {
                    self.unreadable = true;
                    return (Vec::new(), Some(error));
                }
            }
        }
    }
}

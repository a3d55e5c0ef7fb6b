//! The content of a run folder, as far as it can be read. Damaged and missing files are listed and are no error.
//!
//! Files that a job may have written. No link in them is followed, nothing but a regular file is opened, and no more is read
//! than a bound: what a job puts there can neither show `pipe` a file of the host nor make it wait or run out of memory.

use std::fs::File;
use std::io::{self, BufRead, BufReader, ErrorKind, Read};
use std::path::Path;

use pipe_spec::evaluation::EvaluationDetails;
use pipe_spec::event::{Eval, Finished, Metrics, RecordedEvent, Sample, Started, Step};
use pipe_spec::pipeline::LossUnit;
use pipe_spec::text::count;
use pipe_spec::{EventKind, RunFolder, RunState};
use rustix::fs::{CWD, Mode, OFlags};
use serde_json::{Map, Value};

use super::{Listed, result};

/// Bytes of a config.json, which the job has written, that are read at most.
const CONFIG_LIMIT: u64 = 16 << 20;

#[derive(Clone, Debug, Default)]
pub struct Record {
    /// The folder's name.
    pub id: String,
    pub state: Option<RunState>,
    pub history: History,
    /// `resolved.yaml`.
    pub resolved: Option<String>,
    /// `lock.json`.
    pub lock: Option<String>,
    /// The config.json of the exported model.
    pub config: Option<Map<String, Value>>,
    /// What the evaluation of the model has shown beside its scores.
    pub evaluation: Option<EvaluationDetails>,
    /// What could not be read.
    pub missing: Vec<String>,
}

/// The events, by kind, without those that a report has no use for.
#[derive(Clone, Debug, Default)]
pub struct History {
    /// With the attempt that it belongs to.
    pub started: Vec<(u32, Started)>,
    pub steps: Vec<Step>,
    pub evals: Vec<Eval>,
    /// Of a command.
    pub metrics: Vec<Metrics>,
    pub samples: Vec<Sample>,
    /// With the attempt that it belongs to.
    pub warnings: Vec<(u32, String)>,
    pub finished: Option<Finished>,
}

impl Record {
    pub fn read(folder: &RunFolder) -> Self {
        let mut record = Self::default();
        let name = std::path::absolute(folder.path()).ok().and_then(|path| path.file_name().map(ToOwned::to_owned));
        record.id = name.unwrap_or_default().to_string_lossy().into_owned();
        if let Some(listed) = Listed::read(folder.path()) {
            record.missing.extend(listed.damage);
            record.state = Some(listed.state);
        }
        // A run of several steps, or a study, trains nothing itself.
        if record.state.as_ref().is_some_and(|state| !state.work.is_single()) {
            record.resolved = record.text(&folder.resolved());
            return record;
        }
        record.read_events(&folder.events());
        let state = record.state.as_ref();
        record.evaluation = state.and_then(|state| result::of_model(folder, state, &record.history));
        record.resolved = record.text(&folder.resolved());
        record.lock = record.text(&folder.lock());
        record.missing.extend(record.history.missing_steps());
        let config = read(&folder.model(), "config.json", CONFIG_LIMIT).ok();
        record.config = config.and_then(|bytes| serde_json::from_slice(&bytes).ok());
        record
    }

    /// What its speed is counted in.
    pub fn unit(&self) -> LossUnit {
        self.resolved.as_deref().map_or_else(LossUnit::default, LossUnit::of_resolved)
    }

    /// Tokens, or samples, per second of the median step.
    pub fn tokens_per_second(&self) -> Option<f64> {
        let mut rates: Vec<f64> =
            self.history.steps.iter().map(Step::tokens_per_second).filter(|rate| rate.is_finite()).collect();
        rates.sort_by(f64::total_cmp);
        rates.get(rates.len() / 2).copied()
    }

    /// Bytes, of the last attempt that did a step.
    pub fn peak_memory(&self) -> Option<u64> {
        let attempts = self.state.iter().flat_map(|state| state.attempts.iter().rev());
        let recorded = attempts.filter(|attempt| attempt.last_step.is_some()).find_map(|attempt| attempt.peak_memory);
        recorded.or_else(|| self.history.steps.iter().map(|step| step.peak).max())
    }

    /// Seconds from the start of the run to the end of its last attempt.
    pub fn seconds(&self) -> Option<f64> {
        let state = self.state.as_ref()?;
        if !state.graph.is_empty() {
            let ends = state.graph.iter().filter_map(|step| Some(step.began? + step.seconds?));
            let last = ends.filter(|end| *end >= state.created).fold(state.created, f64::max);
            return Some(last - state.created);
        }
        let last = state.attempts.last()?;
        if last.began > 0.0 {
            return Some((last.began + last.seconds - state.created).max(0.0));
        }
        Some(state.attempts.iter().map(|attempt| attempt.seconds).sum())
    }

    fn text(&mut self, path: &Path) -> Option<String> {
        match std::fs::read(path) {
            Ok(bytes) => Some(String::from_utf8_lossy(&bytes).into_owned()),
            Err(error) => {
                self.missing.push(unreadable(path, &error));
                None
            }
        }
    }

    fn read_events(&mut self, path: &Path) {
        let file = match File::open(path) {
            Ok(file) => file,
            Err(error) => return self.missing.push(unreadable(path, &error)),
        };
        let mut damaged = 0u64;
        for line in BufReader::new(file).split(b'\n') {
            let line = match line {
                Ok(line) => line,
                Err(error) => return self.missing.push(unreadable(path, &error)),
            };
            match serde_json::from_slice(&line) {
                Ok(event) => self.history.add(event),
                Err(_) if line.trim_ascii().is_empty() => {}
                Err(_) => damaged += 1,
            }
        }
        if damaged > 0 {
            self.missing.push(format!("events.jsonl: skipped {} that cannot be read", count(damaged, "line")));
        }
    }
}

impl History {
    fn add(&mut self, recorded: RecordedEvent) {
        let attempt = recorded.attempt;
        match recorded.event.kind {
            EventKind::Started(started) => self.started.push((attempt, started)),
            EventKind::Step(step) => self.steps.push(step),
            EventKind::Eval(eval) => self.evals.push(eval),
            EventKind::Metrics(metrics) => self.metrics.push(metrics),
            EventKind::Sample(sample) => self.samples.push(sample),
            EventKind::Warning(warning) => self.warnings.push((attempt, warning.message)),
            EventKind::Measured(_)
            | EventKind::Fitted(_)
            | EventKind::Rehearsed(_)
            | EventKind::Checkpoint(_)
            | EventKind::Oom(_) => {}
            EventKind::Finished(finished) => self.finished = Some(finished),
        }
    }

    /// Of a trainer or of a command.
    pub fn last_step(&self) -> Option<u64> {
        let of_command = || self.metrics.iter().map(|metrics| metrics.step).max();
        self.steps.last().map(|step| step.step).or_else(of_command)
    }

    /// The same.
    pub fn last_loss(&self) -> Option<f64> {
        let of_command = || self.metrics.iter().rev().find_map(Metrics::loss);
        self.steps.last().map(|step| step.loss).or_else(of_command)
    }

    /// The steps whose events are missing, as text.
    fn missing_steps(&self) -> Option<String> {
        let mut gaps = Vec::new();
        let mut next = 1;
        for step in &self.steps {
            if step.step > next {
                gaps.push((next, step.step - 1));
            }
            next = step.step.saturating_add(1).max(next);
        }
        let missing: u64 = gaps.iter().map(|(first, last)| last - first + 1).sum();
        let (first, last) = (gaps.first()?.0, gaps.last()?.1);
        Some(match missing {
            1 => format!("events.jsonl: step {first} is missing"),
            _ => format!("events.jsonl: {missing} of the steps {first} to {last} are missing"),
        })
    }

    /// Bytes that the device may hold, as the last attempt saw it.
    pub fn capacity(&self) -> Option<u64> {
        self.started.iter().rev().find_map(|(_, started)| started.capacity)
    }
}

/// What the speed of the run in this folder is counted in.
pub fn unit(folder: &RunFolder) -> LossUnit {
    LossUnit::of_resolved(&std::fs::read_to_string(folder.resolved()).unwrap_or_default())
}

fn unreadable(path: &Path, error: &std::io::Error) -> String {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    match error.kind() {
        ErrorKind::NotFound => format!("{name} is missing"),
        _ => format!("{name} cannot be read: {error}"),
    }
}

/// Opens `name` in `folder`. The folder itself is the runner's; `name` is one name, or several with slashes between them.
pub fn open(folder: &Path, name: &str) -> io::Result<File> {
    let base = OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let mut at = rustix::fs::openat(CWD, folder, base | OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty())?;
    let mut names = name.split('/').peekable();
    while let Some(part) = names.next() {
        if matches!(part, "" | "." | "..") {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("{name:?} is not a name inside a folder")));
        }
        let kind = if names.peek().is_some() { OFlags::DIRECTORY } else { OFlags::NONBLOCK };
        at = rustix::fs::openat(&at, part, base | OFlags::RDONLY | kind, Mode::empty())?;
    }
    let file = File::from(at);
    if !file.metadata()?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "not a regular file"));
    }
    Ok(file)
}

/// All of a file that is no larger than `limit` bytes.
pub fn read(folder: &Path, name: &str, limit: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    open(folder, name)?.take(limit + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > limit {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, format!("larger than {limit} bytes")));
    }
    Ok(bytes)
}

/// The names of the regular files in a folder, at most `limit` of them, sorted. Links are none.
pub fn names(folder: &Path, limit: usize) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(folder)?.take(limit) {
        let entry = entry?;
        if entry.file_type()?.is_file() {
            names.extend(entry.file_name().into_string().ok());
        }
    }
    names.sort();
    Ok(names)
}

#[cfg(test)]
mod job_file_tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn only_regular_files_inside_are_read() {
        let root = std::env::temp_dir().join(format!("pipe-job-file-{}", std::process::id()));
        let folder = root.join("job");
        std::fs::create_dir_all(folder.join("deep")).unwrap();
        std::fs::write(root.join("secret"), "secret").unwrap();
        std::fs::write(folder.join("plain"), "plain").unwrap();
        std::fs::write(folder.join("deep/plain"), "deeper").unwrap();
        symlink(root.join("secret"), folder.join("link")).unwrap();
        symlink(&root, folder.join("up")).unwrap();
        symlink("plain", folder.join("near")).unwrap();
        let fifo = folder.join("fifo");
        rustix::fs::mknodat(CWD, &fifo, rustix::fs::FileType::Fifo, Mode::RWXU, 0).unwrap();

        assert_eq!(read(&folder, "plain", 5).unwrap(), b"plain");
        assert_eq!(read(&folder, "deep/plain", 100).unwrap(), b"deeper");
        assert_eq!(read(&folder, "plain", 4).unwrap_err().kind(), io::ErrorKind::FileTooLarge);
        for name in ["link", "up/secret", "near", "fifo", "deep", "../secret", "", "deep//plain"] {
            assert!(read(&folder, name, 100).is_err(), "{name} was read");
        }
        assert_eq!(names(&folder, 100).unwrap(), ["plain"]);

        // Nor is the folder itself followed where it has become a link.
        symlink(&folder, root.join("job-link")).unwrap();
        assert!(read(&root.join("job-link"), "plain", 5).is_err());
        std::fs::remove_dir_all(root).unwrap();
    }
}

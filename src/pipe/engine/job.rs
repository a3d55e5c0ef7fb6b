//! The job that an engine starts, as the runner describes it.
//!
//! From the bytes a job writes to its lines.

use std::collections::BTreeMap;
use std::path::PathBuf;

use pipe_spec::pipeline::{Container, Gpus};

/// A job, complete: an engine never reads the pipeline.
#[derive(Clone, Debug)]
pub struct Launch {
    pub run_id: String,
    pub attempt: u32,
    /// The run folder on the host, by which the job is found again.
    pub run_folder: PathBuf,
    /// The folder for what the first process of the job writes: on the host, and as the job sees it.
    pub job_folder: (PathBuf, PathBuf),
    pub mounts: Mounts,
    /// The folder that the job starts in, as it sees it; absent leaves it to the image, or is where `pipe` was started.
    pub work_folder: Option<PathBuf>,
    pub program: JobProgram,
    /// The image that the job runs in, where the engine has images.
    pub image: Option<String>,
    pub args: Vec<String>,
    pub env: BTreeMap<String, String>,
    /// Whether the job has the network.
    pub network: bool,
    pub resources: Resources,
    /// Seconds that it may take to save and end.
    pub stop_timeout: u32,
}

/// The files that a job sees, each with its path on the host and its path for the job.
#[derive(Clone, Debug, Default)]
pub struct Mounts {
    pub writable: Vec<(PathBuf, PathBuf)>,
    pub read_only: Vec<(PathBuf, PathBuf)>,
}

/// The resources that a job gets on each of its machines.
#[derive(Clone, Debug, Default)]
pub struct Resources {
    pub gpus: Gpus,
    pub memory: Option<u64>,
    pub shm: Option<u64>,
    pub cpus: Option<f64>,
    /// Machines that it runs on, where the engine has several.
    pub nodes: u32,
}

impl Launch {
    /// A job that does nothing, with what a container may have.
    pub fn example(container: &Container, nodes: u32) -> Self {
        Self {
            run_id: "check".to_owned(),
            attempt: 1,
            run_folder: PathBuf::new(),
            job_folder: Default::default(),
            mounts: Mounts::default(),
            work_folder: None,
            program: JobProgram::Command("true".to_owned()),
            image: None,
            args: Vec::new(),
            env: BTreeMap::new(),
            network: false,
            resources: Resources {
                gpus: container.gpus.clone(),
                memory: container.memory.map(|size| size.0),
                shm: None,
                cpus: container.cpus,
                nodes,
            },
            stop_timeout: container.stop_timeout(),
        }
    }
}

/// The program that is started with the arguments of a launch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JobProgram {
    /// The trainer: the entry point of the image, or the trainer of this machine.
    Trainer,
    /// A program of the user.
    Command(String),
}

/// Who wrote a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The job, to stdout or stderr.
    Job,
    /// Not of the job: what the engine has to say about it.
    Engine,
    /// Not of the job: what it waits for in the queue of the engine.
    Queue,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    pub source: Source,
    pub text: String,
    /// Where it ends in the output of the job, for one that can be read again.
    pub end: Option<u64>,
}

/// Cuts a stream of bytes into lines. A line longer than `MAX_LINE` is cut, so that a job that never ends its line cannot
/// fill the memory of `pipe`.
#[derive(Default)]
pub struct LineSplitter {
    partial: Vec<u8>,
}

impl LineSplitter {
    const MAX_LINE: usize = 1 << 20;

    pub fn new() -> Self {
        Self::default()
    }

    pub fn push(&mut self, bytes: &[u8]) -> Vec<Line> {
        let mut lines = Vec::new();
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            self.partial.extend_from_slice(piece);
            if piece.ends_with(b"\n") || self.partial.len() >= Self::MAX_LINE {
                lines.extend(self.end());
            }
        }
        lines
    }

    /// Returns the rest of a line when the stream ends.
    pub fn end(&mut self) -> Option<Line> {
        if self.partial.is_empty() {
            return None;
        }
        let bytes = std::mem::take(&mut self.partial);
        let text = String::from_utf8_lossy(&bytes);
        Some(Line { source: Source::Job, text: text.trim_end_matches(['\n', '\r']).to_owned(), end: None })
    }
}

#[cfg(test)]
mod lines_tests {
    use super::*;

    #[test]
    fn lines_come_whole_however_the_bytes_come() {
        let text = "one\ntwo\r\n\nlast é";
        for size in 1..=text.len() {
            let mut splitter = LineSplitter::new();
            let mut lines: Vec<Line> = text.as_bytes().chunks(size).flat_map(|chunk| splitter.push(chunk)).collect();
            lines.extend(splitter.end());
            let texts: Vec<&str> = lines.iter().map(|line| line.text.as_str()).collect();
            assert_eq!(texts, ["one", "two", "", "last é"], "in pieces of {size}");
        }
    }

    #[test]
    fn an_endless_line_is_cut() {
        let mut splitter = LineSplitter::new();
        let lines: Vec<Line> = (0..5).flat_map(|_| splitter.push(&[b'x'; LineSplitter::MAX_LINE / 2])).collect();
        assert_eq!(lines.len(), 2);
    }
}

//! The output of a job, read from the file in its folder. The job may write to that folder: a file that it removes, cuts or fills with
//! holes is reported once, and holds nothing up.
//!
//! From the bytes a job writes to its lines, and the way of the lines from the task that reads them to the runner.

use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use pipe_spec::run::{JobFolder, LogPosition};
use pipe_spec::text::human_bytes;
use rustix::fs::{CWD, FallocateFlags, Mode, OFlags, fallocate};
use tokio::sync::{Semaphore, mpsc};

use super::job::Launch;
use crate::run::job_file::{self, Piece};

/// Between two looks at what a job has written.
pub const OUTPUT_INTERVAL: Duration = Duration::from_millis(100);

/// The output of a job.
pub struct Output {
    folder: PathBuf,
    name: &'static str,
    /// The file that was opened last. It stays readable where the job removes it.
    file: Option<File>,
    offset: u64,
    splitter: LineSplitter,
    /// The problems that were reported.
    reported: Vec<Problem>,
}

/// A problem with the file, which is reported once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Problem {
    Unreadable,
    Removed,
    Truncated,
    Hole,
}

impl Output {
    /// The output of a launch, after what was read of it before.
    pub fn of(launch: &Launch, read: Option<&LogPosition>) -> Self {
        Self::new(launch.job_folder.0.clone(), JobFolder::OUTPUT, read)
    }

    /// The output of a launch, after all that is there.
    pub fn of_rest(launch: &Launch) -> Self {
        let mut output = Self::of(launch, None);
        output.offset = output.file.as_ref().and_then(|file| file.metadata().ok()).map_or(0, |meta| meta.len());
        output
    }

    pub fn new(folder: PathBuf, name: &'static str, read: Option<&LogPosition>) -> Self {
        let offset = read.map_or(0, |read| read.output);
        let mut output = Self { folder, name, file: None, offset, splitter: LineSplitter::new(), reported: Vec::new() };
        // The sooner it is open, the less a job can do to it.
        output.file = job_file::open(&output.folder, output.name).ok();
        // After a power cut it may lack what the log has.
        let length = output.file.as_ref().and_then(|file| file.metadata().ok()).map(|meta| meta.len());
        output.offset = length.map_or(offset, |length| offset.min(length));
        output
    }

    /// Sends the lines that were written since the last time.
    pub async fn send(&mut self, to: &LineSender) -> Result<(), Closed> {
        while let Some(lines) = self.next() {
            for line in lines {
                to.send(line).await?;
            }
            // Signals are heard between two pieces.
            tokio::task::yield_now().await;
        }
        Ok(())
    }

    /// Sends what was written until the job ended, and the last line if it has no end.
    pub async fn send_rest(&mut self, to: &LineSender) -> Result<(), Closed> {
        self.send(to).await?;
        match self.last_line() {
            Some(line) => to.send(line).await,
            None => Ok(()),
        }
    }

    /// The last line, if it has no end; it comes after all others.
    pub fn last_line(&mut self) -> Option<Line> {
        self.splitter.end()
    }

    /// The lines of the next piece of the file, which may be none; nothing where the file has no more. Each line knows where it ends in
    /// the file, so that another `pipe` can go on from there.
    pub fn next(&mut self) -> Option<Vec<Line>> {
        let mut lines: Vec<Line> = self.reopen().into_iter().collect();
        lines.extend(self.check_length());
        let piece = self.file.as_ref().map_or(Ok(Piece::End), |file| job_file::next_piece(file, self.offset));
        match piece {
            Ok(Piece::Bytes(bytes)) => lines.extend(self.split(&bytes)),
            Ok(Piece::Hole { end }) => lines.extend(self.skip(end)),
            Ok(Piece::End) if lines.is_empty() => return None,
            Ok(Piece::End) => {}
            Err(error) => match self.report_unreadable(&error) {
                Some(line) => lines.push(line),
                None => return None,
            },
        }
        Some(lines)
    }

    fn split(&mut self, bytes: &[u8]) -> Vec<Line> {
        let mut lines = Vec::new();
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            self.offset += piece.len() as u64;
            let end = Some(self.offset);
            lines.extend(self.splitter.push(piece).into_iter().map(|line| Line { end, ..line }));
        }
        lines
    }

    /// Goes on after a hole. A line does not continue behind it.
    fn skip(&mut self, end: u64) -> Vec<Line> {
        let before = self.offset;
        let cut = self.splitter.end().map(|line| Line { end: Some(before), ..line });
        self.offset = end;
        let size = human_bytes(end - before);
        let problem = format!("skipped {size} of zero bytes, which the job put into its output file");
        cut.into_iter().chain(self.report(Problem::Hole, &problem)).collect()
    }

    /// Opens the file by its name again: on a network file system this shows what another machine has written.
    fn reopen(&mut self) -> Option<Line> {
        match job_file::open(&self.folder, self.name) {
            Ok(file) if self.file.as_ref().is_none_or(|known| is_same(known, &file)) => {
                self.file = Some(file);
                None
            }
            Err(error) if error.kind() != ErrorKind::NotFound => self.report_unreadable(&error),
            // It may not have been made yet.
            Err(_) if self.file.is_none() && self.offset == 0 => None,
            Ok(_) | Err(_) => self.report(Problem::Removed, "the job removed or replaced its output file"),
        }
    }

    /// A file that has become shorter is read again from its beginning, so that no line is lost.
    fn check_length(&mut self) -> Vec<Line> {
        let length = self.file.as_ref().and_then(|file| file.metadata().ok()).map(|meta| meta.len());
        if length.is_none_or(|length| length >= self.offset) {
            return Vec::new();
        }
        let cut = self.splitter.end();
        self.offset = 0;
        let problem = "the job truncated its output file: lines may be missing from the log, or be there twice";
        cut.into_iter().chain(self.report(Problem::Truncated, problem)).collect()
    }

    fn report_unreadable(&mut self, error: &io::Error) -> Option<Line> {
        self.report(Problem::Unreadable, &format!("cannot read the output of the job: {error}"))
    }

    fn report(&mut self, problem: Problem, text: &str) -> Option<Line> {
        if self.reported.contains(&problem) {
            return None;
        }
        self.reported.push(problem);
        let path = self.folder.join(self.name);
        Some(Line::new(Source::Engine, format!("warning: {text} ({})", path.display())))
    }

    /// All lines that are left.
    #[cfg(test)]
    pub fn rest(&mut self) -> Vec<Line> {
        let mut lines: Vec<Line> = std::iter::from_fn(|| self.next()).flatten().collect();
        lines.extend(self.last_line());
        lines
    }
}

/// Whether two handles are of one file.
fn is_same(one: &File, other: &File) -> bool {
    let identity = |file: &File| file.metadata().ok().map(|meta| (meta.dev(), meta.ino()));
    identity(one).is_some_and(|found| identity(other) == Some(found))
}

/// Gives the disk back what was read of an output, where the file system can: it is in the log.
pub fn release(folder: &Path, read: u64) {
    let flags = OFlags::WRONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    if let Ok(file) = rustix::fs::openat(CWD, folder.join(JobFolder::OUTPUT), flags, Mode::empty())
        && read > 0
    {
        fallocate(&file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, 0, read).ok();
    }
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
    /// Its bytes, where they are not UTF-8 and `text` differs from them.
    pub raw: Option<Vec<u8>>,
    /// Where it ends in the output of the job, for one that can be read again.
    pub end: Option<u64>,
}

impl Line {
    pub fn new(source: Source, text: impl Into<String>) -> Self {
        Self { source, text: text.into(), raw: None, end: None }
    }

    /// As it was written, without its end.
    pub fn bytes(&self) -> &[u8] {
        self.raw.as_deref().unwrap_or(self.text.as_bytes())
    }

    /// Bytes that it takes while it waits.
    fn room(&self) -> u32 {
        (self.text.len() + self.raw.as_ref().map_or(0, Vec::len) + LINE_SIZE).min(MAX_WAITING) as u32
    }
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
        let mut bytes = std::mem::take(&mut self.partial);
        let is_text = |byte: &u8| !matches!(byte, b'\n' | b'\r');
        bytes.truncate(bytes.iter().rposition(is_text).map_or(0, |last| last + 1));
        Some(match String::from_utf8(bytes) {
            Ok(text) => Line::new(Source::Job, text),
            Err(error) => {
                let text = String::from_utf8_lossy(error.as_bytes()).into_owned();
                Line { raw: Some(error.into_bytes()), ..Line::new(Source::Job, text) }
            }
        })
    }
}

/// Bytes of lines that may wait for the runner.
const MAX_WAITING: usize = 8 << 20;

/// Bytes that a line takes beside its text.
const LINE_SIZE: usize = 128;

/// Nobody listens to the lines any more.
pub struct Closed;

/// A channel for lines that holds a bounded number of bytes, however long or short the lines are.
pub fn channel() -> (LineSender, LineReceiver) {
    let (sender, receiver) = mpsc::unbounded_channel();
    let room = Arc::new(Semaphore::new(MAX_WAITING));
    (LineSender { lines: sender, room: room.clone() }, LineReceiver { lines: receiver, room })
}

#[derive(Clone)]
pub struct LineSender {
    lines: mpsc::UnboundedSender<Line>,
    room: Arc<Semaphore>,
}

impl LineSender {
    /// Whether nobody listens any more.
    pub fn is_closed(&self) -> bool {
        self.room.is_closed()
    }

    /// Waits until there is room for the line.
    pub async fn send(&self, line: Line) -> Result<(), Closed> {
        let room = self.room.acquire_many(line.room()).await.map_err(|_| Closed)?;
        // The receiver gives it back.
        room.forget();
        self.lines.send(line).map_err(|_| Closed)
    }
}

pub struct LineReceiver {
    lines: mpsc::UnboundedReceiver<Line>,
    room: Arc<Semaphore>,
}

impl LineReceiver {
    /// The next line; none when nobody sends any more. Can be dropped and called again without losing any.
    pub async fn recv(&mut self) -> Option<Line> {
        let line = self.lines.recv().await?;
        self.room.add_permits(line.room() as usize);
        Some(line)
    }
}

impl Drop for LineReceiver {
    fn drop(&mut self) {
        self.room.close();
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn job_line(text: &str, end: u64) -> Line {
        Line { end: Some(end), ..Line::new(Source::Job, text) }
    }

    fn append(folder: &Path, text: &str) {
        let mut file = File::options().create(true).append(true).open(folder.join(JobFolder::OUTPUT)).unwrap();
        file.write_all(text.as_bytes()).unwrap();
    }

    fn texts(lines: &[Line]) -> Vec<&str> {
        // Without the path at the end of a warning.
        lines.iter().map(|line| line.text.rsplit_once(" (/").map_or(&*line.text, |(text, _)| text)).collect()
    }

    #[test]
    fn released_output_is_not_read_again() {
        let folder = tempfile::tempdir().unwrap();
        append(folder.path(), "one\ntwo\n");
        release(folder.path(), 4);
        let read = LogPosition { output: 4, ..LogPosition::default() };
        let mut output = Output::new(folder.path().to_owned(), JobFolder::OUTPUT, Some(&read));
        assert_eq!(output.rest(), [job_line("two", 8)]);
        assert_eq!(output.next(), None);
    }

    /// A hole that is larger than any disk is skipped at once and reported once; our own release is none.
    #[test]
    fn a_hole_is_skipped_and_reported_once() {
        const FAR: u64 = 4 << 40;
        let folder = tempfile::tempdir().unwrap();
        append(folder.path(), "one\nhalf");
        let mut output = Output::new(folder.path().to_owned(), JobFolder::OUTPUT, None);
        let file = File::options().write(true).open(folder.path().join(JobFolder::OUTPUT)).unwrap();
        for times in 1..3 {
            file.set_len(times * FAR).unwrap();
            append(folder.path(), "two\n");
        }
        let lines = output.rest();
        let warning = "warning: skipped 4.0 TiB of zero bytes, which the job put into its output file";
        assert_eq!(texts(&lines), ["one", "half", warning, "two", "two"]);
        assert_eq!(lines[1], job_line("half", 8));
        assert_eq!(lines[4].end, Some(2 * FAR + 4));
        release(folder.path(), 2 * FAR + 4);
        append(folder.path(), "three\n");
        assert_eq!(texts(&output.rest()), ["three"]);
    }

    #[test]
    fn a_file_that_was_truncated_or_removed_is_reported_once_and_read_on() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(JobFolder::OUTPUT);
        append(folder.path(), "one\ntwo\n");
        let mut output = Output::new(folder.path().to_owned(), JobFolder::OUTPUT, None);
        assert_eq!(texts(&output.rest()), ["one", "two"]);
        let mut job = File::options().append(true).open(&path).unwrap();
        let warning =
            "warning: the job truncated its output file: lines may be missing from the log, or be there twice";
        for (text, want) in [("again\n", &[warning, "again"][..]), ("2\n", &["2"])] {
            job.set_len(0).unwrap();
            job.write_all(text.as_bytes()).unwrap();
            assert_eq!(texts(&output.rest()), want);
        }
        std::fs::remove_file(&path).unwrap();
        job.write_all(b"three\n").unwrap();
        assert_eq!(texts(&output.rest()), ["warning: the job removed or replaced its output file", "three"]);
        // Another file in its place is not the job's output.
        append(folder.path(), "false\n");
        job.write_all(b"four\n").unwrap();
        assert_eq!(texts(&output.rest()), ["four"]);
    }

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
    fn bytes_stay_as_they_are() {
        let mut splitter = LineSplitter::new();
        let lines = splitter.push(b"caf\xe9\r\nplain\n");
        let bytes: Vec<&[u8]> = lines.iter().map(Line::bytes).collect();
        assert_eq!(bytes, [&b"caf\xe9"[..], b"plain"]);
        assert_eq!(lines[0].text, "caf\u{fffd}");
    }

    #[test]
    fn an_endless_line_is_cut() {
        let mut splitter = LineSplitter::new();
        let lines: Vec<Line> = (0..5).flat_map(|_| splitter.push(&[b'x'; LineSplitter::MAX_LINE / 2])).collect();
        assert_eq!(lines.len(), 2);
    }

    #[tokio::test]
    async fn lines_that_wait_are_bounded_by_their_bytes() {
        for length in [0, 1000, 1 << 20, 2 * MAX_WAITING] {
            let (sender, mut receiver) = channel();
            let sending = tokio::spawn(async move {
                let line = Line::new(Source::Job, "x".repeat(length));
                for _ in 0..100_000 {
                    if sender.send(line.clone()).await.is_err() {
                        return false;
                    }
                }
                true
            });
            tokio::task::yield_now().await;
            let bytes = receiver.lines.len() * (length + LINE_SIZE);
            assert!(!sending.is_finished() && bytes <= MAX_WAITING.max(length + LINE_SIZE), "{length}: {bytes}");
            assert_eq!(receiver.recv().await.map(|line| line.text.len()), Some(length));
            // A sender that waits hears that nobody listens.
            drop(receiver);
            assert!(!sending.await.unwrap(), "{length}");
        }
    }
}

//! From the bytes a job writes to its lines, and the way of the lines from the task that reads them to the runner.

use std::sync::Arc;

use tokio::sync::{Semaphore, mpsc};

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

pub struct LineSender {
    lines: mpsc::UnboundedSender<Line>,
    room: Arc<Semaphore>,
}

impl LineSender {
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

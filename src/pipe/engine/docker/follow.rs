//! Follows the log of a container to its end, also if the daemon restarts or rotates its logs.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bollard::Docker;
use bollard::container::LogOutput;
use bollard::errors::Error::DockerResponseServerError;
use bollard::query_parameters::LogsOptionsBuilder;
use futures_util::StreamExt;
use pipe_spec::run::{LogPosition, LogStamp};
use tokio::sync::mpsc;

use crate::engine::{Line, LineSplitter, Source};

/// How long a daemon that does not answer is waited for, unless `PIPE_ENGINE_WAIT` says otherwise.
const OUTAGE_TIMEOUT: Duration = Duration::from_secs(300);

/// How long a daemon that ends its containers may take to go away itself.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(3);

/// How long to retry reading the log of a container that has ended.
const LOG_TIMEOUT: Duration = Duration::from_secs(10);

const POLL_INTERVAL: Duration = Duration::from_millis(200);

pub struct Follower {
    docker: Docker,
    id: String,
    outage: Arc<AtomicBool>,
    stdout: StreamReader,
    stderr: StreamReader,
}

/// What the daemon says of the container.
enum State {
    Runs,
    Ended { code: i64 },
    Away,
}

impl Follower {
    /// A reader of the log that begins after what was read before.
    pub fn new(docker: Docker, id: String, outage: Arc<AtomicBool>, read: Option<&LogPosition>) -> Self {
        let (stdout, stderr) = read.map_or((None, None), |read| (read.stdout.clone(), read.stderr.clone()));
        let stdout = StreamReader::new(Source::Stdout, stdout);
        let stderr = StreamReader::new(Source::Stderr, stderr);
        Self { docker, id, outage, stdout, stderr }
    }

    /// Sends the container's lines until it ends. When the stream breaks off it is read again; lines that were sent before
    /// are known by the daemon's time stamps and left out, whatever was rotated away meanwhile.
    pub async fn follow(mut self, to: mpsc::Sender<Line>) {
        let mut failing_since = None;
        loop {
            let failed = match self.read_log(&to).await {
                Err(Closed) => return,
                Ok(failed) => failed,
            };
            let again = match self.state().await {
                State::Runs => true,
                State::Ended { .. } if failed => failing_since.get_or_insert_with(Instant::now).elapsed() < LOG_TIMEOUT,
                State::Ended { code } => self.goes_away_after(code).await && self.comes_back(&to).await,
                State::Away => self.comes_back(&to).await,
            };
            if !again {
                if failed {
                    let text = "the daemon did not return the rest of the container's log".to_owned();
                    to.send(Line { source: Source::Engine, text, stamp: None }).await.ok();
                }
                for line in [self.stdout.splitter.end(), self.stderr.splitter.end()].into_iter().flatten() {
                    to.send(line).await.ok();
                }
                return;
            }
            tracing::debug!("the log of {} broke off; reading it again", self.id);
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }

    /// Reads the log until it ends or breaks off; whether it broke off with an error.
    async fn read_log(&mut self, to: &mpsc::Sender<Line>) -> Result<bool, Closed> {
        let options =
            LogsOptionsBuilder::new().follow(true).stdout(true).stderr(true).timestamps(true).tail("all").build();
        let mut stream = std::pin::pin!(self.docker.logs(&self.id, Some(options)));
        self.stdout.begin_again();
        self.stderr.begin_again();
        while let Some(output) = stream.next().await {
            let Ok(output) = output else { return Ok(true) };
            let reader = match &output {
                LogOutput::StdErr { .. } => &mut self.stderr,
                _ => &mut self.stdout,
            };
            for line in reader.push(&output.into_bytes()) {
                to.send(line).await.map_err(|_| Closed)?;
            }
        }
        Ok(false)
    }

    async fn state(&self) -> State {
        match self.docker.inspect_container(&self.id, None).await {
            Ok(container) => {
                let state = container.state.unwrap_or_default();
                match state.running {
                    Some(true) => State::Runs,
                    _ => State::Ended { code: state.exit_code.unwrap_or(0) },
                }
            }
            Err(DockerResponseServerError { status_code: 404, .. }) => State::Ended { code: 0 },
            Err(_) => State::Away,
        }
    }

    /// A container that was ended from outside may be one that a daemon ends before it goes itself.
    async fn goes_away_after(&self, code: i64) -> bool {
        let ended_from_outside = matches!(code, 137 | 143);
        let began = Instant::now();
        while ended_from_outside && !self.outage.load(Ordering::Relaxed) && began.elapsed() < SHUTDOWN_TIMEOUT {
            if self.docker.ping().await.is_err() {
                return true;
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
        false
    }

    /// Waits for the daemon; whether it is there again.
    async fn comes_back(&self, to: &mpsc::Sender<Line>) -> bool {
        self.outage.store(true, Ordering::Relaxed);
        let timeout = std::env::var("PIPE_ENGINE_WAIT").ok().and_then(|seconds| seconds.parse().ok());
        let timeout = timeout.map_or(OUTAGE_TIMEOUT, Duration::from_secs);
        let note = |text: String| Line { source: Source::Engine, text, stamp: None };
        to.send(note(format!("the daemon does not answer: waiting for it, at most {}s", timeout.as_secs()))).await.ok();
        let began = Instant::now();
        while began.elapsed() < timeout {
            if self.docker.ping().await.is_ok() {
                to.send(note("the daemon answers again".to_owned())).await.ok();
                return true;
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
        false
    }
}

/// The receiver of the lines was dropped.
struct Closed;

/// One stream of a log, without the lines that an earlier reading has sent.
struct StreamReader {
    splitter: LineSplitter,
    /// The last message that ended a line that was sent.
    sent: Option<LogStamp>,
    /// The last message of this reading.
    at: Option<LogStamp>,
}

impl StreamReader {
    fn new(source: Source, sent: Option<LogStamp>) -> Self {
        Self { splitter: LineSplitter::new(source), sent, at: None }
    }

    /// The log is read from its beginning.
    fn begin_again(&mut self) {
        self.at = None;
        self.splitter.clear();
    }

    /// One message: a line, or a part of a long one, after the time at which the daemon took it in.
    fn push(&mut self, message: &[u8]) -> Vec<Line> {
        let (time, text) = match message.iter().position(|byte| *byte == b' ') {
            Some(space) => (String::from_utf8_lossy(&message[..space]).into_owned(), &message[space + 1..]),
            None => (String::new(), message),
        };
        let count = self.at.as_ref().filter(|at| at.time == time).map_or(1, |at| at.count + 1);
        let stamp = LogStamp { time, count };
        self.at = Some(stamp.clone());
        if self.sent.as_ref().is_some_and(|sent| stamp <= *sent) {
            return Vec::new();
        }
        let mut lines = self.splitter.push(text);
        if let Some(last) = lines.last_mut() {
            last.stamp = Some(stamp.clone());
            self.sent = Some(stamp);
        }
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(reader: &mut StreamReader, messages: &[&str]) -> Vec<String> {
        reader.begin_again();
        messages.iter().flat_map(|message| reader.push(message.as_bytes())).map(|line| line.text).collect()
    }

    #[test]
    fn a_log_read_again_gives_each_line_once() {
        let mut reader = StreamReader::new(Source::Stdout, None);
        assert_eq!(read(&mut reader, &["1Z a\n", "2Z b\n", "2Z c\n", "3Z d"]), ["a", "b", "c"]);
        // A line that had not ended is read again as a whole.
        assert_eq!(read(&mut reader, &["1Z a\n", "2Z b\n", "2Z c\n", "3Z d", "3Z d\n", "4Z e\n"]), ["dd", "e"]);
        // What was rotated away takes nothing with it.
        assert_eq!(read(&mut reader, &["4Z e\n", "5Z f\n"]), ["f"]);
        assert_eq!(read(&mut reader, &["9Z i\n"]), ["i"]);
        let stamp = reader.sent.clone();
        let mut next = StreamReader::new(Source::Stdout, stamp);
        assert_eq!(read(&mut next, &["5Z f\n", "9Z i\n", "9Z j\n"]), ["j"]);
    }
}

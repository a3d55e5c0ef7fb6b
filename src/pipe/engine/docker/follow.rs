//! What a container writes, to its end, also through a daemon that goes away and comes back.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bollard::Docker;
use bollard::errors::Error::DockerResponseServerError;
use bollard::query_parameters::LogsOptionsBuilder;
use futures_util::StreamExt;
use tokio::sync::mpsc;

use crate::engine::{Line, LineSplitter, Source};

/// How long a daemon that does not answer is waited for, unless `PIPE_ENGINE_WAIT` says otherwise.
const PATIENCE: Duration = Duration::from_secs(300);

/// How long a daemon that ends its containers may take to go away itself.
const GOING: Duration = Duration::from_secs(3);

/// How often it is asked.
const LOOK: Duration = Duration::from_millis(200);

pub struct Follower {
    docker: Docker,
    id: String,
    outage: Arc<AtomicBool>,
}

/// What the daemon says of the container.
enum State {
    Runs,
    Ended { code: i64 },
    Away,
}

impl Follower {
    pub fn new(docker: Docker, id: String, outage: Arc<AtomicBool>) -> Self {
        Self { docker, id, outage }
    }

    /// Sends the container's lines until it ends. When the stream breaks off and the container still runs, it is read again
    /// from its beginning and what was sent before is left out.
    pub async fn follow(self, to: mpsc::Sender<Line>) {
        let (mut sent_stdout, mut sent_stderr) = (0, 0);
        loop {
            let options = LogsOptionsBuilder::new().follow(true).stdout(true).stderr(true).tail("all").build();
            let mut stream = std::pin::pin!(self.docker.logs(&self.id, Some(options)));
            let mut stdout = LogReader::new(Source::Stdout, &mut sent_stdout);
            let mut stderr = LogReader::new(Source::Stderr, &mut sent_stderr);
            while let Some(Ok(output)) = stream.next().await {
                let reader = match &output {
                    bollard::container::LogOutput::StdErr { .. } => &mut stderr,
                    _ => &mut stdout,
                };
                for line in reader.push(&output.into_bytes()) {
                    if to.send(line).await.is_err() {
                        return;
                    }
                }
            }
            let again = match self.state().await {
                State::Runs => true,
                State::Ended { code } => self.goes_away_after(code).await && self.comes_back(&to).await,
                State::Away => self.comes_back(&to).await,
            };
            if !again {
                for line in [stdout.splitter.end(), stderr.splitter.end()].into_iter().flatten() {
                    to.send(line).await.ok();
                }
                return;
            }
            tracing::debug!("the log of {} broke off; reading it again", self.id);
            tokio::time::sleep(LOOK).await;
        }
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
        while ended_from_outside && !self.outage.load(Ordering::Relaxed) && began.elapsed() < GOING {
            if self.docker.ping().await.is_err() {
                return true;
            }
            tokio::time::sleep(LOOK).await;
        }
        false
    }

    /// Waits for the daemon; whether it is there again.
    async fn comes_back(&self, to: &mpsc::Sender<Line>) -> bool {
        self.outage.store(true, Ordering::Relaxed);
        let patience = std::env::var("PIPE_ENGINE_WAIT").ok().and_then(|seconds| seconds.parse().ok());
        let patience = patience.map_or(PATIENCE, Duration::from_secs);
        let note = |text: String| Line { source: Source::Engine, text };
        to.send(note(format!("the daemon does not answer: waiting for it, at most {}s", patience.as_secs())))
            .await
            .ok();
        let began = Instant::now();
        while began.elapsed() < patience {
            if self.docker.ping().await.is_ok() {
                to.send(note("the daemon answers again".to_owned())).await.ok();
                return true;
            }
            tokio::time::sleep(LOOK).await;
        }
        false
    }
}

/// One stream of a log, with the lines that an earlier reading has sent left out.
struct LogReader<'a> {
    splitter: LineSplitter,
    seen: u64,
    sent: &'a mut u64,
}

impl<'a> LogReader<'a> {
    fn new(source: Source, sent: &'a mut u64) -> Self {
        Self { splitter: LineSplitter::new(source), seen: 0, sent }
    }

    fn push(&mut self, bytes: &[u8]) -> Vec<Line> {
        let mut fresh = Vec::new();
        for line in self.splitter.push(bytes) {
            self.seen += 1;
            if self.seen > *self.sent {
                *self.sent = self.seen;
                fresh.push(line);
            }
        }
        fresh
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_read_again_gives_each_line_once() {
        let mut sent = 0;
        let texts = |lines: Vec<Line>| lines.into_iter().map(|line| line.text).collect::<Vec<_>>();
        let first = texts(LogReader::new(Source::Stdout, &mut sent).push(b"a\nb\nc"));
        assert_eq!(first, ["a", "b"]);
        let second = texts(LogReader::new(Source::Stdout, &mut sent).push(b"a\nb\nc\nd\n"));
        assert_eq!(second, ["c", "d"]);
    }
}

//! A container that was started: stopped, killed, asked how it ended, removed.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;
use bollard::Docker;
use bollard::query_parameters::{KillContainerOptionsBuilder, LogsOptionsBuilder};
use futures_util::StreamExt;

use super::{container, failed, remove_container};
use crate::engine::{Ending, JobHandle};
use crate::error::Error;

/// The lines at the end of a log that are read again.
const LAST_LINES: &str = "200";

pub struct ContainerJob {
    docker: Docker,
    id: String,
    memory_limit: Option<u64>,
    /// Whether the daemon went away while it ran.
    outage: Arc<AtomicBool>,
}

impl ContainerJob {
    pub fn new(docker: Docker, id: String, memory_limit: Option<u64>, outage: Arc<AtomicBool>) -> Self {
        Self { docker, id, memory_limit, outage }
    }

    async fn signal(&self, signal: &str) -> Result<(), Error> {
        let options = KillContainerOptionsBuilder::new().signal(signal).build();
        match self.docker.kill_container(&self.id, Some(options)).await {
            // 404: gone. 409: it is not running any more.
            Ok(()) | Err(bollard::errors::Error::DockerResponseServerError { status_code: 404 | 409, .. }) => Ok(()),
            Err(source) => Err(failed(source)),
        }
    }

    async fn is_paused(&self) -> bool {
        let found = self.docker.inspect_container(&self.id, None).await;
        found.is_ok_and(|found| found.state.and_then(|state| state.paused) == Some(true))
    }
}

#[async_trait(?Send)]
impl JobHandle for ContainerJob {
    async fn stop(&self) -> Result<(), Error> {
        self.signal("SIGTERM").await
    }

    async fn kill(&self) -> Result<(), Error> {
        // A container that is paused takes no signal.
        if self.is_paused().await {
            self.docker.unpause_container(&self.id).await.ok();
        }
        self.signal("SIGKILL").await
    }

    async fn ending(&mut self) -> Result<Ending, Error> {
        let outage = self.outage.load(Ordering::Relaxed);
        let memory_limit = self.memory_limit;
        let state = match self.docker.inspect_container(&self.id, None).await {
            Ok(container) => container.state.unwrap_or_default(),
            Err(bollard::errors::Error::DockerResponseServerError { status_code: 404, .. }) => {
                let lost = Some("the container was removed while it ran".to_owned());
                return Ok(Ending { lost, memory_limit, outage, ..Ending::exited(None) });
            }
            Err(source) => return Err(Error::EngineLost { reason: source.to_string() }),
        };
        let exit_code = state.exit_code;
        let oom_killed = state.oom_killed == Some(true)
            || (exit_code == Some(137) && container::kernel_reported_oom(&self.docker, &self.id, &state).await);
        Ok(Ending { oom_killed, memory_limit, outage, ..Ending::exited(exit_code) })
    }

    async fn last_output(&self, most: usize) -> Option<Vec<u8>> {
        let options = LogsOptionsBuilder::new().stdout(true).stderr(true).tail(LAST_LINES).build();
        let mut stream = std::pin::pin!(self.docker.logs(&self.id, Some(options)));
        let mut last = Vec::new();
        while let Some(Ok(output)) = stream.next().await {
            last.extend_from_slice(&output.into_bytes());
            if last.len() > 2 * most {
                last.drain(..last.len() - most);
            }
        }
        Some(last)
    }

    async fn remove(&mut self) -> Result<(), Error> {
        remove_container(&self.docker, &self.id).await
    }
}

//! The Docker engine (and Podman's socket, which speaks the same language). The only place that knows bollard.

pub mod build;
mod connect;
mod container;
pub mod gpu;

use std::collections::HashMap;
use std::path::PathBuf;

use bollard::Docker;
use bollard::models::ContainerInspectResponse;
use bollard::query_parameters::{
    KillContainerOptionsBuilder, ListContainersOptionsBuilder, ListImagesOptionsBuilder, LogsOptionsBuilder,
    RemoveContainerOptionsBuilder,
};
use futures_util::StreamExt;
use pipe_spec::pipeline::Gpus;
use tokio::sync::mpsc;

use super::{Ending, Engine, Job, Launch, Line, LineSplitter, Source};
use crate::error::Error;
use gpu::Passthrough;

pub const LABEL_RUN: &str = "pipe.run";
pub const LABEL_ATTEMPT: &str = "pipe.attempt";
pub const LABEL_FOLDER: &str = "pipe.folder";
pub const LABEL_IMAGE: &str = "pipe.image";

pub struct DockerEngine {
    docker: Docker,
    /// The image that containers are made of; empty until one was chosen.
    image: String,
    info: Info,
}

/// What the daemon said about itself.
#[derive(Clone, Debug, Default)]
pub struct Info {
    pub address: String,
    pub version: String,
    pub api_version: String,
    pub runtimes: Vec<String>,
    pub cdi_spec_dirs: Vec<String>,
    /// Where it keeps its images, on its own machine.
    pub data_root: Option<String>,
    pub rootless: bool,
    /// Whether a container can be held to its memory.
    pub limits_memory: bool,
}

pub struct Container {
    id: String,
    memory_limit: Option<u64>,
}

/// A container that carries the label of a run.
#[derive(Clone, Debug)]
pub struct Labelled {
    pub id: String,
    pub run: String,
}

/// An image that was built by pipe.
#[derive(Clone, Debug, serde::Serialize)]
pub struct BuiltImage {
    pub name: String,
    pub id: String,
    pub size: i64,
    pub created: i64,
}

impl DockerEngine {
    pub async fn connect() -> Result<Self, Error> {
        let (docker, info) = connect::connect().await?;
        Ok(Self { docker, image: String::new(), info })
    }

    pub fn info(&self) -> &Info {
        &self.info
    }

    pub fn set_image(&mut self, image: String) {
        self.image = image;
    }

    /// The id of an image, or `None` when the daemon does not have it.
    pub async fn image_id(&self, name: &str) -> Result<Option<String>, Error> {
        match self.docker.inspect_image(name).await {
            Ok(image) => Ok(image.id),
            Err(bollard::errors::Error::DockerResponseServerError { status_code: 404, .. }) => Ok(None),
            Err(source) => Err(failed(source)),
        }
    }

    pub async fn images(&self) -> Result<Vec<BuiltImage>, Error> {
        let filters = HashMap::from([("label", vec![LABEL_IMAGE])]);
        let options = ListImagesOptionsBuilder::new().filters(&filters).build();
        let images = self.docker.list_images(Some(options)).await.map_err(failed)?;
        Ok(images
            .into_iter()
            .flat_map(|image| {
                let (id, size, created) = (image.id, image.size, image.created);
                image.repo_tags.into_iter().map(move |name| BuiltImage { name, id: id.clone(), size, created })
            })
            .collect())
    }

    /// The containers of all runs.
    pub async fn containers(&self) -> Result<Vec<Labelled>, Error> {
        let filters = HashMap::from([("label", vec![LABEL_RUN])]);
        let options = ListContainersOptionsBuilder::new().all(true).filters(&filters).build();
        let containers = self.docker.list_containers(Some(options)).await.map_err(failed)?;
        Ok(containers
            .into_iter()
            .filter_map(|container| Some(Labelled { id: container.id?, run: container.labels?.remove(LABEL_RUN)? }))
            .collect())
    }

    /// Ends and removes a container. One that is gone already is fine.
    pub async fn remove(&self, id: &str) -> Result<(), Error> {
        let options = RemoveContainerOptionsBuilder::new().force(true).v(true).build();
        match self.docker.remove_container(id, Some(options)).await {
            // 409: its removal is already under way.
            Ok(()) | Err(bollard::errors::Error::DockerResponseServerError { status_code: 404 | 409, .. }) => Ok(()),
            Err(source) => Err(failed(source)),
        }
    }

    async fn inspect(&self, id: &str) -> Result<ContainerInspectResponse, bollard::errors::Error> {
        self.docker.inspect_container(id, None).await
    }

    async fn signal(&self, handle: &Container, signal: &str) -> Result<(), Error> {
        let options = KillContainerOptionsBuilder::new().signal(signal).build();
        match self.docker.kill_container(&handle.id, Some(options)).await {
            // 404: gone. 409: it is not running any more.
            Ok(()) | Err(bollard::errors::Error::DockerResponseServerError { status_code: 404 | 409, .. }) => Ok(()),
            Err(source) => Err(failed(source)),
        }
    }
}

impl Engine for DockerEngine {
    type Handle = Container;

    fn name(&self) -> &'static str {
        "docker"
    }

    fn gpu(&self, gpus: &Gpus) -> Result<bool, Error> {
        Ok(Passthrough::choose(gpus, &self.info)?.is_some())
    }

    fn limits_memory(&self) -> bool {
        true
    }

    fn job_path(&self, _host: PathBuf, mounted: PathBuf) -> PathBuf {
        mounted
    }

    async fn launch(&self, launch: &Launch, gpus: &Gpus) -> Result<Job<Container>, Error> {
        let passthrough = Passthrough::choose(gpus, &self.info)?;
        let (name, body) = container::describe(launch, &self.image, passthrough.as_ref());
        let created = self
            .docker
            .create_container(
                Some(bollard::query_parameters::CreateContainerOptionsBuilder::new().name(&name).build()),
                body,
            )
            .await
            .map_err(failed)?;
        let id = created.id;
        if let Err(source) = self.docker.start_container(&id, None).await {
            self.remove(&id).await.ok();
            return Err(failed(source));
        }
        let (sender, lines) = mpsc::channel(1024);
        tokio::spawn(follow(self.docker.clone(), id.clone(), sender));
        Ok(Job { handle: Container { id: id.clone(), memory_limit: launch.memory }, id, lines })
    }

    async fn stop(&self, handle: &Container) -> Result<(), Error> {
        self.signal(handle, "SIGTERM").await
    }

    async fn kill(&self, handle: &Container) -> Result<(), Error> {
        self.signal(handle, "SIGKILL").await
    }

    async fn finish(&self, handle: Container) -> Result<Ending, Error> {
        let lost =
            |reason: String| Ending { exit_code: None, oom_killed: false, memory_limit: None, lost: Some(reason) };
        let state = match self.inspect(&handle.id).await {
            Ok(container) => container.state.unwrap_or_default(),
            Err(bollard::errors::Error::DockerResponseServerError { status_code: 404, .. }) => {
                return Ok(lost("the container was removed while it ran".to_owned()));
            }
            Err(source) => return Err(Error::EngineLost { reason: source.to_string() }),
        };
        let exit_code = state.exit_code;
        let oom_killed = state.oom_killed == Some(true)
            || (exit_code == Some(137) && container::kernel_told_of_oom(&self.docker, &handle.id, &state).await);
        self.remove(&handle.id).await?;
        Ok(Ending { exit_code, oom_killed, memory_limit: handle.memory_limit, lost: None })
    }
}

/// Sends the container's lines until it ends. When the stream breaks off and the container still runs, it is read again
/// from its beginning and what was sent before is left out.
async fn follow(docker: Docker, id: String, to: mpsc::Sender<Line>) {
    let (mut sent_stdout, mut sent_stderr) = (0, 0);
    loop {
        let options = LogsOptionsBuilder::new().follow(true).stdout(true).stderr(true).tail("all").build();
        let mut stream = std::pin::pin!(docker.logs(&id, Some(options)));
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
        let running = docker.inspect_container(&id, None).await.ok().and_then(|container| container.state?.running);
        if running != Some(true) {
            for line in [stdout.splitter.end(), stderr.splitter.end()].into_iter().flatten() {
                to.send(line).await.ok();
            }
            return;
        }
        tracing::debug!("the log of {id} broke off; reading it again");
        tokio::time::sleep(std::time::Duration::from_millis(200)).await;
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

fn failed(source: bollard::errors::Error) -> Error {
    Error::Engine { engine: "docker", source: Box::new(source) }
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

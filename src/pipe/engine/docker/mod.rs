//! The Docker engine (and Podman's socket, which speaks the same language). The only place that knows bollard.

pub mod build;
mod connect;
mod container;
mod follow;
pub mod gpu;

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bollard::Docker;
use bollard::models::{ContainerInspectResponse, ContainerStateStatusEnum};
use bollard::query_parameters::{
    KillContainerOptionsBuilder, ListContainersOptionsBuilder, ListImagesOptionsBuilder, RemoveContainerOptionsBuilder,
};
use pipe_spec::pipeline::Gpus;
use tokio::sync::mpsc;

use super::{Ending, Engine, Found, Job, Launch};
use crate::error::Error;
use follow::Follower;
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
    /// Whether the daemon went away while it ran.
    outage: Arc<AtomicBool>,
}

/// A container that carries the label of a run.
#[derive(Clone, Debug)]
pub struct Labelled {
    pub id: String,
    pub run: String,
    pub attempt: Option<u32>,
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
            .filter_map(|container| {
                let mut labels = container.labels?;
                let attempt = labels.get(LABEL_ATTEMPT).and_then(|number| number.parse().ok());
                Some(Labelled { id: container.id?, run: labels.remove(LABEL_RUN)?, attempt })
            })
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

    /// Whatever the container writes, from its first line on.
    fn follow(&self, id: String, launch: &Launch) -> Job<Container> {
        let (sender, lines) = mpsc::channel(1024);
        let outage = Arc::new(AtomicBool::new(false));
        tokio::spawn(Follower::new(self.docker.clone(), id.clone(), outage.clone()).follow(sender));
        Job { handle: Container { id: id.clone(), memory_limit: launch.memory, outage }, id, lines }
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
        Ok(self.follow(id, launch))
    }

    async fn find(&self, launch: &Launch, id: Option<&str>) -> Result<Found<Container>, Error> {
        let name = container::name(launch);
        let found = match self.inspect(&name).await {
            Ok(found) => found,
            Err(bollard::errors::Error::DockerResponseServerError { status_code: 404, .. }) => {
                return Ok(if id.is_some() { Found::Gone } else { Found::Nothing });
            }
            Err(source) => return Err(failed(source)),
        };
        let status = found.state.and_then(|state| state.status);
        let runs = status == Some(ContainerStateStatusEnum::RUNNING);
        let Some(id) = found.id else { return Ok(Found::Gone) };
        if status == Some(ContainerStateStatusEnum::CREATED) {
            self.remove(&id).await?;
            return Ok(Found::Nothing);
        }
        let job = self.follow(id, launch);
        // One that was ended while nobody looked was not ended by a person who wanted the run to stop.
        job.handle.outage.store(!runs, Ordering::Relaxed);
        Ok(Found::Job(job))
    }

    async fn stop(&self, handle: &Container) -> Result<(), Error> {
        self.signal(handle, "SIGTERM").await
    }

    async fn kill(&self, handle: &Container) -> Result<(), Error> {
        self.signal(handle, "SIGKILL").await
    }

    async fn ending(&self, handle: &mut Container) -> Result<Ending, Error> {
        let outage = handle.outage.load(Ordering::Relaxed);
        let memory_limit = handle.memory_limit;
        let state = match self.inspect(&handle.id).await {
            Ok(container) => container.state.unwrap_or_default(),
            Err(bollard::errors::Error::DockerResponseServerError { status_code: 404, .. }) => {
                let lost = Some("the container was removed while it ran".to_owned());
                return Ok(Ending { exit_code: None, oom_killed: false, memory_limit, lost, outage });
            }
            Err(source) => return Err(Error::EngineLost { reason: source.to_string() }),
        };
        let exit_code = state.exit_code;
        let oom_killed = state.oom_killed == Some(true)
            || (exit_code == Some(137) && container::kernel_told_of_oom(&self.docker, &handle.id, &state).await);
        Ok(Ending { exit_code, oom_killed, memory_limit, lost: None, outage })
    }

    async fn clear(&self, handle: Container) -> Result<(), Error> {
        self.remove(&handle.id).await
    }

    async fn clear_run(&self, run_id: &str, except: Option<u32>) -> Result<(), Error> {
        for container in self.containers().await? {
            if container.run == run_id && (except.is_none() || container.attempt != except) {
                self.remove(&container.id).await?;
            }
        }
        Ok(())
    }
}

fn failed(source: bollard::errors::Error) -> Error {
    Error::Engine { engine: "docker", source: Box::new(source) }
}

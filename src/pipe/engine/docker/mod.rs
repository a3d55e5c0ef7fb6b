//! The Docker engine (and Podman's socket, which speaks the same language). The only place that knows bollard.

mod connect;
mod container;
mod gpu;
mod image;
mod push;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use bollard::Docker;
use bollard::models::{ContainerInspectResponse, ContainerStateStatusEnum};
use bollard::query_parameters::{
    CreateContainerOptionsBuilder, ListContainersOptionsBuilder, ListImagesOptionsBuilder,
    RemoveContainerOptionsBuilder, RemoveImageOptions,
};
use container::{ContainerJob, Follower};
use futures_util::FutureExt;
use gpu::Passthrough;
use pipe_spec::Device;
use pipe_spec::lock::Program;
use pipe_spec::pipeline::{Container, Gpus, Image};
use pipe_spec::run::LogPosition;

use super::{
    BuiltImage, Engine, EngineJob, FoundJob, ImageStore, JobProgram, Launch, Output, Progress, Registration,
    StartedJob, first_process, line_channel,
};
use crate::error::Error;
use crate::gpu::Card;
use crate::image::{ImageBuild, ImageConfig, check_cards};

pub const LABEL_RUN: &str = "pipe.run";
pub const LABEL_ATTEMPT: &str = "pipe.attempt";
pub const LABEL_FOLDER: &str = "pipe.folder";
pub const LABEL_IMAGE: &str = "pipe.image";
pub const LABEL_EXPORT: &str = "pipe.export";

const NAME: &str = "docker";

/// Where the loader looks for libraries.
const LIBRARY_PATH: &str = "LD_LIBRARY_PATH";

/// How long the daemon may take to finish what a killed `pipe` asked of it, and how often that is looked at.
const NAME_TIMEOUT: Duration = Duration::from_secs(30);
const NAME_INTERVAL: Duration = Duration::from_millis(100);

pub const REGISTRATION: Registration = Registration {
    name: NAME,
    section: None,
    nodes: |_| 1,
    repository: |_| None,
    supervises: |_| false,
    connect: |_| async { Ok(Box::new(DockerEngine::connect().await?) as Box<dyn Engine>) }.boxed_local(),
    is_tried: true,
    keeps_jobs: true,
    has_images: true,
    doctor: |host| crate::engine::docker::connect::checks(host).boxed_local(),
    doctor_help: "",
};

struct DockerEngine {
    docker: Docker,
    info: Info,
}

/// The daemon's description of itself.
#[derive(Clone, Debug, Default)]
pub struct Info {
    pub address: String,
    /// `docker` or `podman`.
    pub product: &'static str,
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

impl DockerEngine {
    async fn connect() -> Result<Self, Error> {
        let (docker, info) = connect::connect().await?;
        Ok(Self { docker, info })
    }

    /// Follows the output of a container, from its first line on or from where it was read to.
    fn follow(&self, id: String, launch: &Launch, read: Option<&LogPosition>, ended: bool) -> StartedJob {
        let (sender, lines) = line_channel();
        // A container that ended while no `pipe` watched was not ended by a person who wanted the run to stop.
        let outage = Arc::new(AtomicBool::new(ended));
        let output = Output::of(launch, read);
        let follower = Follower { docker: self.docker.clone(), id: id.clone(), output, outage: outage.clone() };
        tokio::spawn(follower.follow(sender));
        let handle = ContainerJob::new(self.docker.clone(), id.clone(), launch, outage);
        StartedJob { handle: Box::new(handle), id, lines }
    }

    async fn inspect(&self, id: &str) -> Result<ContainerInspectResponse, bollard::errors::Error> {
        self.docker.inspect_container(id, None).await
    }

    fn program_of(&self, image: String, image_id: Option<String>) -> Program {
        Program {
            engine: NAME.to_owned(),
            engine_version: Some(self.info.version.clone()),
            image: Some(image),
            image_id,
            ..Program::default()
        }
    }
}

#[async_trait(?Send)]
impl Engine for DockerEngine {
    fn name(&self) -> &'static str {
        NAME
    }

    fn describe(&self) -> String {
        let Info { product, version, address, .. } = &self.info;
        match *product == NAME {
            true => format!("{NAME} {version} at {address}"),
            false => format!("{NAME} ({product} {version}) at {address}"),
        }
    }

    fn device(&self, gpus: &Gpus) -> Result<Device, Error> {
        Ok(if Passthrough::choose(gpus, &self.info)?.is_some() { Device::Cuda } else { Device::Cpu })
    }

    fn cards(&self, gpus: &Gpus) -> Vec<Card> {
        Card::read(gpus)
    }

    fn check(&self, container: &Container) -> Result<(), Error> {
        match self.device(&container.gpus)? {
            Device::Cpu => Ok(()),
            Device::Cuda => check_cards(container.image.as_ref(), true, &self.cards(&container.gpus)),
        }
    }

    fn limits_memory(&self) -> bool {
        self.info.limits_memory
    }

    fn job_path(&self, _host: PathBuf, mounted: PathBuf) -> PathBuf {
        mounted
    }

    async fn program(&self, image: Option<&Image>) -> Result<Program, Error> {
        let name = match image {
            Some(Image::Existing(name)) => name.clone(),
            image => image::prepare_build(image).await?.name,
        };
        let id = self.image_id(&name).await?;
        Ok(self.program_of(name, id))
    }

    fn preparation(&self) -> &'static str {
        "building the image"
    }

    async fn prepare(
        &self,
        image: Option<&Image>,
        first: Option<&Program>,
        progress: &mut dyn Progress,
    ) -> Result<Program, Error> {
        let first = first.and_then(|first| first.image.as_deref());
        let mut outages = 0;
        loop {
            let ready = async {
                let name = self.ready_image(image, first, progress).await?;
                let id = self.image_id(&name).await?;
                Ok(self.program_of(name, id))
            };
            match ready.await {
                Err(error @ Error::EngineLost { .. }) if outages < MAX_OUTAGES => {
                    outages += 1;
                    progress.note(&container::waiting());
                    if !container::answers_again(&self.docker).await {
                        return Err(error);
                    }
                    progress.note(container::ANSWERS);
                }
                ready => return ready,
            }
        }
    }

    async fn start(&self, launch: &Launch) -> Result<StartedJob, Error> {
        let launch = &self.in_its_image(launch).await?;
        let passthrough = Passthrough::choose(&launch.resources.gpus, &self.info)?;
        let first = first_process::prepare(launch)?;
        let entrypoint = match &launch.program {
            JobProgram::Trainer => self.entrypoint(launch.image.as_deref()).await?,
            JobProgram::Command(program) => vec![program.clone()],
        };
        let (name, mut body) =
            container::describe(launch, &first, entrypoint, passthrough.as_ref(), self.info.rootless);
        if let (JobProgram::Command(_), Some(Passthrough::Devices { .. })) = (&launch.program, &passthrough) {
            // Our own image has the folder of the driver on its library path; those of others have theirs.
            let known = launch.env.get(LIBRARY_PATH).cloned();
            let before = if known.is_some() { known } else { self.library_path(launch.image.as_deref()).await };
            let all = [Some(Passthrough::DRIVER_FOLDER.to_owned()), before];
            let all = all.into_iter().flatten().collect::<Vec<_>>().join(":");
            let env = body.env.get_or_insert_default();
            env.retain(|entry| !entry.starts_with(&format!("{LIBRARY_PATH}=")));
            env.push(format!("{LIBRARY_PATH}={all}"));
        }
        let create = |body| {
            let options = CreateContainerOptionsBuilder::new().name(&name).build();
            self.docker.create_container(Some(options), body)
        };
        let deadline = Instant::now() + NAME_TIMEOUT;
        let created = loop {
            match create(body.clone()).await {
                // A `pipe` that was killed had sent the same request. The daemon finishes it after `find` did not see the
                // container, and keeps the name until then.
                Err(refused) if is_conflict(&refused) && Instant::now() < deadline => {
                    if let FoundJob::Job(job) = self.find(launch, None, None).await? {
                        return Ok(job);
                    }
                    tokio::time::sleep(NAME_INTERVAL).await;
                }
                created => break created,
            }
        };
        let id = match created {
            Ok(created) => created.id,
            // The daemon may have made it: the next process that resumes the run looks for it.
            Err(source) if !is_answer(&source) => return Err(Error::EngineLost { reason: source.to_string() }),
            Err(source) => return Err(failed(source)),
        };
        match self.docker.start_container(&id, None).await {
            Ok(()) => Ok(self.follow(id, launch, None, false)),
            // The daemon may have started it, and starts it otherwise once it answers again.
            Err(source) if !is_answer(&source) => Ok(self.follow(id, launch, None, true)),
            Err(source) => {
                self.remove(&id).await.ok();
                Err(failed(source))
            }
        }
    }

    async fn find(&self, launch: &Launch, id: Option<&str>, read: Option<&LogPosition>) -> Result<FoundJob, Error> {
        let name = container::name(launch);
        let found = match self.inspect(&name).await {
            Ok(found) => found,
            Err(bollard::errors::Error::DockerResponseServerError { status_code: 404, .. }) => {
                return Ok(if id.is_some() { FoundJob::Gone } else { FoundJob::NotStarted });
            }
            Err(error) if is_stopped(&error) => return Ok(FoundJob::Job(self.follow(name, launch, read, true))),
            Err(source) => return Err(failed(source)),
        };
        let status = found.state.and_then(|state| state.status);
        let runs = status == Some(ContainerStateStatusEnum::RUNNING);
        let Some(id) = found.id else { return Ok(FoundJob::Gone) };
        if status == Some(ContainerStateStatusEnum::CREATED) {
            self.remove(&id).await?;
            return Ok(FoundJob::NotStarted);
        }
        Ok(FoundJob::Job(self.follow(id, launch, read, !runs)))
    }

    async fn jobs(&self) -> Result<Vec<EngineJob>, Error> {
        let list = async |status: Option<Vec<&str>>| {
            let label = ("label", vec![LABEL_RUN]);
            let filters: HashMap<_, _> = [label].into_iter().chain(status.map(|status| ("status", status))).collect();
            let options = ListContainersOptionsBuilder::new().all(true).filters(&filters).build();
            self.docker.list_containers(Some(options)).await
        };
        let containers = match list(None).await {
            // One of them cannot be described: it has ended.
            Err(error) if is_stopped(&error) => list(Some(vec!["created", "running", "paused"])).await,
            listed => listed,
        };
        let containers = containers.map_err(failed)?;
        let job = |container: bollard::models::ContainerSummary| {
            let mut labels = container.labels?;
            let attempt = labels.get(LABEL_ATTEMPT).and_then(|number| number.parse().ok());
            Some(EngineJob { id: container.id?, run: labels.remove(LABEL_RUN)?, attempt })
        };
        Ok(containers.into_iter().filter_map(job).collect())
    }

    async fn remove(&self, id: &str) -> Result<(), Error> {
        remove_container(&self.docker, id).await
    }

    fn images(&self) -> Option<&dyn ImageStore> {
        Some(self)
    }
}

#[async_trait(?Send)]
impl ImageStore for DockerEngine {
    async fn ensure(&self, build: &ImageBuild, progress: &mut dyn Progress) -> Result<bool, Error> {
        self.ensure_image(build, progress).await
    }

    async fn image_id(&self, name: &str) -> Result<Option<String>, Error> {
        match self.docker.inspect_image(name).await {
            Ok(image) => Ok(image.id),
            Err(bollard::errors::Error::DockerResponseServerError { status_code: 404, .. }) => Ok(None),
            Err(source) => Err(failed(source)),
        }
    }

    async fn push(&self, name: &str, target: &str, progress: &mut dyn Progress) -> Result<String, Error> {
        self.push_image(name, target, progress).await
    }

    async fn digest(&self, name: &str) -> Result<Option<String>, Error> {
        self.digest_of(name).await
    }

    async fn built_images(&self) -> Result<Vec<BuiltImage>, Error> {
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

    async fn remove_image(&self, name: &str) -> Result<bool, Error> {
        match self.docker.remove_image(name, None::<RemoveImageOptions>, None).await {
            Ok(_) | Err(bollard::errors::Error::DockerResponseServerError { status_code: 404, .. }) => Ok(true),
            Err(bollard::errors::Error::DockerResponseServerError { status_code: 409, .. }) => Ok(false),
            Err(source) => Err(failed(source)),
        }
    }

    async fn export(&self, image: &str, folder: &Path) -> Result<ImageConfig, Error> {
        self.export_image(image, folder).await
    }
}

/// Ends and removes a container. One that is gone already is fine.
async fn remove_container(docker: &Docker, id: &str) -> Result<(), Error> {
    let options = RemoveContainerOptionsBuilder::new().force(true).v(true).build();
    match docker.remove_container(id, Some(options)).await {
        Ok(()) | Err(bollard::errors::Error::DockerResponseServerError { status_code: 404, .. }) => Ok(()),
        // Its removal is already under way.
        Err(refused) if is_conflict(&refused) => Ok(()),
        Err(source) => Err(failed(source)),
    }
}

/// Whether a container has ended and Podman has not cleaned up after it: a state that Docker does not have.
fn is_stopped(error: &bollard::errors::Error) -> bool {
    error.to_string().contains("unknown variant `stopped`")
}

/// Whether an error is what the daemon has answered. Without an answer nobody knows what it has done.
fn is_answer(error: &bollard::errors::Error) -> bool {
    matches!(error, bollard::errors::Error::DockerResponseServerError { .. })
}

/// Whether a container is not in the state that the request needs, or its name is taken. Docker answers 409 then, Podman 500.
fn is_conflict(error: &bollard::errors::Error) -> bool {
    match error {
        bollard::errors::Error::DockerResponseServerError { status_code: 409, .. } => true,
        bollard::errors::Error::DockerResponseServerError { status_code: 500, message } => {
            ["name is already in use", "container state improper", "already been removed"]
                .iter()
                .any(|text| message.contains(text))
        }
        _ => false,
    }
}

/// How often a daemon may go away while an image is made ready.
const MAX_OUTAGES: u32 = 3;

fn failed(source: bollard::errors::Error) -> Error {
    if is_outage(&source) {
        return Error::EngineLost { reason: source.to_string() };
    }
    let refused = matches!(source, bollard::errors::Error::DockerResponseServerError { status_code: 400, .. });
    Error::Engine { engine: NAME, refused, source: Box::new(source) }
}

/// Whether a request was not answered because the daemon has gone away, or does nothing.
fn is_outage(error: &bollard::errors::Error) -> bool {
    use bollard::errors::Error::{
        HyperLegacyError, HyperResponseError, IOError, RequestTimeoutError, SocketNotFoundError,
    };
    matches!(
        error,
        HyperLegacyError { .. }
            | HyperResponseError { .. }
            | IOError { .. }
            | RequestTimeoutError
            | SocketNotFoundError(_)
    )
}

//! The engine for clusters with Slurm: jobs go out with sbatch, and are watched through the run folder, which all nodes see.

mod doctor;
mod image;
mod job;
mod programs;
mod script;
mod section;
mod state;
mod trainer_folder;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use futures_util::FutureExt;
use image::{ImageFolder, ReadyImage};
use job::{ClusterJob, Follower, JobFiles};
use pipe_spec::Device;
use pipe_spec::lock::Program;
use pipe_spec::pipeline::{Container, EngineRequest, Gpus, Image, SectionType};
use pipe_spec::run::LogPosition;
use programs::{Config, Failure, NodeGroup, NodeSize, SeenJob};
use script::{Root, RootFiles};
use section::{Cluster, ContainerRuntime};

use super::{
    ConnectImages, Connection, Engine, EngineJob, FoundJob, JobProgram, Launch, Progress, Registration, Resources,
    StartedJob, first_process, line_channel,
};
use crate::error::Error;
use crate::gpu::Card;
use crate::image::{libraries_digest, trainer_digest};
use crate::system::interrupt;

const NAME: &str = "slurm";

/// How long a controller that does not answer is waited for when a job is submitted.
const AWAY_TIMEOUT: Duration = Duration::from_secs(300);
const AWAY_INTERVAL: Duration = Duration::from_secs(5);

/// How often a job is submitted again where the user has as many as he may.
const FULL_INTERVAL: Duration = Duration::from_secs(30);

/// How long a job that was cancelled may take to end.
const CANCEL_TIMEOUT: Duration = Duration::from_secs(90);

const REFUSED_HINT: &str = "`sinfo` shows the partitions and their limits, `sacctmgr show assoc user=$USER` the accounts; `slurm` in \
                            the pipeline, or --set slurm.partition=NAME, chooses them";

pub const REGISTRATION: Registration = Registration {
    name: NAME,
    section: Some(SectionType::of::<Cluster>()),
    nodes: |request| settings(request).nodes.get(),
    repository: |_| None,
    supervises: |_| false,
    connect: |connection| {
        async move { Ok(Box::new(SlurmEngine::connect(connection).await?) as Box<dyn Engine>) }.boxed_local()
    },
    is_tried: false,
    keeps_jobs: true,
    has_images: false,
    doctor: |host| doctor::checks(host).boxed_local(),
    doctor_help: "runs a small job on the cluster",
};

/// A command without an image runs without a container.
fn settings(request: &EngineRequest) -> Cluster {
    let mut settings: Cluster = request.section(NAME);
    if request.without_image {
        settings.containers.get_or_insert(ContainerRuntime::None);
    }
    settings
}

struct SlurmEngine {
    settings: Cluster,
    config: Config,
    groups: Vec<NodeGroup>,
    runtime: ContainerRuntime,
    images: ConnectImages,
    /// The images that `prepare` has exported, by their names.
    image_folders: RefCell<BTreeMap<String, ImageFolder>>,
}

impl SlurmEngine {
    async fn connect(connection: Connection) -> Result<Self, Error> {
        let Connection { request, images } = connection;
        let settings = settings(&request);
        interrupt::run(move || {
            let failed = |failure: Failure| failure.error(REFUSED_HINT);
            let config = programs::config().map_err(failed)?;
            let groups = programs::node_groups().map_err(failed)?;
            let runtime = script::choose(settings.containers);
            Ok((settings, config, groups, runtime))
        })
        .await
        .map(|(settings, config, groups, runtime)| Self {
            settings,
            config,
            groups,
            runtime,
            images,
            image_folders: RefCell::default(),
        })
    }

    /// The nodes that jobs of this run may have.
    fn own_groups(&self) -> impl Iterator<Item = &NodeGroup> {
        // Several may be named, with commas between them.
        let wanted = |group: &&NodeGroup| match &self.settings.partition {
            Some(names) => names.split(',').any(|name| name == group.partition),
            None => group.is_default,
        };
        self.groups.iter().filter(wanted)
    }

    /// Cards of a node of the partition: those of the one that has most of them, unless all of any node are wanted.
    fn present_cards(&self, gpus: &Gpus) -> Option<u32> {
        let cards = self.own_groups().map(|group| group.cards).filter(|cards| *cards > 0);
        if *gpus == Gpus::All { cards.min() } else { cards.max() }
    }

    /// How long a job may take that does not say so.
    fn time_limit(&self) -> Option<Duration> {
        let group = self.own_groups().next()?;
        let seconds = section::seconds(&group.default_time).or_else(|| section::seconds(&group.time_limit))?;
        Some(Duration::from_secs(seconds))
    }

    /// Names the requests of the job that no node of its partition can meet.
    fn too_large(&self, launch: &Launch) -> Vec<String> {
        let Resources { gpus, memory, cpus, .. } = &launch.resources;
        let asked = NodeSize {
            cpus: cpus.map_or(0, |cpus| cpus.ceil() as u64),
            memory: memory.map_or(0, |bytes| bytes.div_ceil(1 << 20)),
            cards: script::cards(gpus, self.present_cards(gpus)).into(),
        };
        let is_own = |partition: &str| self.own_groups().any(|group| group.partition == partition);
        programs::too_large(&asked, &programs::node_sizes(is_own))
    }

    fn options(&self, launch: &Launch) -> Vec<String> {
        let cards = script::cards(&launch.resources.gpus, self.present_cards(&launch.resources.gpus));
        script::options(launch, &self.settings, cards, self.settings.save_before(self.time_limit()))
    }

    fn follow(&self, id: String, launch: &Launch, read: Option<&LogPosition>) -> StartedJob {
        let (sender, lines) = line_channel();
        let refused = Arc::default();
        let follower =
            Follower::new(&self.config.cluster, id.clone(), JobFiles::of(launch), Arc::clone(&refused), read);
        tokio::spawn(follower.follow(sender));
        let handle = ClusterJob::new(id.clone(), launch, refused);
        StartedJob { handle: Box::new(handle), id, lines }
    }

    /// The jobs of this user that were seen at most so long ago.
    async fn seen(&self, oldest: Duration) -> Result<Vec<SeenJob>, Error> {
        let cluster = self.config.cluster.clone();
        interrupt::run(move || {
            crate::engine::slurm::job::jobs(&cluster, oldest).map_err(|failure| failure.error(REFUSED_HINT))
        })
        .await
    }

    /// The root folder of a job, on a file system that the nodes see.
    async fn root(&self, launch: &Launch) -> Result<Root, Error> {
        let files = match (&launch.image, &launch.program) {
            (Some(name), _) => match self.image_folders.borrow().get(name) {
                Some(folder) => RootFiles::Image(folder.clone()),
                None => RootFiles::Pulled(name.clone()),
            },
            (None, JobProgram::Trainer) => RootFiles::Trainer(interrupt::run(trainer_folder).await?),
            (None, JobProgram::Command(_)) => RootFiles::OfNode,
        };
        Ok(Root { runtime: self.runtime, files })
    }

    fn program_in(&self, image: String, image_id: Option<String>) -> Program {
        Program {
            engine: NAME.to_owned(),
            engine_version: Some(self.config.version.clone()),
            image: Some(image),
            image_id,
            ..Program::default()
        }
    }

    /// Submits a job. Where the controller does not answer, it may have taken the job all the same.
    async fn submit(&self, launch: &Launch, script: String) -> Result<String, Error> {
        let mut args = vec!["--parsable".to_owned()];
        let name = script::name(&launch.run_id, launch.attempt);
        args.extend(script::naming(&name, JobFiles::of(launch).folder(), crate::engine::slurm::job::OUTPUT));
        args.extend(self.options(launch));
        let began = Instant::now();
        loop {
            let (own, text) = (args.clone(), script.clone());
            match interrupt::run(move || Ok(programs::sbatch(&own, &text))).await? {
                Ok(id) => return Ok(id),
                Err(Failure::Away { said }) if began.elapsed() < AWAY_TIMEOUT => {
                    tracing::warn!("{said}; trying again");
                    // It may have taken the job all the same. As long as that is not known, none is submitted.
                    loop {
                        tokio::time::sleep(AWAY_INTERVAL).await;
                        match self.find_by_name(launch).await {
                            Ok(Some(id)) => return Ok(id),
                            Ok(None) => break,
                            Err(error) if began.elapsed() > AWAY_TIMEOUT => return Err(error),
                            Err(_) => {}
                        }
                    }
                }
                // There are as many jobs of the user as the cluster takes: some will end.
                Err(Failure::Refused { said }) if said.contains("SubmitJob") => {
                    tracing::warn!("{said}; trying again every {} s", FULL_INTERVAL.as_secs());
                    tokio::time::sleep(FULL_INTERVAL).await;
                }
                Err(failure) => return Err(failure.error(REFUSED_HINT)),
            }
        }
    }

    async fn find_by_name(&self, launch: &Launch) -> Result<Option<String>, Error> {
        let name = script::name(&launch.run_id, launch.attempt);
        let jobs = self.seen(Duration::ZERO).await?;
        Ok(jobs.into_iter().rev().find(|job| job.name == name).map(|job| job.id))
    }
}

fn trainer_folder() -> Result<PathBuf, Error> {
    trainer_folder::ensure(&trainer_digest()?, libraries_digest().as_deref())
}

#[async_trait(?Send)]
impl Engine for SlurmEngine {
    fn name(&self) -> &'static str {
        NAME
    }

    fn describe(&self) -> String {
        let containers = match self.runtime {
            ContainerRuntime::None => "no containers: the trainer runs as it is".to_owned(),
            runtime => format!("containers by {}", runtime.name()),
        };
        format!("{NAME} {}, cluster {}, {containers}", self.config.version, self.config.cluster)
    }

    fn device(&self, gpus: &Gpus) -> Result<Device, Error> {
        match gpus {
            Gpus::Count(0) => Ok(Device::Cpu),
            Gpus::Auto if self.present_cards(gpus).is_none() => Ok(Device::Cpu),
            Gpus::Auto | Gpus::Count(_) | Gpus::All | Gpus::Ids(_) => Ok(Device::Cuda),
        }
    }

    /// They are on other machines.
    fn cards(&self, _gpus: &Gpus) -> Vec<Card> {
        Vec::new()
    }

    fn cards_of_node(&self, gpus: &Gpus) -> Option<u32> {
        self.present_cards(gpus)
    }

    fn is_here(&self) -> bool {
        false
    }

    fn nodes(&self) -> u32 {
        self.settings.nodes.get()
    }

    fn fewest_nodes(&self) -> u32 {
        self.settings.fewest_nodes()
    }

    async fn usable_nodes(&self) -> Option<u32> {
        let nodes = interrupt::run(|| programs::nodes().map_err(|failure| failure.error(""))).await.ok()?;
        let constraint = self.settings.constraint.as_deref().unwrap_or_default();
        let is_own = |partition: &str| self.own_groups().any(|group| group.partition == partition);
        Some(programs::usable_count(&nodes, is_own, constraint))
    }

    fn check(&self, _container: &Container) -> Result<(), Error> {
        Ok(())
    }

    async fn check_request(&self, container: &Container) -> Result<(), Error> {
        let refused = |said: String, hint: &str| Error::JobRefused { engine: NAME, said, hint: hint.to_owned() };
        if let Gpus::Ids(_) = container.gpus {
            let said = "container.gpus names cards: the cluster chooses them".to_owned();
            return Err(refused(said, "give their number: --set container.gpus=1"));
        }
        image::check(self.images, self.runtime, container.image.as_ref()).await?;
        if self.own_groups().next().is_none() {
            let mut known: Vec<&str> = self.groups.iter().map(|group| group.partition.as_str()).collect();
            known.dedup();
            let said = match &self.settings.partition {
                Some(name) => format!("there is no partition {name}; partitions: {}", known.join(", ")),
                None => format!("the cluster has no default partition; partitions: {}", known.join(", ")),
            };
            return Err(refused(said, "choose one: --set slurm.partition=NAME"));
        }
        let present: u32 = self.own_groups().map(|group| group.nodes).sum();
        if present < self.nodes() {
            let said = format!("slurm.nodes asks for {} nodes; the partition has {present}", self.nodes());
            return Err(refused(
                said,
                "--set slurm.nodes=1, or choose another partition with --set slurm.partition=NAME",
            ));
        }
        if self.runtime == ContainerRuntime::Charliecloud && self.device(&container.gpus)? == Device::Cuda {
            let said = "with Charliecloud there are no GPUs in a container: the libraries of the driver are missing"
                .to_owned();
            return Err(refused(
                said,
                "run without a container: --set slurm.containers=none; or on the CPU: --set container.gpus=0",
            ));
        }
        // A job that the cluster would refuse is refused here too, and nothing is queued.
        // Those that are down now may be up when it is its turn.
        let launch = Launch::example(container, self.fewest_nodes());
        let mut args = vec!["--test-only".to_owned()];
        args.extend(self.options(&launch));
        args.extend(["--wrap".to_owned(), "true".to_owned()]);
        match programs::call("sbatch", &args) {
            Err(Failure::Refused { said }) => {
                let reasons = self.too_large(&launch);
                let said = if reasons.is_empty() { said } else { format!("{said}: {}", reasons.join("; ")) };
                Err(refused(said, REFUSED_HINT))
            }
            _ => Ok(()),
        }
    }

    fn limits_memory(&self) -> bool {
        self.config.limits_memory
    }

    fn has_queue(&self) -> bool {
        true
    }

    fn job_path(&self, host: PathBuf, mounted: PathBuf) -> PathBuf {
        if self.runtime == ContainerRuntime::None { host } else { mounted }
    }

    async fn program(&self, image: Option<&Image>) -> Result<Program, Error> {
        let engine_version = Some(self.config.version.clone());
        if let Some(image) = image {
            let (name, id) = image::identify(self.images, image).await?;
            return Ok(self.program_in(name, id));
        }
        let digests = || Ok((trainer_digest()?, libraries_digest()));
        let (trainer, libraries) = interrupt::run(digests).await?;
        Ok(Program { engine: NAME.to_owned(), engine_version, trainer: Some(trainer), libraries, ..Program::default() })
    }

    fn preparation(&self) -> &'static str {
        "preparing what the nodes run"
    }

    async fn prepare(
        &self,
        image: Option<&Image>,
        first: Option<&Program>,
        progress: &mut dyn Progress,
    ) -> Result<Program, Error> {
        let Some(image) = image else {
            // The folder of the trainer is made when a job needs it: a command does not.
            return self.program(None).await;
        };
        let ReadyImage { name, id, folder } = image::prepare(self.images, self.runtime, image, first, progress).await?;
        if let Some(folder) = folder {
            self.image_folders.borrow_mut().insert(name.clone(), folder);
        }
        Ok(self.program_in(name, id))
    }

    fn runs_in_image(&self, image: Option<&Image>) -> bool {
        image.is_some()
    }

    async fn start(&self, launch: &Launch) -> Result<StartedJob, Error> {
        let files = JobFiles::of(launch);
        let program = script::program(&self.root(launch).await?, launch)?;
        let folder = match (self.runtime, &launch.work_folder) {
            (ContainerRuntime::None, Some(folder)) => folder.clone(),
            (ContainerRuntime::None, None) => std::env::current_dir().unwrap_or_default(),
            // The runtime says where the job starts.
            _ => PathBuf::from("/"),
        };
        files.create_folder()?;
        let first = first_process::program(&launch.run_folder)?;
        let id = self.submit(launch, script::text(launch, &program, &first, &folder)).await?;
        Ok(self.follow(id, launch, None))
    }

    fn time_hint(&self) -> &'static str {
        "give a job more time: --set slurm.time=MINUTES; then continue with `pipe resume`"
    }

    async fn find(&self, launch: &Launch, id: Option<&str>, read: Option<&LogPosition>) -> Result<FoundJob, Error> {
        let files = JobFiles::of(launch);
        let known = id.map(str::to_owned).or_else(|| files.job_id());
        if let Some(id) = known {
            return Ok(FoundJob::Job(self.follow(id, launch, read)));
        }
        Ok(match self.find_by_name(launch).await? {
            Some(id) => FoundJob::Job(self.follow(id, launch, read)),
            None => FoundJob::NotStarted,
        })
    }

    async fn jobs(&self) -> Result<Vec<EngineJob>, Error> {
        let living = |job: &SeenJob| !job.state.has_ended();
        let job = |job: SeenJob| {
            let (run, attempt) = script::of_name(&job.name)?;
            Some(EngineJob { id: job.id, run, attempt: Some(attempt) })
        };
        Ok(self.seen(Duration::ZERO).await?.into_iter().filter(living).filter_map(job).collect())
    }

    async fn remove(&self, id: &str) -> Result<(), Error> {
        let id = id.to_owned();
        interrupt::run(move || {
            programs::scancel(&[&id]).map_err(|failure| failure.error(REFUSED_HINT))?;
            // Until it has ended it may still write.
            let began = Instant::now();
            while began.elapsed() < CANCEL_TIMEOUT {
                match programs::job(&id) {
                    Ok(Some(job)) if !job.has_ended() => std::thread::sleep(Duration::from_secs(1)),
                    _ => break,
                }
            }
            Ok(())
        })
        .await
    }
}

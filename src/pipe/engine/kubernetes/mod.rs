//! The engine for Kubernetes: a job is a pod, files travel by the API or lie on a volume, and the end is read from both. The only place
//! that knows kube.

mod client;
mod doctor;
mod download;
mod frames;
mod job;
mod nodes;
mod plan;
mod pod;
mod section;
mod state;
mod upload;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use client::{Cluster, Failure};
use futures_util::FutureExt;
use job::{Follower, PodJob, Shared};
use k8s_openapi::api::core::v1::{Node, Pod, Secret};
use nodes::{Member, NodesJob};
use pipe_spec::Device;
use pipe_spec::lock::Program;
use pipe_spec::pipeline::{Container, Gpus, Image, SectionType};
use pipe_spec::run::LogPosition;
use pipe_spec::text::human_bytes;
use plan::Plan;
use section::Pods;
use state::Stage;
use upload::Together;

use super::{
    ConnectImages, Connection, Engine, EngineJob, FoundJob, Launch, Output, Progress, Registration, StartedJob,
    line_channel,
};
use crate::error::Error;
use crate::gpu::Card;
use crate::image::check_cards;
use crate::system::interrupt;

const NAME: &str = "kubernetes";

/// How long a server that does not answer is waited for when a pod is made.
const AWAY_TIMEOUT: Duration = Duration::from_secs(300);
const AWAY_INTERVAL: Duration = Duration::from_secs(5);

/// How often a pod is tried again where the quota of the namespace is used up.
const FULL_INTERVAL: Duration = Duration::from_secs(15);

/// How long a pod that was removed may take to go away, and how often that is looked at.
const REMOVE_TIMEOUT: Duration = Duration::from_secs(30);
const REMOVE_INTERVAL: Duration = Duration::from_millis(500);

/// How long the secret of a pod that is gone may stay.
const STALE_TIMEOUT: Duration = Duration::from_secs(60);

pub const REGISTRATION: Registration = Registration {
    name: NAME,
    section: Some(SectionType::of::<Pods>()),
    nodes: |request| request.section::<Pods>(NAME).nodes.get(),
    repository: |request| request.section::<Pods>(NAME).image,
    supervises: |request| request.section::<Pods>(NAME).supervisor.is_some(),
    connect: |connection| {
        async move { Ok(Box::new(KubernetesEngine::connect(connection).await?) as Box<dyn Engine>) }.boxed_local()
    },
    is_tried: false,
    keeps_jobs: true,
    has_images: false,
    doctor: |host| doctor::checks(host).boxed_local(),
    doctor_help: "asks the cluster of the current context",
};

/// How many cards a pod asks for.
fn cards(gpus: &Gpus) -> u32 {
    match gpus {
        Gpus::Count(count) => *count,
        Gpus::Ids(ids) => ids.len() as u32,
        // Where there are none, the job computes on the CPU.
        Gpus::All | Gpus::Auto => 0,
    }
}

struct KubernetesEngine {
    settings: Pods,
    cluster: Cluster,
    /// Cards of the node that has most of them; nothing where nodes may not be read.
    present: Option<u32>,
    images: ConnectImages,
    /// The pipeline is a command and names no image.
    without_image: bool,
}

/// How many of a resource a node has for pods.
fn allocatable(node: &Node, resource: &str) -> u32 {
    let all = node.status.as_ref().and_then(|status| status.allocatable.as_ref());
    all.and_then(|all| all.get(resource)?.0.parse().ok()).unwrap_or(0)
}

impl KubernetesEngine {
    async fn connect(connection: Connection) -> Result<Self, Error> {
        let Connection { request, images } = connection;
        let settings: Pods = request.section(NAME);
        let address = request.address.as_deref().and_then(|address| serde_json::from_str(address).ok());
        let cluster = Cluster::connect(&settings, address.as_ref()).await?;
        let nodes = cluster.nodes().await.ok();
        let present = nodes
            .map(|nodes| nodes.iter().map(|node| allocatable(node, &settings.gpu_resource)).max().unwrap_or_default());
        Ok(Self { settings, cluster, present, images, without_image: request.without_image })
    }

    fn refused(&self, said: impl Into<String>, hint: &str) -> Error {
        Error::JobRefused { engine: NAME, said: said.into(), hint: hint.to_owned() }
    }

    /// A job with the cards that it asks for as a number.
    fn with_cards(&self, launch: &Launch) -> Launch {
        let mut launch = launch.clone();
        let present = self.present.unwrap_or(0);
        launch.resources.gpus = match launch.resources.gpus {
            Gpus::Auto => Gpus::Count(present.min(1)),
            Gpus::All => Gpus::Count(present),
            gpus => gpus,
        };
        launch
    }

    /// The pods of a job, that of the first node first.
    fn plans(&self, launch: &Launch) -> Vec<Plan> {
        let plan = |node| Plan::of_node(&nodes::launch_of(launch, node), &self.settings, node);
        (0..launch.resources.nodes.max(1)).map(plan).collect()
    }

    fn follow(&self, launch: &Launch, plans: Vec<Plan>, read: Option<&LogPosition>) -> StartedJob {
        let (sender, lines) = line_channel();
        let id = self.id(&plans[0].pod);
        let volume = self.settings.volume();
        let (mut jobs, mut pods) = (Vec::new(), Vec::new());
        for (plan, together) in plans.into_iter().zip(Together::new(launch.resources.nodes, volume.is_some())) {
            let (launch, is_first) = (nodes::launch_of(launch, plan.node), plan.node == 0);
            let is_read = volume.is_some() && is_first;
            let reader = is_read.then(|| pod::reader(&launch, &plan, &self.settings).ok()).flatten();
            let output = if is_first { Output::of(&launch, read) } else { Output::of_rest(&launch) };
            let shared = Arc::<Shared>::default();
            jobs.push(PodJob::new(
                self.cluster.clone(),
                &launch,
                plan.pod.clone(),
                volume.is_some(),
                Arc::clone(&shared),
            ));
            let member = Member { grace: pod::grace(&launch), shared: Arc::clone(&shared), together: together.clone() };
            pods.push((Follower::new(&self.cluster, plan, together, output, reader, shared), member));
        }
        tokio::spawn(nodes::follow(pods, sender));
        StartedJob { handle: Box::new(NodesJob(jobs)), id, lines }
    }

    fn id(&self, pod: &str) -> String {
        format!("{}/{pod}", self.cluster.namespace)
    }

    /// Refuses more than may be carried to a pod. What the run itself has written, such as its checkpoints, is carried in any case.
    async fn check_size(&self, plan: &Plan) -> Result<(), Error> {
        let plan = plan.clone();
        let files = interrupt::run(move || {
            upload::given(&plan).map_err(|source| Error::Read { path: PathBuf::from("the files of the job"), source })
        });
        let bytes: u64 = files.await?.iter().map(|file| file.size).sum();
        let limit = self.settings.upload_limit;
        if bytes <= limit.0 {
            return Ok(());
        }
        let said = format!(
            "the job reads {} of data, models and mounts, which is more than kubernetes.upload_limit ({limit})",
            human_bytes(bytes)
        );
        Err(self.refused(said, "raise it: --set kubernetes.upload_limit=SIZE"))
    }

    /// Makes the pod, and says whether it was made now. Where the server does not answer, it may have made the pod all the same.
    async fn create(&self, pod: &Pod) -> Result<(Pod, bool), Error> {
        let name = pod.metadata.name.clone().unwrap_or_default();
        let mut tries = Tries::new();
        loop {
            match self.cluster.create_pod(pod, false).await {
                Ok(pod) => return Ok((pod, true)),
                Err(failure) if failure.is(409) => match self.cluster.pod(&name).await {
                    Ok(Some(pod)) if !state::is_deleted(&pod) => return Ok((pod, false)),
                    Ok(_) => tries.wait(&format!("pod {name} is still being deleted"), REMOVE_INTERVAL).await,
                    Err(failure) => tries.again(failure).await.map_err(Failure::error)?,
                },
                // Others use it now.
                Err(failure) if failure.is_quota() && doctor::may_fit(failure.said()) => {
                    tries.wait(failure.said(), FULL_INTERVAL).await;
                }
                Err(failure) => tries.again(failure).await.map_err(Failure::error)?,
            }
        }
    }

    /// Makes a secret; false where there is one of its name.
    async fn create_secret(&self, secret: &Secret) -> Result<bool, Error> {
        let mut tries = Tries::new();
        loop {
            match self.cluster.create_secret(secret).await {
                Ok(is_made) => return Ok(is_made),
                Err(failure) => tries.again(failure).await.map_err(Failure::error)?,
            }
        }
    }

    /// Makes what the first pod of a job needs, and those of the other nodes unless it has begun: then they were there.
    async fn complete(&self, launch: &Launch, plans: &[Plan], first: &Pod, is_new: bool) -> Result<(), Error> {
        let (secret, began) = (pod::job_secret(launch, first), Instant::now());
        // That of an earlier pod of this name, which the cluster removes soon, is of no use to a new pod.
        while !self.create_secret(&secret).await? && is_new && began.elapsed() < STALE_TIMEOUT {
            tokio::time::sleep(REMOVE_INTERVAL).await;
        }
        if plans.len() == 1 || matches!(state::stage(first), Stage::Runs { .. } | Stage::Ended) {
            return Ok(());
        }
        self.cluster.create_service(&pod::service(first), false).await.map_err(Failure::error)?;
        for plan in &plans[1..] {
            self.create(&pod::pod(launch, plan, &self.settings)?).await?;
        }
        Ok(())
    }

    fn program_in(&self, image: String) -> Program {
        let image_id = image.split_once('@').map(|(_, digest)| digest.to_owned());
        Program {
            engine: NAME.to_owned(),
            engine_version: Some(self.cluster.version.clone()),
            image: Some(image),
            image_id,
            ..Program::default()
        }
    }
}

/// The tries of a request to a server that does not answer.
struct Tries {
    began: Instant,
    was_away: bool,
    /// The sentence that was said last.
    said: String,
}

impl Tries {
    fn new() -> Self {
        Self { began: Instant::now(), was_away: false, said: String::new() }
    }

    /// Whether a failure is no answer. A server that has just started forbids everything for a moment.
    fn is_away(&mut self, failure: &Failure) -> bool {
        self.was_away |= matches!(failure, Failure::Away { .. });
        matches!(failure, Failure::Away { .. }) || self.was_away && failure.is(403) && !failure.is_quota()
    }

    /// Waits before the next one, unless the failure is an answer.
    async fn again(&mut self, failure: Failure) -> Result<(), Failure> {
        if !self.is_away(&failure) || self.began.elapsed() > AWAY_TIMEOUT {
            return Err(failure);
        }
        self.wait(failure.said(), AWAY_INTERVAL).await;
        Ok(())
    }

    async fn wait(&mut self, said: &str, interval: Duration) {
        if said != self.said {
            tracing::warn!("{said}; trying again every {} s", interval.as_secs().max(1));
            said.clone_into(&mut self.said);
        }
        tokio::time::sleep(interval).await;
    }
}

#[async_trait(?Send)]
impl Engine for KubernetesEngine {
    fn name(&self) -> &'static str {
        NAME
    }

    fn describe(&self) -> String {
        let Cluster { version, address, namespace, .. } = &self.cluster;
        format!("{NAME} {version} at {address}, namespace {namespace}")
    }

    fn address(&self) -> Option<String> {
        serde_json::to_string(&self.cluster.location()).ok()
    }

    fn device(&self, gpus: &Gpus) -> Result<Device, Error> {
        match gpus {
            Gpus::Count(0) => Ok(Device::Cpu),
            Gpus::Auto if self.present.unwrap_or(0) == 0 => Ok(Device::Cpu),
            Gpus::Auto | Gpus::Count(_) | Gpus::All | Gpus::Ids(_) => Ok(Device::Cuda),
        }
    }

    /// They are on other machines.
    fn cards(&self, _gpus: &Gpus) -> Vec<Card> {
        Vec::new()
    }

    fn cards_of_node(&self, _gpus: &Gpus) -> Option<u32> {
        self.present.filter(|present| *present > 0)
    }

    fn is_here(&self) -> bool {
        false
    }

    fn nodes(&self) -> u32 {
        self.settings.nodes.get()
    }

    fn fewest_nodes(&self) -> u32 {
        self.nodes()
    }

    fn check(&self, container: &Container) -> Result<(), Error> {
        match self.device(&container.gpus)? {
            Device::Cuda if self.settings.image.is_none() => check_cards(container.image.as_ref(), true, &[]),
            Device::Cuda | Device::Cpu => Ok(()),
        }
    }

    async fn check_request(&self, container: &Container) -> Result<(), Error> {
        if self.without_image {
            return Err(Error::CommandWithoutImage { other: "process" });
        }
        if let Gpus::Ids(_) = container.gpus {
            let said = "container.gpus names cards: the cluster chooses them";
            return Err(self.refused(said, "give their number: --set container.gpus=1"));
        }
        if container.gpus == Gpus::All && self.present.unwrap_or(0) == 0 {
            let said = format!("container.gpus is all, and no node is known to have {}", self.settings.gpu_resource);
            return Err(self.refused(said, "give their number: --set container.gpus=1"));
        }
        // A pod that the cluster would refuse is refused here too, and nothing is made.
        let image = section::name(&self.settings, container.image.as_ref()).await?;
        let launch = self.with_cards(&Launch { image: Some(image), ..Launch::example(container, self.nodes()) });
        let plan = Plan::new(&launch, &self.settings);
        match self.cluster.create_pod(&pod::pod(&launch, &plan, &self.settings)?, true).await {
            Ok(pod) if self.nodes() > 1 => {
                self.cluster.create_service(&pod::service(&pod), true).await.map_err(Failure::error)
            }
            Ok(_) => Ok(()),
            Err(failure) if failure.is(409) || failure.is_quota() && doctor::may_fit(failure.said()) => Ok(()),
            Err(failure) => Err(failure.error()),
        }
    }

    fn limits_memory(&self) -> bool {
        true
    }

    fn has_queue(&self) -> bool {
        true
    }

    fn job_path(&self, _host: PathBuf, mounted: PathBuf) -> PathBuf {
        mounted
    }

    async fn program(&self, image: Option<&Image>) -> Result<Program, Error> {
        Ok(self.program_in(section::name(&self.settings, image).await?))
    }

    fn preparation(&self) -> &'static str {
        "preparing the image"
    }

    async fn prepare(
        &self,
        image: Option<&Image>,
        first: Option<&Program>,
        progress: &mut dyn Progress,
    ) -> Result<Program, Error> {
        if self.settings.volume.is_none() {
            progress.note(
                "no kubernetes.volume: checkpoints are copied here while the job runs; what is not copied yet when a pod is lost is lost",
            );
        }
        // Later attempts of a run have the image that the first one had.
        if let Some(name) = first.and_then(|first| first.image.clone()) {
            return Ok(self.program_in(name));
        }
        let name = section::prepare(&self.settings, self.images, image, progress).await?;
        Ok(self.program_in(name))
    }

    fn runs_in_image(&self, _image: Option<&Image>) -> bool {
        true
    }

    async fn start(&self, launch: &Launch) -> Result<StartedJob, Error> {
        let launch = self.with_cards(launch);
        let plans = self.plans(&launch);
        self.check_size(&plans[0]).await?;
        for part in pod::program_secrets() {
            self.create_secret(&part).await?;
        }
        std::fs::remove_file(job::asked_before(&launch.job_folder.0)).ok();
        let (first, is_new) = self.create(&pod::pod(&launch, &plans[0], &self.settings)?).await?;
        if let Err(error) = self.complete(&launch, &plans, &first, is_new).await {
            for plan in &plans {
                self.cluster.delete_pod(&plan.pod, 0).await.ok();
            }
            return Err(error);
        }
        Ok(self.follow(&launch, plans, None))
    }

    fn time_hint(&self) -> &'static str {
        "give a pod more time: --set kubernetes.time=MINUTES; then continue with `pipe resume`"
    }

    async fn find(&self, launch: &Launch, id: Option<&str>, read: Option<&LogPosition>) -> Result<FoundJob, Error> {
        let launch = self.with_cards(launch);
        let plans = self.plans(&launch);
        match self.cluster.pod(&plans[0].pod).await {
            Ok(Some(pod)) => {
                // A `pipe` that was killed may have made the pod alone.
                self.complete(&launch, &plans, &pod, false).await?;
                Ok(FoundJob::Job(self.follow(&launch, plans, read)))
            }
            // Files that the job has left on a volume are fetched.
            Ok(None) if id.is_some() && self.settings.volume.is_some() => {
                Ok(FoundJob::Job(self.follow(&launch, plans, read)))
            }
            Ok(None) if id.is_some() => Ok(FoundJob::Gone),
            Ok(None) => Ok(FoundJob::NotStarted),
            Err(Failure::Away { said }) => Err(Error::EngineLost { reason: said }),
            Err(failure) => Err(failure.error()),
        }
    }

    async fn jobs(&self) -> Result<Vec<EngineJob>, Error> {
        let pods = self.cluster.pods_with(pod::MANAGED).await.map_err(Failure::error)?;
        let job = |pod: Pod| {
            let attempt = pod.metadata.labels.as_ref()?.get(pod::ATTEMPT)?.parse().ok();
            let run = pod.metadata.annotations.as_ref()?.get(pod::RUN)?.clone();
            let name = pod.metadata.name.as_deref()?;
            Some(EngineJob { id: self.id(name), run, attempt })
        };
        Ok(pods.into_iter().filter_map(job).collect())
    }

    async fn remove(&self, id: &str) -> Result<(), Error> {
        let (namespace, name) = id.split_once('/').unwrap_or((&self.cluster.namespace, id));
        let cluster = Cluster { namespace: namespace.to_owned(), ..self.cluster.clone() };
        cluster.delete_pod(name, 1).await.map_err(Failure::error)?;
        let began = Instant::now();
        // Nobody reads what a pod of a lost node still writes.
        while began.elapsed() < REMOVE_TIMEOUT {
            match cluster.pod(name).await {
                Ok(Some(_)) => tokio::time::sleep(REMOVE_INTERVAL).await,
                _ => return Ok(()),
            }
        }
        cluster.delete_pod(name, 0).await.map_err(Failure::error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_was_away_forbids_nothing_yet() {
        let refused = |code: u16, said: &str| Failure::Refused { code, said: said.to_owned() };
        let mut tries = Tries::new();
        assert!(!tries.is_away(&refused(403, "pods is forbidden")));
        assert!(tries.is_away(&Failure::Away { said: "connection refused".to_owned() }));
        assert!(tries.is_away(&refused(403, "pods is forbidden")));
        for answer in [refused(403, "exceeded quota: small"), refused(422, "invalid")] {
            assert!(!tries.is_away(&answer), "{answer:?}");
        }
    }
}

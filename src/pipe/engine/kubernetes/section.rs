//! `kubernetes` in the pipeline file: where the pods of a run are, what they ask the cluster for, and which image nodes pull, or have.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::path::{Component, Path};

use pipe_spec::pipeline::bounds::MAX_NODES;
use pipe_spec::pipeline::{EngineSection, Image, WorkKind};
use pipe_spec::text::ByteSize;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::engine::{ConnectImages, Progress};
use crate::error::Error;
use crate::image::{ImageBuild, has_tag, name_in};
use crate::system::interrupt;

/// With `engine: kubernetes`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Pods {
    /// The context of the kubeconfig. Default: its current one; in a pod, that of the pod.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub context: Option<String>,
    /// Default: that of the context.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// Machines of a training, each with a pod. `container` says what it has on each of them; a training has as many ranks on each.
    #[schemars(range(min = 1, max = MAX_NODES))]
    pub nodes: NonZeroU32,
    /// Where checkpoints outlive their pod: `claim/NAME`, `host/PATH` or `nfs/SERVER/PATH`. Default: the disk of the pod, from which
    /// checkpoints are copied to the run folder.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub volume: Option<String>,
    /// The repository that nodes pull the images of `pipe` from; with a tag or a digest, the image itself. Default: the nodes have them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// Secrets for pulling images.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub pull_secrets: Vec<String>,
    /// The service account of the pods, which get no token of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service_account: Option<String>,
    /// The service account of the pod that supervises a detached run. Default: a process of this machine does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub supervisor: Option<String>,
    /// Labels that a node must have.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub node_selector: BTreeMap<String, String>,
    /// Taints of nodes that the pods tolerate.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tolerations: Vec<Tolerated>,
    /// The priority class of the pods.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority_class: Option<String>,
    /// The scheduler of the pods, such as `volcano`. Default: that of the cluster.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scheduler: Option<String>,
    /// The queue of Kueue, or of Volcano as the scheduler.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue: Option<String>,
    /// The resource that `container.gpus` counts, such as `nvidia.com/mig-1g.10gb`.
    pub gpu_resource: String,
    /// Minutes that a pod may take. A training that takes longer continues in the next pod. Default: no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 5_256_000))]
    pub time: Option<NonZeroU32>,
    /// The largest amount of data, models and mounts that is carried to a pod, such as `8g`.
    pub upload_limit: ByteSize,
    /// Further labels of the pods.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Further annotations of the pods.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
}

/// A taint that pods tolerate, as Kubernetes has it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Tolerated {
    /// Default: every key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// `Equal` or `Exists`. Default: `Exists` without a value.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub operator: Option<String>,
    /// The value of the taint, with `Equal`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
    /// `NoSchedule`, `PreferNoSchedule` or `NoExecute`. Default: each.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub effect: Option<String>,
    /// For how long, with `NoExecute`. Default: forever.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seconds: Option<u32>,
}

/// The resource of whole cards of NVIDIA.
const GPU: &str = "nvidia.com/gpu";

impl Default for Pods {
    fn default() -> Self {
        Self {
            context: None,
            namespace: None,
            nodes: NonZeroU32::MIN,
            volume: None,
            image: None,
            pull_secrets: Vec::new(),
            service_account: None,
            supervisor: None,
            node_selector: BTreeMap::new(),
            tolerations: Vec::new(),
            priority_class: None,
            scheduler: None,
            queue: None,
            gpu_resource: GPU.to_owned(),
            time: None,
            upload_limit: ByteSize(4 << 30),
            labels: BTreeMap::new(),
            annotations: BTreeMap::new(),
        }
    }
}

impl Pods {
    /// The volume, where one is named.
    pub fn volume(&self) -> Option<Volume> {
        Volume::parse(self.volume.as_deref()?)
    }

    /// The settings of the pod that supervises a run: it waits in no queue and has no time limit.
    pub fn of_supervisor(&self) -> Self {
        let service_account = self.supervisor.clone();
        Self { service_account, priority_class: None, scheduler: None, queue: None, time: None, ..self.clone() }
    }
}

impl EngineSection for Pods {
    const HELP: &'static str =
        "Where the pods of a run are and what they ask the cluster for, with the engine kubernetes.";

    fn check(&self, work: WorkKind) -> Vec<(&'static str, String)> {
        let mut problems = Vec::new();
        if self.nodes.get() > 1 && work == WorkKind::Command {
            problems.push(("nodes", format!("found {}; allowed: 1 for a command", self.nodes)));
        }
        if let Some(volume) = self.volume.as_ref().filter(|volume| Volume::parse(volume).is_none()) {
            problems.push(("volume", format!("found {volume:?}; allowed: claim/NAME, host/PATH or nfs/SERVER/PATH")));
        }
        if !self.gpu_resource.contains('/') {
            let message = format!("found {:?}; allowed: the name of a resource such as {GPU}", self.gpu_resource);
            problems.push(("gpu_resource", message));
        }
        for (key, own) in [("labels", &self.labels), ("annotations", &self.annotations)] {
            for name in own.keys().filter(|name| name.starts_with("pipe.") || name.starts_with("app.kubernetes.io/")) {
                problems.push((key, format!("{name} is set by pipe")));
            }
        }
        for tolerated in &self.tolerations {
            if let Some(operator) =
                tolerated.operator.as_ref().filter(|name| !["Equal", "Exists"].contains(&name.as_str()))
            {
                problems.push(("tolerations", format!("found the operator {operator:?}; allowed: Equal or Exists")));
            }
            let effects = ["NoSchedule", "PreferNoSchedule", "NoExecute"];
            if let Some(effect) = tolerated.effect.as_ref().filter(|name| !effects.contains(&name.as_str())) {
                problems.push(("tolerations", format!("found the effect {effect:?}; allowed: {}", effects.join(", "))));
            }
        }
        problems
    }
}

/// A volume, with the folder in it that belongs to `pipe`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Volume {
    Claim { name: String, folder: String },
    Host { path: String },
    Nfs { server: String, path: String },
}

impl Volume {
    fn parse(text: &str) -> Option<Self> {
        let (kind, rest) = text.split_once('/')?;
        let is_plain = |path: &str| Path::new(path).components().all(|part| matches!(part, Component::Normal(_)));
        let path = rest.trim_matches('/');
        if path.is_empty() || !is_plain(path) {
            return None;
        }
        Some(match kind {
            "claim" => {
                let (name, folder) = path.split_once('/').unwrap_or((path, ""));
                Self::Claim { name: name.to_owned(), folder: folder.to_owned() }
            }
            "host" => Self::Host { path: format!("/{path}") },
            "nfs" => {
                let (server, path) = path.split_once('/')?;
                Self::Nfs { server: server.to_owned(), path: format!("/{path}") }
            }
            _ => return None,
        })
    }

    /// The folder of the volume that holds the runs.
    pub fn folder(&self) -> &str {
        match self {
            Self::Claim { folder, .. } => folder,
            Self::Host { .. } | Self::Nfs { .. } => "",
        }
    }
}

/// The name by which nodes know the image. Builds nothing.
pub async fn name(settings: &Pods, image: Option<&Image>) -> Result<String, Error> {
    match (image, &settings.image) {
        (Some(Image::Existing(name)), _) => Ok(name.clone()),
        (None, Some(named)) if has_tag(named) => Ok(named.clone()),
        (image, _) => Ok(named(settings, &prepare_build(image).await?)),
    }
}

/// The same, and builds the image where there is a container engine here and no registry is named: the nodes may be of this machine.
pub async fn prepare(
    settings: &Pods,
    images: ConnectImages,
    image: Option<&Image>,
    progress: &mut dyn Progress,
) -> Result<String, Error> {
    let is_built = match (image, &settings.image) {
        (Some(Image::Existing(_)), _) => false,
        (None, Some(named)) => !has_tag(named),
        _ => true,
    };
    if !is_built {
        return name(settings, image).await;
    }
    let build = prepare_build(image).await?;
    let name = named(settings, &build);
    if settings.image.is_some() {
        let name = with_digest(name, images).await;
        progress.note(&format!("image: {name} (pulled by the nodes)"));
        return Ok(name);
    }
    match images().await {
        Ok(engine) => {
            if let Some(store) = engine.images() {
                store.ensure(&build, progress).await?;
            }
        }
        Err(Error::NoEngine { .. }) => progress.note(&format!("image: {name} (the nodes must have it)")),
        Err(error) => return Err(error),
    }
    Ok(name)
}

/// The name of a build in the registry of the pipeline.
fn named(settings: &Pods, build: &ImageBuild) -> String {
    settings.image.as_ref().map_or_else(|| build.name.clone(), |repository| name_in(repository, &build.name))
}

/// By its digest an image that was pushed from this machine, which no other one can take the place of.
async fn with_digest(name: String, images: ConnectImages) -> String {
    let Ok(engine) = images().await else { return name };
    let Some(store) = engine.images().filter(|_| !name.contains('@')) else { return name };
    match (store.digest(&name).await, name.rsplit_once(':')) {
        (Ok(Some(digest)), Some((repository, _))) => format!("{repository}@{digest}"),
        _ => name,
    }
}

/// Runs in a thread of its own, so that signals are heard.
async fn prepare_build(image: Option<&Image>) -> Result<ImageBuild, Error> {
    let path = match image {
        Some(Image::Dockerfile(path)) => Some(path.clone()),
        Some(Image::Existing(_)) | None => None,
    };
    interrupt::run(move || crate::image::prepare_build(path.as_deref())).await
}

#[cfg(test)]
mod tests {
    use pipe_spec::Variables;

    use super::*;
    use crate::engine::registry;

    const MINIMAL: &str = "version: 1\nname: demo\nmodel: {arch: t5, config: {d_model: 8}}\ndata: {train: a.jsonl}\n";

    #[test]
    fn what_the_pods_are_asked_for() {
        let parse = |section: &str| {
            registry::parse_pipeline(&format!("{MINIMAL}engine: kubernetes\n{section}\n"), &[], &Variables::default())
        };
        let text = "kubernetes: {nodes: 2, volume: claim/training, queue: team-a, time: 60, upload_limit: 8g, \
                    tolerations: [{key: gpu, effect: NoSchedule}], labels: {team: a}}";
        let pipeline = parse(text).unwrap();
        let pods: Pods = pipeline.engine_request().section("kubernetes");
        assert_eq!(pods.volume(), Some(Volume::Claim { name: "training".to_owned(), folder: String::new() }));
        assert_eq!((pods.gpu_resource.as_str(), pods.upload_limit.0), (GPU, 8 << 30));
        assert_eq!((pods.nodes.get(), registry::nodes(&pipeline)), (2, 2));
        let again = registry::parse_pipeline(&pipeline.to_yaml(), &[], &Variables::default()).unwrap();
        assert_eq!(again, pipeline);
        for (section, want) in [
            ("kubernetes: {volume: training}", "kubernetes.volume: found \"training\"; allowed: claim/NAME, host/PATH"),
            ("kubernetes: {volume: claim/../x}", "kubernetes.volume: found"),
            ("kubernetes: {gpu_resource: gpu}", "kubernetes.gpu_resource: found \"gpu\""),
            ("kubernetes: {labels: {pipe.run: x}}", "kubernetes.labels: pipe.run is set by pipe"),
            ("kubernetes: {tolerations: [{operator: Is}]}", "allowed: Equal or Exists"),
            ("kubernetes: {nodes: 0}", "kubernetes.nodes: found 0"),
            ("kubernetes: {time: 0}", "kubernetes.time: found 0"),
        ] {
            let got = parse(section).unwrap_err().to_string();
            assert!(got.contains(want), "{section}: {got}");
        }
    }

    #[test]
    fn volumes() {
        let host = |path: &str| Some(Volume::Host { path: path.to_owned() });
        assert_eq!(Volume::parse("host//data/runs"), host("/data/runs"));
        assert_eq!(Volume::parse("host/data"), host("/data"));
        let nfs = Volume::Nfs { server: "files.lab".to_owned(), path: "/export/runs".to_owned() };
        assert_eq!(Volume::parse("nfs/files.lab/export/runs"), Some(nfs));
        let claim = Volume::parse("claim/training/team/a").unwrap();
        assert_eq!(claim.folder(), "team/a");
        assert_eq!(Volume::parse("nfs/files.lab"), None);
    }
}

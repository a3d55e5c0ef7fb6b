//! The connection to a cluster: which one, as whom, and what its answers mean.

use std::time::Duration;

use k8s_openapi::api::core::v1::{Event, Node, Pod, Secret, Service};
use kube::api::{Api, AttachParams, AttachedProcess, DeleteParams, ListParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};

use super::section::Pods;
use crate::error::Error;

/// How long the cluster may take to say that it is there.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Bytes of a stream that may wait on either side.
const BUFFER: usize = 1 << 18;

const RIGHTS_HINT: &str =
    "`pipe doctor --engine kubernetes` shows each right that is missing; docs/kubernetes.md has the Role that suffices";

/// A namespace of a cluster, with the version of its server.
#[derive(Clone)]
pub struct Cluster {
    pub client: Client,
    pub namespace: String,
    pub address: String,
    pub version: String,
}

/// Why a request was not answered as it should be.
#[derive(Clone, Debug)]
pub enum Failure {
    /// The server does not answer.
    Away { said: String },
    /// The server says no, with this status code.
    Refused { code: u16, said: String },
}

impl Failure {
    pub fn said(&self) -> &str {
        match self {
            Self::Away { said } | Self::Refused { said, .. } => said,
        }
    }

    pub fn is(&self, wanted: u16) -> bool {
        matches!(self, Self::Refused { code, .. } if *code == wanted)
    }

    /// Whether a quota of the namespace is used up.
    pub fn is_quota(&self) -> bool {
        self.is(403) && self.said().contains("exceeded quota")
    }

    pub fn error(self) -> Error {
        let engine = super::NAME;
        match self {
            Self::Away { said } => Error::NoEngine {
                reason: format!("the Kubernetes cluster does not answer ({said})"),
                hint: "`kubectl cluster-info` tries it by hand; choose another cluster with kubernetes.context"
                    .to_owned(),
            },
            Self::Refused { code, said } => {
                let hint = match code {
                    401 => "log in to the cluster again: its kubeconfig has no valid token or certificate",
                    403 if !said.contains("admission") && !said.contains("quota") => RIGHTS_HINT,
                    _ => "correct `kubernetes` or `container`, or ask those who run the cluster",
                };
                Error::JobRefused { engine, said, hint: hint.to_owned() }
            }
        }
    }
}

impl From<kube::Error> for Failure {
    fn from(error: kube::Error) -> Self {
        match error {
            // A server that starts or is overloaded will answer later.
            kube::Error::Api(status) if status.code >= 500 || status.code == 429 => {
                Self::Away { said: status.message.clone() }
            }
            kube::Error::Api(status) => Self::Refused { code: status.code, said: status.message.clone() },
            other => Self::Away { said: innermost(&other) },
        }
    }
}

/// The cause at the end of a chain, which names what is wrong.
fn innermost(error: &dyn std::error::Error) -> String {
    let mut last = error;
    while let Some(source) = last.source() {
        last = source;
    }
    last.to_string()
}

type Answer<T> = Result<T, Failure>;

impl Cluster {
    pub async fn connect(settings: &Pods) -> Result<Self, Error> {
        let config = config(settings).await?;
        let address = config.cluster_url.to_string().trim_end_matches('/').to_owned();
        let namespace = settings.namespace.clone().unwrap_or_else(|| config.default_namespace.clone());
        let client = Client::try_from(config).map_err(|error| Failure::from(error).error())?;
        let version = match tokio::time::timeout(CONNECT_TIMEOUT, client.apiserver_version()).await {
            Ok(version) => version.map_err(|error| Failure::from(error).error())?,
            Err(_) => {
                let said = format!("{address}: no answer within {} s", CONNECT_TIMEOUT.as_secs());
                return Err(Failure::Away { said }.error());
            }
        };
        Ok(Self { client, namespace, address, version: version.git_version })
    }

    pub fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    fn secrets(&self) -> Api<Secret> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    pub async fn pod(&self, name: &str) -> Answer<Option<Pod>> {
        Ok(self.pods().get_opt(name).await?)
    }

    pub async fn pods_with(&self, labels: &str) -> Answer<Vec<Pod>> {
        Ok(self.pods().list(&ListParams::default().labels(labels)).await?.items)
    }

    /// Makes a pod. With `only_asked` the cluster only says whether it would.
    pub async fn create_pod(&self, pod: &Pod, only_asked: bool) -> Answer<Pod> {
        Ok(self.pods().create(&PostParams { dry_run: only_asked, ..PostParams::default() }, pod).await?)
    }

    /// One that is there already is fine.
    pub async fn create_secret(&self, secret: &Secret) -> Answer<()> {
        match self.secrets().create(&PostParams::default(), secret).await.map_err(Failure::from) {
            Err(failure) if !failure.is(409) => Err(failure),
            _ => Ok(()),
        }
    }

    /// The same of a service.
    pub async fn create_service(&self, service: &Service, only_asked: bool) -> Answer<()> {
        let services: Api<Service> = Api::namespaced(self.client.clone(), &self.namespace);
        let asked = PostParams { dry_run: only_asked, ..PostParams::default() };
        match services.create(&asked, service).await.map_err(Failure::from) {
            Err(failure) if !failure.is(409) => Err(failure),
            _ => Ok(()),
        }
    }

    /// Asks a pod to end within so many seconds. One that is gone already is fine.
    pub async fn delete_pod(&self, name: &str, seconds: u32) -> Answer<()> {
        match self.pods().delete(name, &DeleteParams::default().grace_period(seconds)).await.map_err(Failure::from) {
            Err(failure) if !failure.is(404) => Err(failure),
            _ => Ok(()),
        }
    }

    /// The reasons and messages of the events of an object; none where they may not be read.
    pub async fn events_of(&self, uid: &str) -> Vec<(String, String)> {
        let events: Api<Event> = Api::namespaced(self.client.clone(), &self.namespace);
        let asked = ListParams::default().fields(&format!("involvedObject.uid={uid}"));
        let found = events.list(&asked).await.map(|list| list.items).unwrap_or_default();
        found.into_iter().map(|event| (event.reason.unwrap_or_default(), event.message.unwrap_or_default())).collect()
    }

    pub async fn nodes(&self) -> Answer<Vec<Node>> {
        Ok(Api::<Node>::all(self.client.clone()).list(&ListParams::default()).await?.items)
    }

    pub async fn node(&self, name: &str) -> Answer<Option<Node>> {
        Ok(Api::<Node>::all(self.client.clone()).get_opt(name).await?)
    }

    /// Starts a process in a container of a pod.
    pub async fn exec(&self, pod: &str, container: &str, words: Vec<String>) -> Answer<AttachedProcess> {
        let asked = AttachParams {
            container: Some(container.to_owned()),
            stdin: true,
            stdout: true,
            stderr: false,
            max_stdin_buf_size: Some(BUFFER),
            max_stdout_buf_size: Some(BUFFER),
            ..AttachParams::default()
        };
        Ok(self.pods().exec(pod, words, &asked).await?)
    }
}

/// The context that the pipeline names, else the current one; in a pod, that of the pod.
async fn config(settings: &Pods) -> Result<Config, Error> {
    let options = KubeConfigOptions { context: settings.context.clone(), ..KubeConfigOptions::default() };
    let failed = |reason: String| Error::NoEngine {
        reason,
        hint: "set KUBECONFIG, or kubernetes.context to one of `kubectl config get-contexts`".to_owned(),
    };
    match Kubeconfig::read() {
        Ok(read) => {
            let config = Config::from_custom_kubeconfig(read, &options).await;
            config.map_err(|error| failed(format!("the kubeconfig cannot be used: {}", innermost(&error))))
        }
        Err(error) if settings.context.is_some() => Err(failed(format!("no kubeconfig: {}", innermost(&error)))),
        Err(error) => Config::incluster().map_err(|_| failed(format!("no kubeconfig: {}", innermost(&error)))),
    }
}

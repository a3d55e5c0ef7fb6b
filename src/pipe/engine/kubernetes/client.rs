//! The connection to a cluster: which one, as whom, and what its answers mean. A pod is kept up to date by one request that stays open.

use std::sync::Arc;
use std::time::Duration;

use futures_util::{StreamExt, TryStreamExt};
use k8s_openapi::api::core::v1::{Event, Node, Pod, Secret, Service};
use kube::api::{Api, AttachParams, AttachedProcess, DeleteParams, ListParams, PostParams, WatchEvent, WatchParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::section::Pods;
use crate::engine::is_supervisor;
use crate::error::Error;

/// How long the cluster may take to say that it is there.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// How long the server may take to answer a request: a connection may be dead without a word.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);

/// Bytes of a stream that may wait on either side.
const BUFFER: usize = 1 << 18;

const RIGHTS_HINT: &str =
    "`pipe doctor --engine kubernetes` shows each right that is missing; docs/kubernetes.md has the Role that suffices";

/// Where the pods of a run are, as its folder has it: another shell may have another current context.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Location {
    server: String,
    namespace: String,
    /// Absent in a pod.
    context: Option<String>,
}

impl Location {
    /// Whether the pipeline names another one now.
    fn is_left(&self, settings: &Pods) -> bool {
        settings.context.as_ref().is_some_and(|named| self.context.as_ref() != Some(named))
            || settings.namespace.as_ref().is_some_and(|named| *named != self.namespace)
    }

    /// The context that leads there: the one that did, or another one with the same server.
    fn find_context(&self, config: &Kubeconfig) -> Option<String> {
        let server_of = |name: &String| {
            let context = config.contexts.iter().find(|context| context.name == *name)?.context.as_ref()?;
            let cluster = config.clusters.iter().find(|cluster| cluster.name == context.cluster)?;
            Some(cluster.cluster.as_ref()?.server.as_deref()?.trim_end_matches('/').to_owned())
        };
        let first = self.context.iter().chain(&config.current_context);
        let all = config.contexts.iter().map(|context| &context.name);
        first.chain(all).find(|name| server_of(name).as_ref() == Some(&self.server)).cloned()
    }

    fn is_gone(&self) -> Error {
        let context = self.context.as_ref().map_or(String::new(), |context| format!(" (context {context})"));
        Error::NoEngine {
            reason: format!(
                "the run began in the namespace {} of {}{context}, and no context of the kubeconfig leads there now",
                self.namespace, self.server
            ),
            hint: "set KUBECONFIG to the file that it began with".to_owned(),
        }
    }
}

/// A namespace of a cluster, with the version of its server.
#[derive(Clone)]
pub struct Cluster {
    pub client: Client,
    pub context: Option<String>,
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

/// The answer to a request, or that there is none.
pub async fn answer<T>(request: impl Future<Output = kube::Result<T>>) -> Answer<T> {
    match tokio::time::timeout(REQUEST_TIMEOUT, request).await {
        Ok(answer) => Ok(answer?),
        Err(_) => Err(Failure::Away { said: format!("no answer within {} s", REQUEST_TIMEOUT.as_secs()) }),
    }
}

impl Cluster {
    /// The cluster where a run has begun, or for a new one where the pipeline says.
    pub async fn connect(settings: &Pods, begun: Option<&Location>) -> Result<Self, Error> {
        // The pod that supervises a run is in its cluster, which has another address there.
        let is_inside = is_supervisor();
        let begun = begun.filter(|begun| is_inside || !begun.is_left(settings));
        let (config, context) = if is_inside { (own_cluster()?, None) } else { config(settings, begun).await? };
        let mut address = config.cluster_url.to_string().trim_end_matches('/').to_owned();
        match begun.filter(|begun| begun.server != address) {
            Some(begun) if is_inside => address.clone_from(&begun.server),
            Some(begun) => return Err(begun.is_gone()),
            None => {}
        }
        let named = begun.map(|begun| begun.namespace.clone()).or_else(|| settings.namespace.clone());
        let namespace = named.unwrap_or_else(|| config.default_namespace.clone());
        let client = Client::try_from(config).map_err(|error| Failure::from(error).error())?;
        let version = match tokio::time::timeout(CONNECT_TIMEOUT, client.apiserver_version()).await {
            Ok(version) => version.map_err(|error| Failure::from(error).error())?,
            Err(_) => {
                let said = format!("{address}: no answer within {} s", CONNECT_TIMEOUT.as_secs());
                return Err(Failure::Away { said }.error());
            }
        };
        // The address that was written down stays as it is.
        let context = begun.map_or(context, |begun| begun.context.clone());
        Ok(Self { client, context, namespace, address, version: version.git_version })
    }

    pub fn location(&self) -> Location {
        let Self { address, namespace, context, .. } = self;
        Location { server: address.clone(), namespace: namespace.clone(), context: context.clone() }
    }

    pub fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    fn secrets(&self) -> Api<Secret> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    pub async fn pod(&self, name: &str) -> Answer<Option<Pod>> {
        answer(self.pods().get_opt(name)).await
    }

    pub async fn pods_with(&self, labels: &str) -> Answer<Vec<Pod>> {
        Ok(answer(self.pods().list(&ListParams::default().labels(labels))).await?.items)
    }

    /// Makes a pod. With `only_asked` the cluster only says whether it would.
    pub async fn create_pod(&self, pod: &Pod, only_asked: bool) -> Answer<Pod> {
        answer(self.pods().create(&PostParams { dry_run: only_asked, ..PostParams::default() }, pod)).await
    }

    /// Makes a secret; false where there is one of its name.
    pub async fn create_secret(&self, secret: &Secret) -> Answer<bool> {
        match answer(self.secrets().create(&PostParams::default(), secret)).await {
            Ok(_) => Ok(true),
            Err(failure) if failure.is(409) => Ok(false),
            Err(failure) => Err(failure),
        }
    }

    /// Makes a service, unless there is one of its name.
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
        match answer(self.pods().delete(name, &DeleteParams::default().grace_period(seconds))).await {
            Err(failure) if !failure.is(404) => Err(failure),
            _ => Ok(()),
        }
    }

    /// The reasons and messages of the events of an object; none where they may not be read.
    pub async fn events_of(&self, uid: &str) -> Vec<(String, String)> {
        let events: Api<Event> = Api::namespaced(self.client.clone(), &self.namespace);
        let asked = ListParams::default().fields(&format!("involvedObject.uid={uid}"));
        let found = answer(events.list(&asked)).await.map(|list| list.items).unwrap_or_default();
        found.into_iter().map(|event| (event.reason.unwrap_or_default(), event.message.unwrap_or_default())).collect()
    }

    pub async fn nodes(&self) -> Answer<Vec<Node>> {
        Ok(answer(Api::<Node>::all(self.client.clone()).list(&ListParams::default())).await?.items)
    }

    pub async fn node(&self, name: &str) -> Answer<Option<Node>> {
        answer(Api::<Node>::all(self.client.clone()).get_opt(name)).await
    }

    /// Starts a process in a container of a pod.
    pub async fn exec(&self, pod: &str, container: &str, words: Vec<String>) -> Answer<AttachedProcess> {
        let asked = AttachParams {
            container: Some(container.to_owned()),
            stdin: true,
            stdout: true,
            stderr: true,
            max_stdin_buf_size: Some(BUFFER),
            max_stdout_buf_size: Some(BUFFER),
            ..AttachParams::default()
        };
        Ok(self.pods().exec(pod, words, &asked).await?)
    }
}

fn failed(reason: String) -> Error {
    let hint = "set KUBECONFIG, or kubernetes.context to one of `kubectl config get-contexts`".to_owned();
    Error::NoEngine { reason, hint }
}

/// The cluster that this process runs in.
fn own_cluster() -> Result<Config, Error> {
    Config::incluster().map_err(|error| failed(format!("no access to the cluster from its pod: {}", innermost(&error))))
}

/// Where a run has begun, else the context that the pipeline names, else the current one, with its name; in a pod, that of the pod.
async fn config(settings: &Pods, begun: Option<&Location>) -> Result<(Config, Option<String>), Error> {
    match Kubeconfig::read() {
        Ok(read) => {
            let context = match begun {
                Some(begun) => Some(begun.find_context(&read).ok_or_else(|| begun.is_gone())?),
                None => settings.context.clone().or_else(|| read.current_context.clone()),
            };
            let options = KubeConfigOptions { context: context.clone(), ..KubeConfigOptions::default() };
            let config = Config::from_custom_kubeconfig(read, &options).await;
            let config =
                config.map_err(|error| failed(format!("the kubeconfig cannot be used: {}", innermost(&error))))?;
            Ok((config, context))
        }
        Err(error) if settings.context.is_some() => Err(failed(format!("no kubeconfig: {}", innermost(&error)))),
        Err(error) => {
            let config = Config::incluster().map_err(|_| failed(format!("no kubeconfig: {}", innermost(&error))))?;
            Ok((config, None))
        }
    }
}

/// Between two requests to a server that does not answer: at first, and at most.
const FIRST_INTERVAL: Duration = Duration::from_millis(500);
const LAST_INTERVAL: Duration = Duration::from_secs(30);

/// How long the server leaves a request open, and how much longer it may say nothing before the connection is taken to be broken.
const WATCH_SECONDS: u32 = 290;
const MARGIN: Duration = Duration::from_secs(15);

/// The state of a pod, as far as it is known.
#[derive(Clone, Debug, Default)]
pub struct View {
    /// As it was last seen, also where it is gone.
    pub pod: Option<Arc<Pod>>,
    pub is_gone: bool,
    /// Why the cluster does not answer, if it does not.
    pub away: Option<String>,
}

/// Ends its request when it is dropped.
pub struct PodWatch {
    views: watch::Receiver<View>,
    task: JoinHandle<()>,
}

impl PodWatch {
    pub fn start(cluster: &Cluster, name: &str) -> Self {
        let (sender, views) = watch::channel(View::default());
        let task = tokio::spawn(run(cluster.clone(), name.to_owned(), sender));
        Self { views, task }
    }

    pub fn view(&self) -> View {
        self.views.borrow().clone()
    }

    /// Waits until there is news, or for so long.
    pub async fn wait(&mut self, most: Duration) {
        // Where nothing more can come, the time is waited all the same.
        if let Ok(Err(_)) = tokio::time::timeout(most, self.views.changed()).await {
            tokio::time::sleep(most).await;
        }
    }
}

impl Drop for PodWatch {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn run(cluster: Cluster, name: String, to: watch::Sender<View>) {
    let fields = format!("metadata.name={name}");
    let mut interval = FIRST_INTERVAL;
    loop {
        match follow(&cluster, &fields, &to).await {
            Ok(()) => interval = FIRST_INTERVAL,
            Err(failure) => {
                to.send_modify(|view| view.away = Some(failure.said().to_owned()));
                tokio::time::sleep(interval).await;
                interval = (interval * 2).min(LAST_INTERVAL);
            }
        }
        if to.borrow().is_gone || to.is_closed() {
            return;
        }
    }
}

/// Follows the pod until the server ends the answer.
async fn follow(cluster: &Cluster, fields: &str, to: &watch::Sender<View>) -> Result<(), Failure> {
    let pods = cluster.pods();
    let list = answer(pods.list(&ListParams::default().fields(fields))).await?;
    let mut version = list.metadata.resource_version.unwrap_or_default();
    let found = list.items.into_iter().next().map(Arc::new);
    to.send_modify(|view| {
        view.is_gone = found.is_none();
        view.away = None;
        view.pod = found.or(view.pod.take());
    });
    loop {
        let params = WatchParams::default().fields(fields).timeout(WATCH_SECONDS);
        let mut events = answer(pods.watch(&params, &version)).await?.boxed();
        let most = Duration::from_secs(WATCH_SECONDS.into()) + MARGIN;
        while let Some(event) = before_silence(most, events.try_next()).await? {
            let (pod, is_gone) = match event {
                WatchEvent::Added(pod) | WatchEvent::Modified(pod) => (pod, false),
                WatchEvent::Deleted(pod) => (pod, true),
                WatchEvent::Bookmark(mark) => {
                    version = mark.metadata.resource_version;
                    continue;
                }
                // It remembers less than what was asked for: the list is read again.
                WatchEvent::Error(_) => return Ok(()),
            };
            version = pod.metadata.resource_version.clone().unwrap_or(version);
            to.send_modify(|view| *view = View { pod: Some(Arc::new(pod)), is_gone, away: None });
            if is_gone {
                return Ok(());
            }
        }
    }
}

/// The next event. The server ends its answer before this time is over: a connection that says nothing for so long is dead.
async fn before_silence<T>(most: Duration, next: impl Future<Output = kube::Result<T>>) -> Result<T, Failure> {
    match tokio::time::timeout(most, next).await {
        Ok(next) => Ok(next?),
        Err(_) => Err(Failure::Away { said: format!("nothing came for {} s", most.as_secs()) }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_is_found_where_it_began_and_not_in_the_current_context() {
        let read = |text: &str| Kubeconfig::from_yaml(text).unwrap();
        let config = read(
            "{clusters: [{name: a, cluster: {server: 'https://a:6443/'}}, {name: b, cluster: {server: 'https://b:6443'}}], \
             contexts: [{name: lab, context: {cluster: a, user: u}}, {name: cloud, context: {cluster: b, user: u}}, \
             {name: other, context: {cluster: b, user: v}}], current-context: lab}",
        );
        let at = |server: &str, context: &str| Location {
            server: server.to_owned(),
            namespace: "train".to_owned(),
            context: Some(context.to_owned()),
        };
        for (location, want) in [
            (at("https://b:6443", "cloud"), Some("cloud")),
            (at("https://b:6443", "other"), Some("other")),
            // Renamed since.
            (at("https://a:6443", "old"), Some("lab")),
            // The name leads elsewhere now.
            (at("https://b:6443", "lab"), Some("cloud")),
            (at("https://c:6443", "lab"), None),
        ] {
            assert_eq!(location.find_context(&config).as_deref(), want, "{location:?}");
        }
        let said = at("https://c:6443", "lab").is_gone().to_string();
        assert!(said.contains("namespace train of https://c:6443 (context lab)"), "{said}");
        let named = |context: Option<&str>, namespace: Option<&str>| Pods {
            context: context.map(str::to_owned),
            namespace: namespace.map(str::to_owned),
            ..Pods::default()
        };
        let location = at("https://a:6443", "lab");
        for (settings, want) in [
            (named(None, None), false),
            (named(Some("lab"), Some("train")), false),
            (named(Some("cloud"), None), true),
            (named(None, Some("other")), true),
        ] {
            assert_eq!(location.is_left(&settings), want);
        }
    }

    #[tokio::test]
    async fn a_connection_that_says_nothing_is_dead() {
        let silent = before_silence(Duration::from_millis(10), std::future::pending::<kube::Result<()>>());
        assert!(matches!(silent.await, Err(Failure::Away { .. })));
        assert!(before_silence(Duration::from_secs(60), async { Ok(1) }).await.is_ok_and(|event| event == 1));
    }
}

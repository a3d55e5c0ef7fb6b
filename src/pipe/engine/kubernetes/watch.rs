//! A pod as the cluster sees it, kept up to date by one request that stays open: nothing is asked again and again.

use std::sync::Arc;
use std::time::Duration;

use futures_util::{StreamExt, TryStreamExt};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{ListParams, WatchEvent, WatchParams};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::client::{Cluster, Failure, answer};

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

    #[tokio::test]
    async fn a_connection_that_says_nothing_is_dead() {
        let silent = before_silence(Duration::from_millis(10), std::future::pending::<kube::Result<()>>());
        assert!(matches!(silent.await, Err(Failure::Away { .. })));
        assert!(before_silence(Duration::from_secs(60), async { Ok(1) }).await.is_ok_and(|event| event == 1));
    }
}

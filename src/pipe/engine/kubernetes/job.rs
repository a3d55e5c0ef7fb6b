//! A job in its pod: followed to its end, stopped, killed, asked how it ended, removed.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use k8s_openapi::api::core::v1::Pod;
use pipe_spec::run::JobFolder;
use tokio::task::JoinHandle;

use super::client::{Cluster, Failure};
use super::download::{self, Progress};
use super::plan::Plan;
use super::state::{self, Seen, Stage};
use super::upload::{self, NotCarried, Together};
use super::watch::{PodWatch, View};
use super::{NAME, pod};
use crate::engine::{
    Closed, Ending, JobHandle, JobProgram, Launch, Line, LineSender, OUTPUT_INTERVAL, Output, Source, first_process,
};
use crate::error::Error;

/// How long an error that may go away is waited for before the job is refused.
const STUCK_TIMEOUT: Duration = Duration::from_secs(60);

/// How long the files of a job that has ended are tried to fetch, and how long the cluster may take to say that it has.
const FETCH_TIMEOUT: Duration = Duration::from_secs(30);
const END_TIMEOUT: Duration = Duration::from_secs(30);

/// How long what is on its way from a pod that is gone may take.
const GONE_TIMEOUT: Duration = Duration::from_secs(3);

/// How long a pod that is asked to end may give no sign of life.
const LOST_TIMEOUT: Duration = Duration::from_secs(20);

/// How long a job that has its files may take to begin.
const BEGIN_TIMEOUT: Duration = Duration::from_secs(60);

/// How long the files of a job that runs may not come before that is said.
const SILENT_TIMEOUT: Duration = Duration::from_secs(10);

/// Between two tries to carry files to a pod.
const CARRY_INTERVAL: Duration = Duration::from_secs(2);

/// State shared by the task that follows a job and the handle that ends it.
#[derive(Default)]
pub struct Shared {
    /// Why it will never run.
    refused: Mutex<Option<String>>,
    /// The pod as it was last seen.
    pod: Mutex<Option<Arc<Pod>>>,
    /// Whether `pipe` has asked it to end, and at once.
    is_asked: AtomicBool,
    is_killed: AtomicBool,
}

impl Shared {
    /// The exit code of the job, once the cluster knows it.
    pub fn exit_code(&self) -> Option<i64> {
        Seen::of(lock(&self.pod).as_deref()?).exit.map(|(code, _)| code)
    }

    /// That `pipe` asks it to end; whether that is new.
    pub fn ask_to_end(&self) -> bool {
        !self.is_asked.swap(true, Ordering::Relaxed)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

pub struct PodJob {
    cluster: Cluster,
    name: String,
    grace: u32,
    memory: Option<u64>,
    program: JobProgram,
    /// The folder of the job on this machine.
    folder: PathBuf,
    shared: Arc<Shared>,
}

impl PodJob {
    pub fn new(cluster: Cluster, launch: &Launch, name: String, shared: Arc<Shared>) -> Self {
        Self {
            cluster,
            name,
            grace: pod::grace(launch),
            memory: launch.resources.memory,
            program: launch.program.clone(),
            folder: launch.job_folder.0.clone(),
            shared,
        }
    }

    /// Everything that the cluster knows of the end.
    async fn seen(&self) -> Option<Seen> {
        let found = lock(&self.shared.pod).clone()?;
        let mut seen = Seen::of(&found);
        seen.is_asked = self.shared.is_asked.load(Ordering::Relaxed);
        if seen.is_deleted && !seen.is_asked {
            seen.events = self.cluster.events_of(found.metadata.uid.as_deref().unwrap_or_default()).await;
            if let Ok(Some(node)) = self.cluster.node(&seen.node).await {
                seen.node_is_closed = node.spec.as_ref().is_some_and(|spec| spec.unschedulable == Some(true));
                let conditions = node.status.and_then(|status| status.conditions).unwrap_or_default();
                let is_ready = |status: &str| status == "True";
                seen.node_is_lost =
                    conditions.iter().any(|condition| condition.type_ == "Ready" && !is_ready(&condition.status));
            }
        }
        Some(seen)
    }
}

#[async_trait(?Send)]
impl JobHandle for PodJob {
    async fn stop(&self) -> Result<(), Error> {
        // It repeats nothing: the node sends the signal once.
        if !self.shared.ask_to_end() {
            return Ok(());
        }
        later(self.cluster.delete_pod(&self.name, self.grace).await).inspect_err(|_| {
            self.shared.is_asked.store(false, Ordering::Relaxed);
        })
    }

    async fn kill(&self) -> Result<(), Error> {
        self.shared.is_asked.store(true, Ordering::Relaxed);
        self.shared.is_killed.store(true, Ordering::Relaxed);
        later(self.cluster.delete_pod(&self.name, 1).await)
    }

    async fn ending(&mut self) -> Result<Ending, Error> {
        if let Some(said) = lock(&self.shared.refused).clone() {
            let hint = "correct `kubernetes` or `container`, or ask those who run the cluster".to_owned();
            return Err(Error::JobRefused { engine: NAME, said, hint });
        }
        let end = first_process::end(&self.folder, JobFolder::END);
        let program = match &self.program {
            JobProgram::Trainer => "the trainer of the image",
            JobProgram::Command(program) => program,
        };
        if let Some(error) = first_process::spawn_error(end.as_ref(), program.as_ref()) {
            return Err(error);
        }
        let is_trainer = self.program == JobProgram::Trainer;
        Ok(state::ending(end.as_ref(), self.seen().await.as_ref(), is_trainer, self.memory))
    }

    async fn remove(&mut self) -> Result<(), Error> {
        for name in [&self.name, &pod::reader_name(&self.name)] {
            later(self.cluster.delete_pod(name, 0).await)?;
        }
        Ok(())
    }
}

/// A server that does not answer is asked again.
fn later(answer: Result<(), Failure>) -> Result<(), Error> {
    match answer {
        Err(Failure::Away { said }) => {
            tracing::warn!("the cluster does not answer: {said}");
            Ok(())
        }
        answer => answer.map_err(Failure::error),
    }
}

/// A task that ends when nobody waits for it any more.
struct Task<T>(JoinHandle<T>);

impl<T> Drop for Task<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// The files on their way to a pod, and when that was last begun.
struct Upload {
    together: Together,
    task: Option<Task<Result<(), NotCarried>>>,
    tried: Option<Instant>,
}

pub struct Follower {
    cluster: Cluster,
    plan: Plan,
    watch: PodWatch,
    output: Output,
    shared: Arc<Shared>,
    /// The pod that gives files back where that of the job is gone.
    reader: Option<Pod>,
    /// The sentences that were said last: of the pod, and of the cluster.
    said: String,
    is_away: bool,
    stuck: Option<Instant>,
    upload: Upload,
    download: Option<Task<()>>,
    progress: Arc<Progress>,
    /// When the files were last seen to come, since the pod was asked to end.
    alive: Option<Instant>,
    /// When they were last seen to come at all.
    heard: Instant,
    ended: Option<Instant>,
}

impl Follower {
    pub fn new(
        cluster: &Cluster,
        plan: Plan,
        together: Together,
        output: Output,
        reader: Option<Pod>,
        shared: Arc<Shared>,
    ) -> Self {
        Self {
            cluster: cluster.clone(),
            watch: PodWatch::start(cluster, &plan.pod),
            plan,
            output,
            shared,
            reader,
            said: String::new(),
            is_away: false,
            stuck: None,
            upload: Upload { together, task: None, tried: None },
            download: None,
            progress: Arc::default(),
            alive: None,
            heard: Instant::now(),
            ended: None,
        }
    }

    pub async fn follow(mut self, to: LineSender) {
        self.until_end(&to).await.ok();
    }

    async fn until_end(&mut self, to: &LineSender) -> Result<(), Closed> {
        loop {
            self.output.send(to).await?;
            let view = self.watch.view();
            self.note_absence(&view, to).await?;
            if let Some(pod) = &view.pod {
                *lock(&self.shared.pod) = Some(pod.clone());
            }
            if self.look(&view, to).await? {
                break;
            }
            self.watch.wait(OUTPUT_INTERVAL).await;
        }
        if !self.progress.is_complete() {
            self.fetch_from_volume(to).await?;
        }
        self.output.send_rest(to).await
    }

    /// Does what the state of the pod asks for; whether nothing more comes from it.
    async fn look(&mut self, view: &View, to: &LineSender) -> Result<bool, Closed> {
        let Some(found) = view.pod.clone() else { return Ok(view.is_gone) };
        let stage = state::stage(&found);
        self.upload.together.note(&stage);
        if !matches!(stage, Stage::Stuck { .. }) {
            self.stuck = None;
        }
        match stage {
            _ if view.is_gone => return Ok(self.has_fetched(GONE_TIMEOUT)),
            Stage::Waits { why } => {
                let why = if why.is_empty() { String::new() } else { format!(": {why}") };
                self.say(Source::Queue, format!("pod {} waits{why}", self.plan.pod), to).await?;
            }
            Stage::Stuck { why, is_final } => {
                self.say(Source::Queue, format!("pod {} cannot start: {why}", self.plan.pod), to).await?;
                let since = self.stuck.get_or_insert_with(Instant::now);
                if is_final || since.elapsed() > STUCK_TIMEOUT {
                    return Ok(self.refuse(format!("the pod cannot start: {why}")).await);
                }
            }
            Stage::Takes if !self.upload.together.may_carry() => {
                let text = format!("pod {} {}", self.plan.pod, self.upload.together.waits_for());
                self.say(Source::Queue, text, to).await?;
            }
            Stage::Takes => {
                if self.carry(to).await? {
                    return Ok(true);
                }
            }
            Stage::Runs { node } => {
                let text = match self.is_silent() {
                    false => format!("pod {} runs on {node}", self.plan.pod),
                    true => format!("pod {} cannot be reached: {node} may be lost; trying again", self.plan.pod),
                };
                self.say(Source::Engine, text, to).await?;
                self.start_download();
                // A job whose files are complete has ended, and the cluster says so soon.
                return Ok(self.progress.is_complete() && self.since_end() > END_TIMEOUT || self.is_lost(&found));
            }
            Stage::Ended => {
                self.start_download();
                let can_come = state::gives_files(&found) || self.progress.is_connected();
                return Ok(self.has_fetched(if can_come { FETCH_TIMEOUT } else { GONE_TIMEOUT }));
            }
        }
        Ok(state::is_deleted(&found) && self.is_lost(&found))
    }

    fn since_end(&mut self) -> Duration {
        self.ended.get_or_insert_with(Instant::now).elapsed()
    }

    /// Whether the files of a job that runs have not come for a while.
    fn is_silent(&mut self) -> bool {
        if self.download.is_none() || self.progress.is_connected() || self.progress.is_complete() || self.is_away {
            self.heard = Instant::now();
        }
        self.heard.elapsed() > SILENT_TIMEOUT
    }

    /// Whether all files of a job that has ended are here, or do not come within this time.
    fn has_fetched(&mut self, most: Duration) -> bool {
        let is_late = self.since_end() > most && !self.progress.is_connected();
        self.progress.is_complete() || self.download.is_none() || is_late
    }

    /// Whether a pod that was asked to end does not answer any more: its node is lost, and its container may run on.
    fn is_lost(&mut self, pod: &Pod) -> bool {
        if !state::is_deleted(pod) && !self.shared.is_killed.load(Ordering::Relaxed) {
            self.alive = None;
            return false;
        }
        if self.alive.is_none() || self.progress.is_connected() || self.is_away {
            self.alive = Some(Instant::now());
        }
        self.alive.is_some_and(|at| at.elapsed() > LOST_TIMEOUT)
    }

    fn start_download(&mut self) {
        if self.download.is_none() {
            let (cluster, plan, name) = (self.cluster.clone(), self.plan.clone(), self.plan.pod.clone());
            let fetch = download::fetch(cluster, plan, name, false, Arc::clone(&self.progress));
            self.download = Some(Task(tokio::spawn(fetch)));
        }
    }

    /// Carries files to the pod that waits for them; whether the job is refused.
    async fn carry(&mut self, to: &LineSender) -> Result<bool, Closed> {
        let is_done = self.upload.task.as_ref().is_some_and(|task| task.0.is_finished());
        if is_done && let Some(mut task) = self.upload.task.take() {
            match (&mut task.0).await {
                // The cluster says soon that the job has begun.
                Ok(Ok(())) => self.upload.tried = Some(Instant::now() + BEGIN_TIMEOUT),
                Ok(Err(NotCarried::Unreadable { said })) => {
                    return Ok(self.refuse(format!("its files cannot be carried to the pod: {said}")).await);
                }
                Ok(Err(NotCarried::Failed { said })) => {
                    let text = format!("the files are not in pod {} yet ({said}): trying again", self.plan.pod);
                    self.say(Source::Queue, text, to).await?;
                }
                Err(error) => tracing::debug!("{error}"),
            }
        }
        if self.upload.task.is_none() && self.upload.tried.is_none_or(|at| at.elapsed() > CARRY_INTERVAL) {
            self.upload.tried = Some(Instant::now());
            if self.said.is_empty() || !self.said.contains("files") {
                self.say(Source::Queue, format!("carrying files to pod {}", self.plan.pod), to).await?;
            }
            let carry = upload::carry(self.cluster.clone(), self.plan.clone(), self.upload.together.clone());
            self.upload.task = Some(Task(tokio::spawn(carry)));
        }
        Ok(false)
    }

    /// A job that cannot ever start is taken away.
    async fn refuse(&mut self, said: String) -> bool {
        *lock(&self.shared.refused) = Some(said);
        if let Err(failure) = self.cluster.delete_pod(&self.plan.pod, 1).await {
            tracing::warn!("cannot delete pod {}: {}", self.plan.pod, failure.said());
        }
        true
    }

    /// Starts another pod that gives back the files that a pod which is gone has left on a volume.
    async fn fetch_from_volume(&mut self, to: &LineSender) -> Result<(), Closed> {
        // The volume may know more of a pod that this process never saw.
        let has_begun = self.download.is_some() || lock(&self.shared.pod).is_none();
        let Some(pod) = self.reader.take().filter(|_| has_begun && lock(&self.shared.refused).is_none()) else {
            return Ok(());
        };
        self.download = None;
        let name = pod.metadata.name.clone().unwrap_or_default();
        match self.cluster.create_pod(&pod, false).await {
            Err(failure) if !failure.is(409) => {
                tracing::warn!("cannot fetch the last files from the volume: {}", failure.said());
                return Ok(());
            }
            _ => {}
        }
        let fetch =
            download::fetch(self.cluster.clone(), self.plan.clone(), name.clone(), true, Arc::clone(&self.progress));
        let task = Task(tokio::spawn(fetch));
        let began = Instant::now();
        while !self.progress.is_complete() && (began.elapsed() < STUCK_TIMEOUT || self.progress.is_connected()) {
            tokio::time::sleep(OUTPUT_INTERVAL).await;
            self.output.send(to).await?;
        }
        drop(task);
        self.cluster.delete_pod(&name, 0).await.ok();
        Ok(())
    }

    async fn note_absence(&mut self, view: &View, to: &LineSender) -> Result<(), Closed> {
        if std::mem::replace(&mut self.is_away, view.away.is_some()) == view.away.is_some() {
            return Ok(());
        }
        let text = match &view.away {
            Some(said) => format!("the cluster does not answer ({said}); the job continues there"),
            None => "the cluster answers again".to_owned(),
        };
        to.send(Line::new(Source::Engine, text)).await
    }

    /// Says where the job is, when that has changed.
    async fn say(&mut self, source: Source, text: String, to: &LineSender) -> Result<(), Closed> {
        if text == self.said {
            return Ok(());
        }
        self.said.clone_from(&text);
        to.send(Line::new(source, text)).await
    }
}

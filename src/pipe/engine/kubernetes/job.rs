//! A job in its pod: followed to its end, stopped, killed, asked how it ended, removed.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use k8s_openapi::api::core::v1::Pod;
use pipe_spec::run::JobFolder;
use tokio::task::JoinHandle;

use super::client::{Cluster, Failure, PodWatch, View};
use super::download::{self, Progress};
use super::plan::Plan;
use super::state::{self, Seen, Stage};
use super::upload::{self, NotCarried, Together};
use super::{NAME, pod};
use crate::engine::{
    Closed, Ending, JobHandle, JobProgram, Launch, Line, LineSender, OUTPUT_INTERVAL, Output, Source, first_process,
};
use crate::error::Error;

/// How long an error that may go away is waited for before the job is refused.
const STUCK_TIMEOUT: Duration = Duration::from_secs(60);

/// How long the files of a job that has ended are tried to fetch: longer than its pod keeps them.
const FETCH_TIMEOUT: Duration = Duration::from_secs(pod::LINGER_IN_POD as u64 + 60);

/// How long the pod that gives back the files of a volume may take.
const READER_TIMEOUT: Duration = Duration::from_secs(300);

/// How long the cluster may take to say that a job has ended whose files are here.
const END_TIMEOUT: Duration = Duration::from_secs(30);

/// How long what is on its way from a pod that is gone may take.
const GONE_TIMEOUT: Duration = Duration::from_secs(3);

/// How long a pod that is asked to end may give no sign of life.
const LOST_TIMEOUT: Duration = Duration::from_secs(20);

/// How long a job that has its files may take to begin.
const BEGIN_TIMEOUT: Duration = Duration::from_secs(60);

/// How long the files of a job that runs may not come before that is said.
const SILENT_TIMEOUT: Duration = Duration::from_secs(10);

/// Between two tries to carry files to a pod, and how long it may refuse them before the job is refused.
const CARRY_INTERVAL: Duration = Duration::from_secs(2);
const REFUSED_TIMEOUT: Duration = Duration::from_secs(60);

/// Between two tries to ask a pod to end, and how long they are made once its job has ended.
const ASK_INTERVAL: Duration = Duration::from_secs(2);
const REMOVE_TIMEOUT: Duration = Duration::from_secs(60);

/// Seconds after its own timeout that the first process may take to end a job.
const LATE_SECONDS: u32 = 10;

/// Requests that were made of the job which supervises a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Asked {
    Stop,
    StopAtOnce,
}

/// State shared by the task that follows a job and the handle that ends it.
#[derive(Default)]
pub struct Shared {
    /// Why it will never run.
    refused: Mutex<Option<String>>,
    /// The pod as it was last seen.
    pod: Mutex<Option<Arc<Pod>>>,
    /// Since when `pipe` asks it to end, and whether at once.
    asked: Mutex<Option<Instant>>,
    is_killed: AtomicBool,
    /// The seconds of a request to end that the cluster has not taken yet.
    request: Mutex<Option<u32>>,
    /// The request that the `pipe` in the pod gets.
    told: Mutex<Option<Asked>>,
    progress: Arc<Progress>,
}

impl Shared {
    /// The follower tells the cluster, again where it is away.
    fn ask(&self, seconds: u32) {
        lock(&self.asked).get_or_insert_with(Instant::now);
        *lock(&self.request) = Some(seconds);
    }

    /// Asks it to end, unless it is asked already.
    pub fn ask_to_end(&self, seconds: u32) {
        if lock(&self.asked).is_none() {
            self.ask(seconds);
        }
    }

    /// The exit code of the job, once the cluster knows it.
    pub fn exit_code(&self) -> Option<i64> {
        Seen::of(lock(&self.pod).as_deref()?).exit.map(|(code, _)| code)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The file that says that `pipe` has asked a job to end, for a `pipe` that takes it over.
pub fn asked_before(job_folder: &Path) -> PathBuf {
    job_folder.with_file_name("asked-to-end")
}

pub struct PodJob {
    cluster: Cluster,
    name: String,
    grace: u32,
    stop_timeout: u32,
    memory: Option<u64>,
    program: JobProgram,
    /// The folder of the job on this machine.
    folder: PathBuf,
    /// How the `pipe` in it is asked to stop, and at once, where it supervises a run.
    stop_words: Option<[Vec<String>; 2]>,
    has_volume: bool,
    shared: Arc<Shared>,
}

impl PodJob {
    pub fn new(cluster: Cluster, launch: &Launch, name: String, has_volume: bool, shared: Arc<Shared>) -> Self {
        Self {
            stop_words: launch.supervises().then(|| [false, true].map(|at_once| pod::stop_words(launch, at_once))),
            has_volume,
            cluster,
            name,
            grace: pod::grace(launch),
            stop_timeout: first_process::stop_timeout(launch),
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
        seen.is_asked = lock(&self.shared.asked).is_some();
        seen.was_asked = asked_before(&self.folder).exists();
        seen.has_files = self.shared.progress.is_complete();
        if seen.is_deleted && !seen.is_asked {
            seen.events = self.cluster.events_of(found.metadata.uid.as_deref().unwrap_or_default()).await;
            match self.cluster.node(&seen.node).await {
                Ok(Some(node)) => {
                    seen.node_is_closed = node.spec.as_ref().is_some_and(|spec| spec.unschedulable == Some(true));
                    let conditions = node.status.and_then(|status| status.conditions).unwrap_or_default();
                    let is_ready = |status: &str| status == "True";
                    seen.node_is_lost =
                        conditions.iter().any(|condition| condition.type_ == "Ready" && !is_ready(&condition.status));
                }
                // A machine that is gone takes its object with it.
                Ok(None) => seen.node_is_lost = !seen.node.is_empty(),
                Err(_) => {}
            }
        }
        Some(seen)
    }

    /// Asks the `pipe` in the pod to stop the run that it supervises. A signal to the pod would end that `pipe` alone.
    fn tell(&self, asked: Asked, words: &[Vec<String>; 2]) {
        let before = lock(&self.shared.told).replace(asked);
        if before >= Some(asked) {
            *lock(&self.shared.told) = before;
            return;
        }
        let words = words[usize::from(asked == Asked::StopAtOnce)].clone();
        let (cluster, name, shared) = (self.cluster.clone(), self.name.clone(), Arc::clone(&self.shared));
        tokio::spawn(async move {
            loop {
                let stage = lock(&shared.pod).as_deref().map(state::stage);
                match stage {
                    Some(Stage::Runs { .. }) => {
                        if let Err(failure) = run_in(&cluster, &name, words.clone()).await {
                            tracing::debug!("cannot ask pod {name} to stop yet: {}", failure.said());
                        }
                    }
                    Some(Stage::Ended) => return,
                    // Nothing runs in it.
                    Some(_) => return shared.ask(1),
                    None => {}
                }
                tokio::time::sleep(ASK_INTERVAL).await;
            }
        });
    }

    fn ask(&self, seconds: u32) {
        std::fs::write(asked_before(&self.folder), "").unwrap_or_else(|error| tracing::debug!("{error}"));
        self.shared.ask(seconds);
    }
}

#[async_trait(?Send)]
impl JobHandle for PodJob {
    async fn stop(&self) -> Result<(), Error> {
        if let Some(words) = &self.stop_words {
            self.tell(Asked::Stop, words);
            return Ok(());
        }
        // The node sends the signal once.
        if lock(&self.shared.asked).is_none() {
            self.ask(self.grace);
        }
        Ok(())
    }

    async fn kill(&self) -> Result<(), Error> {
        if let Some(words) = &self.stop_words {
            self.tell(Asked::StopAtOnce, words);
            return Ok(());
        }
        self.shared.is_killed.store(true, Ordering::Relaxed);
        self.ask(1);
        Ok(())
    }

    fn is_saving(&self) -> bool {
        let asked = *lock(&self.shared.asked);
        let has_ended = lock(&self.shared.pod).as_ref().is_some_and(|pod| state::stage(pod) == Stage::Ended);
        // The first process of the pod ends the job itself.
        let is_due =
            asked.is_some_and(|at| at.elapsed() < Duration::from_secs((self.stop_timeout + LATE_SECONDS).into()));
        self.shared.progress.is_connected() && (has_ended || is_due)
    }

    fn has_left_files(&self) -> bool {
        self.has_volume && self.stop_words.is_some() && !self.shared.progress.is_complete()
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
        let began = Instant::now();
        for name in [&self.name, &pod::reader_name(&self.name)] {
            while let Err(failure) = self.cluster.delete_pod(name, 0).await {
                if began.elapsed() > REMOVE_TIMEOUT {
                    tracing::warn!("pod {name} could not be deleted and stays: {}", failure.said());
                    break;
                }
                tokio::time::sleep(ASK_INTERVAL).await;
            }
        }
        std::fs::remove_file(asked_before(&self.folder)).ok();
        Ok(())
    }
}

/// Runs a process in the job's container of a pod to its end.
async fn run_in(cluster: &Cluster, name: &str, words: Vec<String>) -> Result<(), Failure> {
    let mut process = cluster.exec(name, pod::JOB, words).await?;
    if let Some(mut output) = process.stdout() {
        tokio::io::copy(&mut output, &mut tokio::io::sink()).await.ok();
    }
    Ok(())
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
    /// Since when the pod refuses them.
    refused: Option<Instant>,
}

/// A request to end on its way to the cluster, and when that was last begun.
#[derive(Default)]
struct Request {
    task: Option<Task<(u32, Result<(), Failure>)>>,
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
    request: Request,
    download: Option<Task<()>>,
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
            upload: Upload { together, task: None, tried: None, refused: None },
            request: Request::default(),
            download: None,
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
            self.ask_to_end().await;
            if let Some(pod) = &view.pod {
                *lock(&self.shared.pod) = Some(pod.clone());
            }
            if self.look(&view, to).await? {
                break;
            }
            self.watch.wait(OUTPUT_INTERVAL).await;
        }
        let has_begun = self.download.is_some();
        if !self.shared.progress.is_complete() {
            self.fetch_from_volume(to).await?;
        }
        self.note_end(has_begun, to).await?;
        self.output.send_rest(to).await
    }

    /// Says what the end of the pod took with it, and what the words of its cause leave out.
    async fn note_end(&mut self, has_begun: bool, to: &LineSender) -> Result<(), Closed> {
        let seen = lock(&self.shared.pod).as_ref().map(|pod| Seen::of(pod));
        if let Some(seen) = seen.filter(Seen::is_evicted_for_own_memory) {
            self.say(Source::Engine, format!("{} evicted the pod: {}", seen.node, seen.message.trim()), to).await?;
        }
        let is_killed = self.shared.is_killed.load(Ordering::Relaxed);
        if has_begun && !self.shared.progress.is_complete() && !is_killed {
            let text = format!("warning: the last files of pod {} did not come", self.plan.pod);
            self.say(Source::Engine, text, to).await?;
        }
        Ok(())
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
                return Ok(self.shared.progress.is_complete() && self.since_end() > END_TIMEOUT || self.is_lost(&found));
            }
            Stage::Ended => {
                self.start_download();
                let can_come = state::gives_files(&found) || self.shared.progress.is_connected();
                let is_over = self.has_fetched(if can_come { FETCH_TIMEOUT } else { GONE_TIMEOUT });
                if !is_over && self.is_silent() {
                    self.say(Source::Engine, self.missing(&found), to).await?;
                }
                return Ok(is_over || self.is_lost(&found));
            }
        }
        Ok(state::is_deleted(&found) && self.is_lost(&found))
    }

    /// Why a job that has ended is not over.
    fn missing(&self, pod: &Pod) -> String {
        let problem = self.shared.progress.problem();
        let problem = if problem.is_empty() { problem } else { format!(" ({problem})") };
        let until =
            if state::is_deleted(pod) || self.reader.is_some() { "" } else { ", as long as the pod keeps them" };
        format!(
            "the job in pod {} has ended, and its last files are not here yet{problem}: trying again{until}",
            self.plan.pod
        )
    }

    /// Passes a request to end on to the cluster, until that takes it.
    async fn ask_to_end(&mut self) {
        let is_done = self.request.task.as_ref().is_some_and(|task| task.0.is_finished());
        if is_done && let Some(mut task) = self.request.task.take() {
            match (&mut task.0).await {
                Ok((seconds, Ok(()))) => {
                    let mut request = lock(&self.shared.request);
                    // One to end at once may have come meanwhile.
                    *request = request.filter(|asked| *asked != seconds);
                }
                Ok((_, Err(failure))) => tracing::warn!("cannot end pod {} yet: {}", self.plan.pod, failure.said()),
                Err(error) => tracing::debug!("{error}"),
            }
        }
        let request = *lock(&self.shared.request);
        if let Some(seconds) = request
            && self.request.task.is_none()
            && self.request.tried.is_none_or(|at| at.elapsed() > ASK_INTERVAL)
        {
            self.request.tried = Some(Instant::now());
            let (cluster, name) = (self.cluster.clone(), self.plan.pod.clone());
            let ask = async move { (seconds, cluster.delete_pod(&name, seconds).await) };
            self.request.task = Some(Task(tokio::spawn(ask)));
        }
    }

    fn since_end(&mut self) -> Duration {
        self.ended.get_or_insert_with(Instant::now).elapsed()
    }

    /// Whether the files of a job that runs have not come for a while.
    fn is_silent(&mut self) -> bool {
        if self.download.is_none()
            || self.shared.progress.is_connected()
            || self.shared.progress.is_complete()
            || self.is_away
        {
            self.heard = Instant::now();
        }
        self.heard.elapsed() > SILENT_TIMEOUT
    }

    /// Whether all files of a job that has ended are here, or do not come within this time.
    fn has_fetched(&mut self, most: Duration) -> bool {
        let is_late = self.since_end() > most && !self.shared.progress.is_connected() && !self.is_away;
        self.shared.progress.is_complete() || self.download.is_none() || is_late
    }

    /// Whether a pod that was asked to end does not answer any more: its node is lost, and its container may run on.
    fn is_lost(&mut self, pod: &Pod) -> bool {
        if !state::is_deleted(pod) && !self.shared.is_killed.load(Ordering::Relaxed) {
            self.alive = None;
            return false;
        }
        if self.alive.is_none() || self.shared.progress.is_connected() || self.is_away {
            self.alive = Some(Instant::now());
        }
        self.alive.is_some_and(|at| at.elapsed() > LOST_TIMEOUT)
    }

    fn start_download(&mut self) {
        if self.download.is_none() {
            let (cluster, plan, name) = (self.cluster.clone(), self.plan.clone(), self.plan.pod.clone());
            let fetch = download::fetch(cluster, plan, name, false, Arc::clone(&self.shared.progress));
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
                Ok(Err(NotCarried::Refused { said })) => {
                    let since = self.upload.refused.get_or_insert_with(Instant::now);
                    if since.elapsed() > REFUSED_TIMEOUT {
                        return Ok(self.refuse(format!("the pod does not take its files: {said}")).await);
                    }
                    self.say_not_carried(&said, to).await?;
                }
                Ok(Err(NotCarried::Failed { said })) => {
                    self.upload.refused = None;
                    self.say_not_carried(&said, to).await?;
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

    async fn say_not_carried(&mut self, said: &str, to: &LineSender) -> Result<(), Closed> {
        let text = format!("the files are not in pod {} yet ({said}): trying again", self.plan.pod);
        self.say(Source::Queue, text, to).await
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
        let began = Instant::now();
        while let Err(failure) = self.cluster.create_pod(&pod, false).await {
            if failure.is(409) {
                break;
            }
            let is_away = matches!(failure, Failure::Away { .. }) && began.elapsed() < READER_TIMEOUT;
            if !is_away || self.shared.is_killed.load(Ordering::Relaxed) {
                tracing::warn!("cannot fetch the last files from the volume: {}", failure.said());
                return Ok(());
            }
            tokio::time::sleep(ASK_INTERVAL).await;
        }
        let fetch = download::fetch(
            self.cluster.clone(),
            self.plan.clone(),
            name.clone(),
            true,
            Arc::clone(&self.shared.progress),
        );
        let task = Task(tokio::spawn(fetch));
        let began = Instant::now();
        let progress = Arc::clone(&self.shared.progress);
        let is_killed = || self.shared.is_killed.load(Ordering::Relaxed);
        while !progress.is_complete() && !is_killed() && (began.elapsed() < READER_TIMEOUT || progress.is_connected()) {
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

//! A container: what it may do, which is the least; followed to its end, stopped, killed, asked how it ended, removed.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use bollard::Docker;
use bollard::errors::Error::DockerResponseServerError;
use bollard::models::{
    ContainerCreateBody, ContainerState, ContainerStateStatusEnum, DeviceMapping, DeviceRequest, HostConfig, Mount,
    MountType,
};
use bollard::query_parameters::{KillContainerOptionsBuilder, WaitContainerOptions};
use futures_util::StreamExt;
use pipe_spec::run::{JobEnd, JobFolder};

use super::gpu::Passthrough;
use super::{LABEL_ATTEMPT, LABEL_FOLDER, LABEL_RUN, failed, is_conflict, is_stopped, remove_container};
use crate::engine::{
    Closed, Ending, JobHandle, JobProgram, Launch, Line, LineSender, OUTPUT_INTERVAL, Output, Source, first_process,
};
use crate::error::Error;

/// Processes and threads that a job may have.
const PIDS: i64 = 8192;

/// The name of a container: every attempt has one, by which it is found again.
pub fn name(launch: &Launch) -> String {
    format!("pipe-{}-{:02}", launch.run_id, launch.attempt)
}

/// The name and the body of the request that makes the container.
pub fn describe(
    launch: &Launch,
    first: &Path,
    entrypoint: Vec<String>,
    gpu: Option<&Passthrough>,
    rootless: bool,
) -> (String, ContainerCreateBody) {
    let bind = |host: String, container: String, read_only: bool| Mount {
        typ: Some(MountType::BIND),
        source: Some(host),
        target: Some(container),
        read_only: Some(read_only),
        ..Mount::default()
    };
    let text = |path: &Path| path.to_string_lossy().into_owned();
    let mut mounts: Vec<Mount> = Vec::new();
    mounts.extend(launch.mounts.writable.iter().map(|(host, container)| bind(text(host), text(container), false)));
    mounts.extend(launch.mounts.read_only.iter().map(|(host, container)| bind(text(host), text(container), true)));
    mounts.push(bind(text(first), first_process::IN_CONTAINER.to_owned(), true));
    let mut env: Vec<String> = launch.env.iter().map(|(name, value)| format!("{name}={value}")).collect();
    let mut host = HostConfig {
        network_mode: (!launch.network).then(|| "none".to_owned()),
        cap_drop: Some(vec!["ALL".to_owned()]),
        security_opt: Some(vec!["no-new-privileges".to_owned()]),
        readonly_rootfs: Some(true),
        memory: launch.resources.memory.map(|bytes| bytes as i64),
        // The same number for memory and memory with swap means no swap.
        memory_swap: launch.resources.memory.map(|bytes| bytes as i64),
        shm_size: launch.resources.shm.map(|bytes| bytes as i64),
        pids_limit: Some(PIDS),
        nano_cpus: launch.resources.cpus.map(|cpus| (cpus * 1e9) as i64),
        ..HostConfig::default()
    };
    if let JobProgram::Command(_) = launch.program {
        // Programs of others want a place for their temporary files, and a home.
        host.tmpfs = Some(HashMap::from([("/tmp".to_owned(), "exec,mode=1777".to_owned())]));
        // Python asks for the name of the user, whom no file of the image knows.
        for (name, value) in [("HOME", "/tmp"), ("USER", "user"), ("LOGNAME", "user")] {
            if !launch.env.contains_key(name) {
                env.push(format!("{name}={value}"));
            }
        }
    }
    if let Some(gpu) = gpu {
        pass_through(gpu, &mut host, &mut mounts, &mut env, bind);
    }
    host.mounts = Some(mounts);
    let labels = HashMap::from([
        (LABEL_RUN.to_owned(), launch.run_id.clone()),
        (LABEL_ATTEMPT.to_owned(), launch.attempt.to_string()),
        (LABEL_FOLDER.to_owned(), text(&launch.run_folder)),
    ]);
    let body = ContainerCreateBody {
        image: launch.image.clone(),
        entrypoint: Some(first_process::words(launch, Path::new(first_process::IN_CONTAINER))),
        cmd: Some(entrypoint.into_iter().chain(launch.args.iter().cloned()).collect()),
        user: Some(user(rootless)),
        env: Some(env),
        labels: Some(labels),
        network_disabled: Some(!launch.network),
        working_dir: launch.work_folder.as_deref().map(text),
        stop_signal: Some("SIGTERM".to_owned()),
        host_config: Some(host),
        ..ContainerCreateBody::default()
    };
    (name(launch), body)
}

fn pass_through(
    gpu: &Passthrough,
    host: &mut HostConfig,
    mounts: &mut Vec<Mount>,
    env: &mut Vec<String>,
    bind: impl Fn(String, String, bool) -> Mount,
) {
    match gpu {
        Passthrough::Cdi { devices } => {
            host.device_requests = Some(vec![DeviceRequest {
                driver: Some("cdi".to_owned()),
                device_ids: Some(devices.clone()),
                ..DeviceRequest::default()
            }]);
        }
        Passthrough::NvidiaRuntime { visible } => {
            host.runtime = Some("nvidia".to_owned());
            env.push(format!("NVIDIA_VISIBLE_DEVICES={visible}"));
            env.push("NVIDIA_DRIVER_CAPABILITIES=compute,utility".to_owned());
        }
        Passthrough::Devices { devices, libraries, visible } => {
            let device = |path: &String| DeviceMapping {
                path_on_host: Some(path.clone()),
                path_in_container: Some(path.clone()),
                cgroup_permissions: Some("rw".to_owned()),
            };
            host.devices = Some(devices.iter().map(device).collect());
            for library in libraries {
                let name = library.file_name().unwrap_or_default().to_string_lossy();
                let target = format!("{}/{name}", Passthrough::DRIVER_FOLDER);
                mounts.push(bind(library.to_string_lossy().into_owned(), target, true));
            }
            env.extend(visible.as_ref().map(|ids| format!("CUDA_VISIBLE_DEVICES={ids}")));
        }
    }
}

/// The user's own ids, so that what the container writes is the user's. A daemon without root maps the user to root in its containers,
/// who has no capability there.
fn user(rootless: bool) -> String {
    match rootless {
        true => "0:0".to_owned(),
        false => format!("{}:{}", rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw()),
    }
}

pub struct ContainerJob {
    docker: Docker,
    id: String,
    memory_limit: Option<u64>,
    program: JobProgram,
    /// The folder of the job on the host.
    folder: PathBuf,
    /// Whether the daemon went away while it ran.
    outage: Arc<AtomicBool>,
}

impl ContainerJob {
    pub fn new(docker: Docker, id: String, launch: &Launch, outage: Arc<AtomicBool>) -> Self {
        let memory_limit = launch.resources.memory;
        Self { docker, id, memory_limit, program: launch.program.clone(), folder: launch.job_folder.0.clone(), outage }
    }

    async fn signal(&self, signal: &str) -> Result<(), Error> {
        let options = KillContainerOptionsBuilder::new().signal(signal).build();
        match self.docker.kill_container(&self.id, Some(options)).await {
            // It is gone, or not running any more.
            Ok(()) | Err(bollard::errors::Error::DockerResponseServerError { status_code: 404, .. }) => Ok(()),
            Err(refused) if is_conflict(&refused) => Ok(()),
            Err(source) => Err(failed(source)),
        }
    }

    async fn is_paused(&self) -> bool {
        let found = self.docker.inspect_container(&self.id, None).await;
        found.is_ok_and(|found| found.state.and_then(|state| state.paused) == Some(true))
    }
}

#[async_trait(?Send)]
impl JobHandle for ContainerJob {
    async fn stop(&self) -> Result<(), Error> {
        self.signal("SIGTERM").await
    }

    async fn kill(&self) -> Result<(), Error> {
        // A container that is paused takes no signal.
        if self.is_paused().await {
            self.docker.unpause_container(&self.id).await.ok();
        }
        self.signal("SIGKILL").await
    }

    async fn ending(&mut self) -> Result<Ending, Error> {
        let outage = self.outage.load(Ordering::Relaxed);
        let memory_limit = self.memory_limit;
        let end = first_process::end(&self.folder, JobFolder::END);
        let state = match self.docker.inspect_container(&self.id, None).await {
            Ok(container) => container.state.unwrap_or_default(),
            Err(bollard::errors::Error::DockerResponseServerError { status_code: 404, .. }) => {
                let lost = Some("the container was removed while it ran".to_owned());
                return Ok(Ending { lost, memory_limit, outage, ..Ending::exited(None) });
            }
            Err(error) if is_stopped(&error) => {
                let code = end.as_ref().map_or(first_process::KILLED, |end| end.exit_code);
                ContainerState { exit_code: Some(code), ..ContainerState::default() }
            }
            Err(source) => return Err(Error::EngineLost { reason: source.to_string() }),
        };
        if state.status == Some(ContainerStateStatusEnum::CREATED) {
            return Err(Error::EngineLost { reason: "the daemon did not start the container".to_owned() });
        }
        let exit_code = state.exit_code;
        let program = match &self.program {
            JobProgram::Trainer => "the entry point of the image",
            JobProgram::Command(program) => program,
        };
        if let Some(error) = first_process::spawn_error(end.as_ref(), Path::new(program)) {
            return Err(error);
        }
        let is_trainer = self.program == JobProgram::Trainer;
        let completed = end.as_ref().is_some_and(JobEnd::is_completed);
        let oom_killed = state.oom_killed == Some(true)
            || first_process::is_oom_killed(end.map_or(0, |end| end.oom_kills), exit_code, is_trainer, true);
        Ok(Ending { oom_killed, memory_limit, outage, completed, ..Ending::exited(exit_code) })
    }

    async fn remove(&mut self) -> Result<(), Error> {
        remove_container(&self.docker, &self.id).await
    }
}

/// How long a daemon that does not answer is waited for, unless `PIPE_ENGINE_WAIT` says otherwise.
const OUTAGE_TIMEOUT: Duration = Duration::from_secs(300);

/// How long a daemon that ends its containers may take to go away itself.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(3);

const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// Between two looks at a container that the daemon waits for.
const STATE_INTERVAL: Duration = Duration::from_secs(2);

/// Follows a container to its end, also if the daemon restarts.
pub struct Follower {
    pub docker: Docker,
    pub id: String,
    pub output: Output,
    pub outage: Arc<AtomicBool>,
}

/// The daemon's answer about the container.
enum State {
    /// The daemon went away when it was asked to start it.
    Created,
    Runs,
    Ended {
        code: i64,
    },
    Away,
}

impl Follower {
    pub async fn follow(mut self, to: LineSender) {
        while self.watch(&to).await.is_ok() {
            let again = match self.state().await {
                State::Runs => true,
                State::Created => self.starts(&to).await,
                State::Ended { code } => self.goes_away_after(code).await && self.comes_back(&to).await,
                State::Away => self.comes_back(&to).await,
            };
            if !again {
                self.output.send_rest(&to).await.ok();
                return;
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }

    /// Sends the container's output until the daemon says that it has ended, or does not answer any more.
    async fn watch(&mut self, to: &LineSender) -> Result<(), Closed> {
        let mut end = std::pin::pin!(self.docker.wait_container(&self.id, None::<WaitContainerOptions>));
        let mut checked = Instant::now();
        loop {
            self.output.send(to).await?;
            if tokio::time::timeout(OUTPUT_INTERVAL, end.next()).await.is_ok() {
                return Ok(());
            }
            // Podman waits without end for a container whose cleanup failed.
            if checked.elapsed() > STATE_INTERVAL {
                if !matches!(self.state().await, State::Runs) {
                    return Ok(());
                }
                checked = Instant::now();
            }
        }
    }

    async fn state(&self) -> State {
        match self.docker.inspect_container(&self.id, None).await {
            Ok(container) => {
                let state = container.state.unwrap_or_default();
                match state.running {
                    Some(true) => State::Runs,
                    _ if state.status == Some(ContainerStateStatusEnum::CREATED) => State::Created,
                    _ => State::Ended { code: state.exit_code.unwrap_or(0) },
                }
            }
            Err(DockerResponseServerError { status_code: 404, .. }) => State::Ended { code: 0 },
            Err(error) if is_stopped(&error) => State::Ended { code: 0 },
            Err(_) => State::Away,
        }
    }

    /// Starts the container; whether the daemon has, or may have.
    async fn starts(&self, to: &LineSender) -> bool {
        match self.docker.start_container(&self.id, None).await {
            Ok(()) => true,
            Err(DockerResponseServerError { message, .. }) => {
                to.send(Line::new(Source::Engine, format!("the container cannot be started: {message}"))).await.ok();
                false
            }
            Err(_) => self.comes_back(to).await,
        }
    }

    /// A container that was ended from outside may be one that a daemon ends before it goes itself.
    async fn goes_away_after(&self, code: i64) -> bool {
        let ended_from_outside = matches!(code, 137 | 143);
        let began = Instant::now();
        while ended_from_outside && !self.outage.load(Ordering::Relaxed) && began.elapsed() < SHUTDOWN_TIMEOUT {
            if self.docker.ping().await.is_err() {
                return true;
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
        false
    }

    /// Waits for the daemon; whether it is there again.
    async fn comes_back(&self, to: &LineSender) -> bool {
        self.outage.store(true, Ordering::Relaxed);
        let note = |text: String| Line::new(Source::Engine, text);
        to.send(note(waiting())).await.ok();
        let answers = answers_again(&self.docker).await;
        if answers {
            to.send(note(ANSWERS.to_owned())).await.ok();
        }
        answers
    }
}

fn outage_timeout() -> Duration {
    let given = std::env::var("PIPE_ENGINE_WAIT").ok().and_then(|seconds| seconds.parse().ok());
    given.map_or(OUTAGE_TIMEOUT, Duration::from_secs)
}

/// The words while a daemon is waited for.
pub fn waiting() -> String {
    format!("the daemon does not answer: waiting for it, at most {}s", outage_timeout().as_secs())
}

pub const ANSWERS: &str = "the daemon answers again";

/// Waits for a daemon that does not answer.
pub async fn answers_again(docker: &Docker) -> bool {
    let began = Instant::now();
    while began.elapsed() < outage_timeout() {
        if docker.ping().await.is_ok() {
            return true;
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    fn passed(gpu: &Passthrough) -> (HostConfig, Vec<String>) {
        let (mut host, mut mounts, mut env) = (HostConfig::default(), Vec::new(), Vec::new());
        pass_through(gpu, &mut host, &mut mounts, &mut env, |_, _, _| Mount::default());
        (host, env)
    }

    #[test]
    fn every_way_passes_several_cards() {
        let devices = ["nvidia.com/gpu=0", "nvidia.com/gpu=1"].map(str::to_owned).to_vec();
        let (host, _) = passed(&Passthrough::Cdi { devices: devices.clone() });
        let requests = host.device_requests.unwrap();
        assert_eq!((requests.len(), requests[0].device_ids.as_ref()), (1, Some(&devices)));
        let (host, env) = passed(&Passthrough::NvidiaRuntime { visible: "0,1".to_owned() });
        assert_eq!(host.runtime.as_deref(), Some("nvidia"));
        assert!(env.contains(&"NVIDIA_VISIBLE_DEVICES=0,1".to_owned()), "{env:?}");
        let files = ["/dev/nvidiactl", "/dev/nvidia0", "/dev/nvidia1"].map(str::to_owned).to_vec();
        let plain = |visible: Option<&str>| Passthrough::Devices {
            devices: files.clone(),
            libraries: Vec::new(),
            visible: visible.map(str::to_owned),
        };
        let (host, env) = passed(&plain(Some("0,1")));
        assert_eq!((host.devices.unwrap().len(), env), (3, vec!["CUDA_VISIBLE_DEVICES=0,1".to_owned()]));
        assert_eq!(passed(&plain(None)).1, Vec::<String>::new());
    }
}

//! What a container may do: the least. And what the kernel did to it.
//!
//! A container that was started: stopped, killed, asked how it ended, removed.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bollard::Docker;
use bollard::models::{
    ContainerCreateBody, ContainerState, DeviceMapping, DeviceRequest, HostConfig, HostConfigLogConfig, Mount,
    MountType,
};
use bollard::query_parameters::{EventsOptionsBuilder, KillContainerOptionsBuilder, LogsOptionsBuilder};
use futures_util::StreamExt;

use super::gpu::Passthrough;
use super::{LABEL_ATTEMPT, LABEL_FOLDER, LABEL_RUN, failed, remove_container};
use crate::engine::{Ending, JobHandle, JobProgram, Launch};
use crate::error::Error;

/// Processes and threads that a job may have.
const PIDS: i64 = 8192;

/// What a container is called: every attempt has one name, by which it is found again.
pub fn name(launch: &Launch) -> String {
    format!("pipe-{}-{:02}", launch.run_id, launch.attempt)
}

/// The name and the body of the request that makes the container.
pub fn describe(launch: &Launch, gpu: Option<&Passthrough>) -> (String, ContainerCreateBody) {
    let bind = |host: String, container: String, read_only: bool| Mount {
        typ: Some(MountType::BIND),
        source: Some(host),
        target: Some(container),
        read_only: Some(read_only),
        ..Mount::default()
    };
    let text = |path: &std::path::Path| path.to_string_lossy().into_owned();
    let mut mounts: Vec<Mount> = Vec::new();
    mounts.extend(launch.mounts.writable.iter().map(|(host, container)| bind(text(host), text(container), false)));
    mounts.extend(launch.mounts.read_only.iter().map(|(host, container)| bind(text(host), text(container), true)));
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
        log_config: Some(HostConfigLogConfig { typ: Some("json-file".to_owned()), config: None }),
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
        entrypoint: match &launch.program {
            JobProgram::Trainer => None,
            JobProgram::Command(program) => Some(vec![program.clone()]),
        },
        cmd: Some(launch.args.clone()),
        user: Some(user()),
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

/// The user's own ids, so that what the container writes is the user's.
fn user() -> String {
    format!("{}:{}", rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw())
}

/// Whether the kernel reported to the daemon that memory ran out in this container. Its own flag can be a moment late, or
/// be missing when it was not the first process that was killed.
pub async fn kernel_reported_oom(docker: &Docker, id: &str, state: &ContainerState) -> bool {
    let filters = HashMap::from([("container", vec![id]), ("event", vec!["oom"]), ("type", vec!["container"])]);
    let options = EventsOptionsBuilder::new()
        .since(state.started_at.as_deref().unwrap_or("0"))
        .until(&(unix_now() + 2).to_string())
        .filters(&filters)
        .build();
    let mut events = std::pin::pin!(docker.events(Some(options)));
    matches!(tokio::time::timeout(Duration::from_secs(2), events.next()).await, Ok(Some(Ok(_))))
}

pub fn unix_now() -> u64 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |elapsed| elapsed.as_secs())
}

/// The lines at the end of a log that are read again.
const LAST_LINES: &str = "200";

pub struct ContainerJob {
    docker: Docker,
    id: String,
    memory_limit: Option<u64>,
    /// Whether the daemon went away while it ran.
    outage: Arc<AtomicBool>,
}

impl ContainerJob {
    pub fn new(docker: Docker, id: String, memory_limit: Option<u64>, outage: Arc<AtomicBool>) -> Self {
        Self { docker, id, memory_limit, outage }
    }

    async fn signal(&self, signal: &str) -> Result<(), Error> {
        let options = KillContainerOptionsBuilder::new().signal(signal).build();
        match self.docker.kill_container(&self.id, Some(options)).await {
            // 404: gone. 409: it is not running any more.
            Ok(()) | Err(bollard::errors::Error::DockerResponseServerError { status_code: 404 | 409, .. }) => Ok(()),
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
        let state = match self.docker.inspect_container(&self.id, None).await {
            Ok(container) => container.state.unwrap_or_default(),
            Err(bollard::errors::Error::DockerResponseServerError { status_code: 404, .. }) => {
                let lost = Some("the container was removed while it ran".to_owned());
                return Ok(Ending { lost, memory_limit, outage, ..Ending::exited(None) });
            }
            Err(source) => return Err(Error::EngineLost { reason: source.to_string() }),
        };
        let exit_code = state.exit_code;
        let oom_killed = state.oom_killed == Some(true)
            || (exit_code == Some(137) && kernel_reported_oom(&self.docker, &self.id, &state).await);
        Ok(Ending { oom_killed, memory_limit, outage, ..Ending::exited(exit_code) })
    }

    async fn last_output(&self, most: usize) -> Option<Vec<u8>> {
        let options = LogsOptionsBuilder::new().stdout(true).stderr(true).tail(LAST_LINES).build();
        let mut stream = std::pin::pin!(self.docker.logs(&self.id, Some(options)));
        let mut last = Vec::new();
        while let Some(Ok(output)) = stream.next().await {
            last.extend_from_slice(&output.into_bytes());
            if last.len() > 2 * most {
                last.drain(..last.len() - most);
            }
        }
        Some(last)
    }

    async fn remove(&mut self) -> Result<(), Error> {
        remove_container(&self.docker, &self.id).await
    }
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

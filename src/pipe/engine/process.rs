//! The embedded engine: the trainer as a child process, for where no container daemon answers.

use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use pipe_spec::pipeline::Gpus;
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::process::{Child, Command};
use tokio::sync::mpsc;

use super::{Ending, Engine, Found, Job, Launch, Line, LineSplitter, Source};
use crate::card::Card;
use crate::error::Error;

/// How long a trainer whose `pipe` is gone may take to save and end.
const SAVING: Duration = Duration::from_secs(600);

pub struct ProcessEngine {
    trainer: PathBuf,
}

pub struct Process {
    child: Child,
    /// How often the kernel had killed for memory in our own control group when the child started.
    oom_kills_before: Option<u64>,
}

impl ProcessEngine {
    pub fn new(trainer: PathBuf) -> Self {
        Self { trainer }
    }
}

impl Engine for ProcessEngine {
    type Handle = Process;

    fn gpu(&self, gpus: &Gpus) -> Result<bool, Error> {
        // Not every system that has a driver has its devices there.
        let present = Path::new("/dev/nvidiactl").exists() || Card::read(gpus).is_some();
        match gpus {
            Gpus::Count(0) => Ok(false),
            Gpus::Auto => Ok(present),
            Gpus::Count(_) | Gpus::All | Gpus::Ids(_) if present => Ok(true),
            Gpus::Count(_) | Gpus::All | Gpus::Ids(_) => Err(Error::NoGpu {
                reasons: vec!["  /dev/nvidiactl: not there, is the NVIDIA driver loaded?".to_owned()],
            }),
        }
    }

    fn limits_memory(&self) -> bool {
        false
    }

    fn job_path(&self, host: PathBuf, _mounted: PathBuf) -> PathBuf {
        host
    }

    async fn launch(&self, launch: &Launch, gpus: &Gpus) -> Result<Job<Process>, Error> {
        let mut command = Command::new(&self.trainer);
        command
            .args(&launch.args)
            .envs(&launch.env)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            // A Ctrl-C in the terminal is for pipe alone, which then asks the trainer to stop.
            .process_group(0);
        if let Gpus::Ids(ids) = gpus {
            command.env("CUDA_VISIBLE_DEVICES", ids.join(","));
        }
        // Should pipe itself be killed, the trainer saves and ends instead of training on unseen.
        // SAFETY: prctl is async-signal-safe and touches nothing of ours.
        unsafe {
            command.pre_exec(|| match libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGTERM) {
                0 => Ok(()),
                _ => Err(std::io::Error::last_os_error()),
            });
        }
        let oom_kills_before = cgroup_oom_kills();
        let mut child = command.spawn().map_err(|source| Error::Spawn { program: self.trainer.clone(), source })?;
        let (sender, lines) = mpsc::channel(1024);
        if let Some(stdout) = child.stdout.take() {
            tokio::spawn(forward(stdout, Source::Stdout, sender.clone()));
        }
        if let Some(stderr) = child.stderr.take() {
            tokio::spawn(forward(stderr, Source::Stderr, sender));
        }
        let id = child.id().map_or(String::new(), |id| id.to_string());
        Ok(Job { handle: Process { child, oom_kills_before }, id, lines })
    }

    /// A child ends with the `pipe` that started it, after saving, which is waited for.
    async fn find(&self, launch: &Launch, id: Option<&str>) -> Result<Found<Process>, Error> {
        let Some(id) = id else { return Ok(Found::Nothing) };
        let spec = launch.args.last().map_or("", String::as_str);
        let runs = || {
            let line = std::fs::read(format!("/proc/{id}/cmdline")).unwrap_or_default();
            String::from_utf8_lossy(&line).split('\0').any(|word| word == spec)
        };
        let began = Instant::now();
        while runs() {
            if began.elapsed() > SAVING {
                return Err(Error::StillRuns { pid: id.to_owned() });
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        Ok(Found::Gone)
    }

    async fn stop(&self, handle: &Process) -> Result<(), Error> {
        signal(handle, libc::SIGTERM);
        Ok(())
    }

    async fn kill(&self, handle: &Process) -> Result<(), Error> {
        signal(handle, libc::SIGKILL);
        Ok(())
    }

    async fn ending(&self, handle: &mut Process) -> Result<Ending, Error> {
        let status =
            handle.child.wait().await.map_err(|source| Error::Spawn { program: self.trainer.clone(), source })?;
        let exit_code = status.code().or_else(|| status.signal().map(|signal| 128 + signal)).map(i64::from);
        let oom_killed = status.signal() == Some(libc::SIGKILL) && cgroup_oom_kills() > handle.oom_kills_before;
        Ok(Ending { exit_code, oom_killed, memory_limit: None, lost: None, outage: false })
    }

    async fn clear(&self, _handle: Process) -> Result<(), Error> {
        Ok(())
    }

    async fn clear_run(&self, _run_id: &str, _except: Option<u32>) -> Result<(), Error> {
        Ok(())
    }
}

fn signal(handle: &Process, signal: i32) {
    // A child that has ended has no id any more, so this cannot hit a stranger.
    if let Some(id) = handle.child.id().and_then(|id| i32::try_from(id).ok()) {
        // SAFETY: kill takes two integers and has no memory effects.
        unsafe { libc::kill(id, signal) };
    }
}

async fn forward(mut from: impl AsyncRead + Unpin, source: Source, to: mpsc::Sender<Line>) {
    let mut splitter = LineSplitter::new(source);
    let mut buffer = vec![0; 64 << 10];
    while let Ok(count @ 1..) = from.read(&mut buffer).await {
        for line in splitter.push(&buffer[..count]) {
            if to.send(line).await.is_err() {
                return;
            }
        }
    }
    if let Some(line) = splitter.end() {
        to.send(line).await.ok();
    }
}

/// How often the kernel has killed for memory in our control group (version 2 or 1).
fn cgroup_oom_kills() -> Option<u64> {
    let groups = std::fs::read_to_string("/proc/self/cgroup").ok()?;
    groups.lines().find_map(|line| {
        let mut parts = line.splitn(3, ':');
        let (_, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
        let (root, file) = match controllers {
            "" => ("/sys/fs/cgroup", "memory.events"),
            _ if controllers.split(',').any(|name| name == "memory") => ("/sys/fs/cgroup/memory", "memory.oom_control"),
            _ => return None,
        };
        // Inside a container the path may not be visible; its own group is then mounted at the root.
        let nested = Path::new(root).join(path.trim_start_matches('/')).join(file);
        let text =
            std::fs::read_to_string(nested).or_else(|_| std::fs::read_to_string(Path::new(root).join(file))).ok()?;
        text.lines().find_map(|line| line.strip_prefix("oom_kill ")?.trim().parse().ok())
    })
}

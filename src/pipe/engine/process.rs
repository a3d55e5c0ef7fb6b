//! The embedded engine: the trainer as a child process, for where no container daemon answers.

use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use futures_util::FutureExt;
use pipe_spec::Device;
use pipe_spec::lock::Program;
use pipe_spec::pipeline::{Container, Gpus, Image};
use pipe_spec::run::LogPosition;
use pipe_spec::trainer::{LEASE_ON_STDIN, LEASE_VARIABLE};
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::process::{Child, ChildStdin, Command};
use tokio::sync::mpsc;

use super::registry::Registration;
use super::{
    Ending, Engine, EngineJob, FoundJob, JobHandle, JobProgram, Launch, Line, LineSplitter, Source, StartedJob,
};
use crate::background;
use crate::error::Error;
use crate::gpu::Card;
use crate::image::{self, check_cards};
use crate::report::Reporter;

/// How long a trainer whose `pipe` is gone may take to save and end. Ours takes 120 s at most.
const SAVE_TIMEOUT: Duration = Duration::from_secs(600);

const NAME: &str = "process";

pub const REGISTRATION: Registration = Registration {
    name: NAME,
    connect: || {
        async { Ok(Box::new(ProcessEngine { trainer: image::find_trainer()? }) as Box<dyn Engine>) }.boxed_local()
    },
    keeps_jobs: false,
    has_images: false,
    doctor: |_| async { Vec::new() }.boxed_local(),
};

/// Names the job of a process, by which it is found again.
const JOB_VARIABLE: &str = "PIPE_JOB";

fn job_name(launch: &Launch) -> String {
    format!("{} {}", launch.run_folder.display(), launch.attempt)
}

struct ProcessEngine {
    trainer: PathBuf,
}

struct Process {
    child: Child,
    program: PathBuf,
    /// Open for as long as this `pipe` lives: the trainer ends when it closes.
    _lease: Option<ChildStdin>,
    /// How often the kernel had killed for memory in our own control group when the child started.
    oom_kills_before: Option<u64>,
}

#[async_trait(?Send)]
impl Engine for ProcessEngine {
    fn name(&self) -> &'static str {
        NAME
    }

    fn describe(&self) -> String {
        NAME.to_owned()
    }

    fn device(&self, gpus: &Gpus) -> Result<Device, Error> {
        // Not every system that has a driver has its devices there.
        let present = || Path::new("/dev/nvidiactl").exists() || !Card::read(gpus).is_empty();
        match gpus {
            Gpus::Count(0) => Ok(Device::Cpu),
            _ if present() => Ok(Device::Cuda),
            Gpus::Auto => Ok(Device::Cpu),
            Gpus::Count(_) | Gpus::All | Gpus::Ids(_) => Err(Error::NoGpu {
                reasons: vec!["  /dev/nvidiactl: not there, is the NVIDIA driver loaded?".to_owned()],
            }),
        }
    }

    fn cards(&self, gpus: &Gpus) -> Vec<Card> {
        Card::read(gpus)
    }

    fn check(&self, container: &Container) -> Result<(), Error> {
        match self.device(&container.gpus)? {
            Device::Cpu => Ok(()),
            Device::Cuda => check_cards(container.image.as_ref(), false, &self.cards(&container.gpus)),
        }
    }

    fn limits_memory(&self) -> bool {
        false
    }

    fn job_path(&self, host: PathBuf, _mounted: PathBuf) -> PathBuf {
        host
    }

    async fn program(&self, _image: Option<&Image>) -> Result<Program, Error> {
        let digests = || Ok((image::trainer_digest()?, image::libraries_digest()));
        let (trainer, libraries) = background::run(digests).await?;
        Ok(Program { engine: NAME.to_owned(), trainer: Some(trainer), libraries, ..Program::default() })
    }

    fn preparation(&self) -> &'static str {
        "preparing"
    }

    async fn prepare(
        &self,
        image: Option<&Image>,
        _first: Option<&Program>,
        _reporter: &mut Reporter,
    ) -> Result<Program, Error> {
        self.program(image).await
    }

    async fn start(&self, launch: &Launch) -> Result<StartedJob, Error> {
        let program = match &launch.program {
            JobProgram::Trainer => self.trainer.clone(),
            JobProgram::Command(program) => PathBuf::from(program),
        };
        let mut command = Command::new(&program);
        command
            .args(&launch.args)
            .envs(&launch.env)
            .env(JOB_VARIABLE, job_name(launch))
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            // A Ctrl-C in the terminal is for pipe alone, which then asks the trainer to stop.
            .process_group(0);
        let is_trainer = launch.program == JobProgram::Trainer;
        match is_trainer {
            true => command.env(LEASE_VARIABLE, LEASE_ON_STDIN).stdin(Stdio::piped()),
            false => command.stdin(Stdio::null()),
        };
        if let Some(folder) = launch.work_folder.as_ref().filter(|_| !is_trainer) {
            command.current_dir(folder);
        }
        if let Gpus::Ids(ids) = &launch.gpus {
            command.env("CUDA_VISIBLE_DEVICES", ids.join(","));
        }
        ask_to_end_with_this_process(&mut command);
        let oom_kills_before = cgroup_oom_kills();
        let mut child = command.spawn().map_err(|source| Error::Spawn { program: program.clone(), source })?;
        if !is_trainer {
            end_group_after(&child);
        }
        let (sender, lines) = mpsc::channel(1024);
        if let Some(stdout) = child.stdout.take() {
            tokio::spawn(forward(stdout, Source::Stdout, sender.clone()));
        }
        if let Some(stderr) = child.stderr.take() {
            tokio::spawn(forward(stderr, Source::Stderr, sender));
        }
        let id = child.id().map_or(String::new(), |id| id.to_string());
        let lease = child.stdin.take();
        Ok(StartedJob { handle: Box::new(Process { child, program, _lease: lease, oom_kills_before }), id, lines })
    }

    /// A child ends with the `pipe` that started it, after saving. This waits for its end.
    async fn find(&self, launch: &Launch, id: Option<&str>, _read: Option<&LogPosition>) -> Result<FoundJob, Error> {
        let Some(id) = id else { return Ok(FoundJob::NotStarted) };
        let variable = format!("{JOB_VARIABLE}={}", job_name(launch));
        let runs = || {
            let environment = std::fs::read(format!("/proc/{id}/environ")).unwrap_or_default();
            environment.split(|byte| *byte == 0).any(|each| each == variable.as_bytes())
        };
        let began = Instant::now();
        while runs() {
            if began.elapsed() > SAVE_TIMEOUT {
                return Err(Error::StillRuns { pid: id.to_owned() });
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        Ok(FoundJob::Gone)
    }

    async fn jobs(&self) -> Result<Vec<EngineJob>, Error> {
        Ok(Vec::new())
    }

    async fn remove(&self, _id: &str) -> Result<(), Error> {
        Ok(())
    }
}

#[async_trait(?Send)]
impl JobHandle for Process {
    async fn stop(&self) -> Result<(), Error> {
        self.signal(libc::SIGTERM);
        Ok(())
    }

    async fn kill(&self) -> Result<(), Error> {
        self.signal(libc::SIGKILL);
        Ok(())
    }

    async fn ending(&mut self) -> Result<Ending, Error> {
        let failed = |source| Error::Spawn { program: self.program.clone(), source };
        let status = self.child.wait().await.map_err(failed)?;
        let exit_code = status.code().or_else(|| status.signal().map(|signal| 128 + signal)).map(i64::from);
        let oom_killed = status.signal() == Some(libc::SIGKILL) && cgroup_oom_kills() > self.oom_kills_before;
        Ok(Ending { oom_killed, ..Ending::exited(exit_code) })
    }

    async fn remove(&mut self) -> Result<(), Error> {
        Ok(())
    }
}

impl Process {
    fn signal(&self, signal: i32) {
        // A child that has ended has no id any more, so this cannot hit a stranger.
        if let Some(id) = self.child.id().and_then(|id| i32::try_from(id).ok()) {
            // SAFETY: kill takes two integers and has no memory effects.
            unsafe { libc::kill(id, signal) };
        }
    }
}

/// Ends what a program has left behind when it has ended, before anybody asks how: until then its number is nobody else's.
fn end_group_after(child: &Child) {
    let Some(id) = child.id() else { return };
    std::thread::spawn(move || {
        // SAFETY: waitid writes to a structure of ours; kill has no memory effects.
        unsafe {
            let mut info: libc::siginfo_t = std::mem::zeroed();
            while libc::waitid(libc::P_PID, id, &raw mut info, libc::WEXITED | libc::WNOWAIT) != 0 {
                if std::io::Error::last_os_error().kind() != std::io::ErrorKind::Interrupted {
                    return;
                }
            }
            libc::kill(-id.cast_signed(), libc::SIGKILL);
        }
    });
}

/// Should `pipe` itself be killed, the trainer saves and ends instead of training on unseen. The kernel asks a trainer that
/// does not watch its lease.
fn ask_to_end_with_this_process(command: &mut Command) {
    let parent = std::process::id();
    // SAFETY: prctl and getppid are async-signal-safe and touch nothing of ours.
    unsafe {
        command.pre_exec(move || {
            if libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGTERM) != 0 {
                return Err(std::io::Error::last_os_error());
            }
            // pipe may have been killed before the kernel was asked.
            if libc::getppid().cast_unsigned() != parent {
                return Err(std::io::ErrorKind::BrokenPipe.into());
            }
            Ok(())
        });
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

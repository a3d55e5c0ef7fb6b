//! The embedded engine: the trainer as a child process, for where no container daemon answers.

use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use futures_util::FutureExt;
use pipe_spec::Device;
use pipe_spec::lock::Program;
use pipe_spec::pipeline::{Container, Gpus, Image};
use pipe_spec::run::LogPosition;
use pipe_spec::trainer::{LEASE_ON_STDIN, LEASE_VARIABLE};
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::net::unix::pipe::Receiver;
use tokio::process::{Child, ChildStdin, Command};
use tokio::sync::{mpsc, oneshot};

use super::{
    Ending, Engine, EngineJob, FoundJob, JobHandle, JobProgram, Launch, Line, LineSplitter, Progress, Registration,
    Source, StartedJob,
};
use crate::error::Error;
use crate::gpu::{Card, VISIBLE_DEVICES, Visible};
use crate::image::{self, check_cards};
use crate::system::interrupt;

/// How long a trainer whose `pipe` is gone may take to save and end. Ours takes 120 s at most.
const SAVE_TIMEOUT: Duration = Duration::from_secs(600);

/// How long the processes that a job left behind may go on, unless they were asked to stop.
const REST_TIMEOUT: Duration = Duration::from_secs(5);
const REST_INTERVAL: Duration = Duration::from_millis(50);

/// The exit code of a job that SIGKILL ended.
const KILLED: i64 = 128 + 9;

const NAME: &str = "process";

pub const REGISTRATION: Registration = Registration {
    name: NAME,
    section: None,
    nodes: |_| 1,
    connect: |_| {
        async { Ok(Box::new(ProcessEngine { trainer: image::find_trainer()? }) as Box<dyn Engine>) }.boxed_local()
    },
    is_tried: true,
    keeps_jobs: false,
    has_images: false,
    doctor: |_| async { Vec::new() }.boxed_local(),
    doctor_help: "",
};

/// Names the job of a process, by which it is found again.
const JOB_VARIABLE: &str = "PIPE_JOB";

fn job_name(launch: &Launch) -> String {
    format!("{} {}", launch.run_folder.display(), launch.attempt)
}

/// The same as the environment of a process has it.
fn job_variable(launch: &Launch) -> String {
    format!("{JOB_VARIABLE}={}", job_name(launch))
}

struct ProcessEngine {
    trainer: PathBuf,
}

struct Process {
    child: Child,
    program: PathBuf,
    is_trainer: bool,
    /// The variable that its processes have.
    job: String,
    /// Tells when what the job left behind was ended.
    rest: Option<oneshot::Receiver<()>>,
    stop_requested: Arc<AtomicBool>,
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
        let present = || Path::new("/dev/nvidiactl").exists() || !self.cards(&Gpus::All).is_empty();
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
        Card::read(&Visible::here().choose(gpus))
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
        let (trainer, libraries) = interrupt::run(digests).await?;
        Ok(Program { engine: NAME.to_owned(), trainer: Some(trainer), libraries, ..Program::default() })
    }

    fn preparation(&self) -> &'static str {
        "preparing"
    }

    async fn prepare(
        &self,
        image: Option<&Image>,
        _first: Option<&Program>,
        _progress: &mut dyn Progress,
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
            // A Ctrl-C in the terminal is for pipe alone, which then asks the trainer to stop.
            .process_group(0);
        let is_trainer = launch.program == JobProgram::Trainer;
        let spawn_error = |source| Error::Spawn { program: program.clone(), source };
        let mut both = None;
        match is_trainer {
            true => {
                command.env(LEASE_VARIABLE, LEASE_ON_STDIN).stdin(Stdio::piped());
                command.stdout(Stdio::piped()).stderr(Stdio::piped());
            }
            // One pipe for both, so that lines stay in the order in which they were written.
            false => {
                let (reader, writer) = std::io::pipe().map_err(spawn_error)?;
                both = Some(Receiver::from_owned_fd(reader.into()).map_err(spawn_error)?);
                command.stdin(Stdio::null()).stdout(writer.try_clone().map_err(spawn_error)?).stderr(writer);
            }
        }
        // What the pipeline sets itself, it means so.
        let is_set = launch.env.contains_key(VISIBLE_DEVICES) && !matches!(launch.resources.gpus, Gpus::Ids(_));
        if let Some(ids) = Visible::here().of_job(&launch.resources.gpus).filter(|_| !is_set) {
            command.env(VISIBLE_DEVICES, ids);
        }
        ask_to_end_with_this_process(&mut command);
        let oom_kills_before = cgroup_oom_kills();
        let mut child = command.spawn().map_err(spawn_error)?;
        // It holds the other end of the pipe.
        drop(command);
        let (sender, lines) = mpsc::channel(1024);
        let stop_requested = Arc::new(AtomicBool::new(false));
        let rest = child.id().map(|id| {
            let rest = Rest {
                leader: id,
                job: job_variable(launch),
                output: sender.downgrade(),
                stop_requested: stop_requested.clone(),
            };
            let (done, ended) = oneshot::channel();
            std::thread::spawn(move || {
                rest.end_after_leader();
                done.send(()).ok();
            });
            ended
        });
        if let Some(both) = both {
            tokio::spawn(forward(both, Source::Stdout, sender.clone()));
        }
        if let Some(stdout) = child.stdout.take() {
            tokio::spawn(forward(stdout, Source::Stdout, sender.clone()));
        }
        if let Some(stderr) = child.stderr.take() {
            tokio::spawn(forward(stderr, Source::Stderr, sender.clone()));
        }
        drop(sender);
        let id = child.id().map_or(String::new(), |id| id.to_string());
        let lease = child.stdin.take();
        let job = job_variable(launch);
        let process =
            Process { child, program, is_trainer, job, rest, stop_requested, _lease: lease, oom_kills_before };
        Ok(StartedJob { handle: Box::new(process), id, lines })
    }

    /// A child ends with the `pipe` that started it, after saving. This waits for its end.
    async fn find(&self, launch: &Launch, id: Option<&str>, _read: Option<&LogPosition>) -> Result<FoundJob, Error> {
        let variable = job_variable(launch);
        if launch.program != JobProgram::Trainer {
            end_processes(&variable, Duration::from_secs(launch.stop_timeout.into())).await;
            return Ok(if id.is_some() { FoundJob::Gone } else { FoundJob::NotStarted });
        }
        let Some(id) = id else { return Ok(FoundJob::NotStarted) };
        let began = Instant::now();
        // Its ranks may live longer than it does.
        while !processes_of(&variable).is_empty() {
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
        self.stop_requested.store(true, Ordering::Relaxed);
        self.signal(libc::SIGTERM);
        Ok(())
    }

    async fn kill(&self) -> Result<(), Error> {
        self.signal(libc::SIGKILL);
        processes_of(&self.job).into_iter().for_each(|id| signal(id, libc::SIGKILL));
        Ok(())
    }

    async fn ending(&mut self) -> Result<Ending, Error> {
        // Until then nobody may ask after the child: its number would be free for another process.
        if let Some(rest) = self.rest.take() {
            rest.await.ok();
        }
        let failed = |source| Error::Spawn { program: self.program.clone(), source };
        let status = self.child.wait().await.map_err(failed)?;
        let exit_code = status.code().or_else(|| status.signal().map(|signal| 128 + signal)).map(i64::from);
        // It may have been one of its processes: a trainer whose rank was killed ends as if it had been killed itself.
        let killed = exit_code == Some(KILLED) || (!self.is_trainer && !status.success());
        let oom_killed = killed && cgroup_oom_kills() > self.oom_kills_before;
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
            // A command may be a shell that passes no signal on: its whole group gets it.
            let target = if self.is_trainer { id } else { -id };
            // SAFETY: kill takes two integers and has no memory effects.
            unsafe { libc::kill(target, signal) };
        }
    }
}

/// What a job may leave behind when its first process, the leader, ends: processes of a command, or ranks of a training.
struct Rest {
    leader: u32,
    job: String,
    /// Open while any process can still write to it.
    output: mpsc::WeakSender<Line>,
    stop_requested: Arc<AtomicBool>,
}

impl Rest {
    /// Waits for the end of the leader without taking it away, gives the others time to write their last lines, or to save
    /// where they were asked to stop, and ends them.
    fn end_after_leader(&self) {
        // SAFETY: waitid writes to a structure of ours.
        unsafe {
            let mut info: libc::siginfo_t = std::mem::zeroed();
            while libc::waitid(libc::P_PID, self.leader, &raw mut info, libc::WEXITED | libc::WNOWAIT) != 0 {
                if std::io::Error::last_os_error().kind() != std::io::ErrorKind::Interrupted {
                    return;
                }
            }
        }
        let began = Instant::now();
        let may_take_longer = || self.stop_requested.load(Ordering::Relaxed) || began.elapsed() < REST_TIMEOUT;
        while self.output.upgrade().is_some() && may_take_longer() && has_others(self.leader, &self.job) {
            std::thread::sleep(REST_INTERVAL);
        }
        processes_of(&self.job).into_iter().filter(|id| *id != self.leader).for_each(|id| signal(id, libc::SIGKILL));
    }
}

fn has_others(leader: u32, job: &str) -> bool {
    processes_of(job).iter().any(|id| *id != leader)
}

/// The processes of a job, wherever they have moved to: children inherit its variable.
fn processes_of(job: &str) -> Vec<u32> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let ids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    ids.filter(|id| is_of_job(*id, job)).collect()
}

fn is_of_job(id: u32, job: &str) -> bool {
    let environment = std::fs::read(format!("/proc/{id}/environ")).unwrap_or_default();
    environment.split(|byte| *byte == 0).any(|each| each == job.as_bytes())
}

fn signal(id: u32, signal: i32) {
    // SAFETY: kill takes two integers and has no memory effects.
    unsafe { libc::kill(id.cast_signed(), signal) };
}

/// Ends the processes of a command whose `pipe` is gone: two attempts must not write to one folder.
async fn end_processes(job: &str, timeout: Duration) {
    processes_of(job).into_iter().for_each(|id| signal(id, libc::SIGTERM));
    let began = Instant::now();
    while !processes_of(job).is_empty() {
        if began.elapsed() > timeout {
            processes_of(job).into_iter().for_each(|id| signal(id, libc::SIGKILL));
        }
        tokio::time::sleep(REST_INTERVAL).await;
    }
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

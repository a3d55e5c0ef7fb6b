//! The embedded engine: the trainer as a child process, for where no container daemon answers.

use std::collections::BTreeSet;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use futures_util::FutureExt;
use pipe_spec::Device;
use pipe_spec::bucket::SECRET_VARIABLES;
use pipe_spec::lock::Program;
use pipe_spec::pipeline::{Container, Gpus, Image};
use pipe_spec::run::{JobEnd, JobFolder, LogPosition};
use pipe_spec::trainer::{LEASE_ON_STDIN, LEASE_VARIABLE};
use tokio::process::{Child, ChildStdin, Command};

use super::{
    Ending, Engine, EngineJob, FoundJob, JobHandle, JobProgram, Launch, Line, LineSender, Output, Registration, Source,
    StartedJob, first_process, line_channel,
};
use crate::error::Error;
use crate::gpu::{Card, VISIBLE_DEVICES, Visible};
use crate::image::{self, check_cards};
use crate::system::interrupt;

/// How long after its own timeout the first process of a job may take to end all others.
const END_TIMEOUT: Duration = Duration::from_secs(10);

/// Between two looks at a job.
const INTERVAL: Duration = Duration::from_millis(50);

const NAME: &str = "process";

pub const REGISTRATION: Registration = Registration {
    name: NAME,
    section: None,
    nodes: |_| 1,
    repository: |_| None,
    supervises: |_| false,
    connect: |connection| {
        async move {
            // A command runs where there is none.
            if connection.request.trains {
                image::find_trainer()?;
            }
            Ok(Box::new(ProcessEngine) as Box<dyn Engine>)
        }
        .boxed_local()
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

struct ProcessEngine;

/// The first processes of the jobs of this process that run.
static FIRST_PROCESSES: Mutex<BTreeSet<u32>> = Mutex::new(BTreeSet::new());

fn first_processes() -> MutexGuard<'static, BTreeSet<u32>> {
    FIRST_PROCESSES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A job: its first process and all that is below it.
struct Process {
    first: FirstProcess,
    program: PathBuf,
    is_trainer: bool,
    /// The variable that its processes have.
    job: String,
    folder: PathBuf,
    /// Children that this process had before.
    others: Vec<u32>,
    /// Open for as long as this `pipe` lives: the trainer ends when it closes.
    _lease: Option<ChildStdin>,
}

/// The first process, shared with the task that waits for its end.
#[derive(Clone)]
struct FirstProcess {
    id: u32,
    child: Arc<Mutex<Child>>,
}

impl FirstProcess {
    fn child(&self) -> MutexGuard<'_, Child> {
        self.child.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn signal(&self, number: i32) {
        // A child that has ended has no id any more, so this cannot hit a stranger.
        if let Some(id) = self.child().id() {
            signal(id, number);
        }
    }

    fn is_stopped(&self) -> bool {
        status_field(self.id, "State:").is_some_and(|state| state.starts_with('T'))
    }

    /// Sends the output of the job until its first process ends. One that a signal has stopped would be waited for without a word.
    async fn follow(self, mut output: Output, to: LineSender) {
        let mut is_stopped = false;
        while output.send(&to).await.is_ok() && matches!(self.child().try_wait(), Ok(None)) {
            let was_stopped = std::mem::replace(&mut is_stopped, self.is_stopped());
            if is_stopped && !was_stopped {
                to.send(Line::new(Source::Engine, stopped_warning(self.id))).await.ok();
            }
            tokio::time::sleep(INTERVAL).await;
        }
        output.send_rest(&to).await.ok();
    }
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
        let digests = || match image::trainer_digest() {
            Err(Error::NoTrainer { .. }) => Ok((None, None)),
            digest => Ok((Some(digest?), image::libraries_digest())),
        };
        let (trainer, libraries) = interrupt::run(digests).await?;
        Ok(Program { engine: NAME.to_owned(), trainer, libraries, ..Program::default() })
    }

    async fn start(&self, launch: &Launch) -> Result<StartedJob, Error> {
        let program = match &launch.program {
            JobProgram::Trainer => image::find_trainer()?,
            JobProgram::Command(program) => PathBuf::from(program),
        };
        let first = first_process::prepare(launch)?;
        let words = first_process::words(launch, &first);
        let mut command = Command::new(&first);
        command
            .args(&words[1..])
            .arg(&program)
            .args(&launch.args)
            .envs(&launch.env)
            .env(JOB_VARIABLE, job_name(launch))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // A Ctrl-C in the terminal is for pipe alone, which then asks the trainer to stop.
            .process_group(0);
        let is_trainer = launch.program == JobProgram::Trainer;
        if is_trainer {
            image::check_libtorch()?;
            command.envs(image::trainer_variable(launch.env.get("LD_LIBRARY_PATH").map(String::as_str)));
            // Its inputs were fetched for it.
            for name in SECRET_VARIABLES.iter().filter(|name| !launch.env.contains_key(**name)) {
                command.env_remove(name);
            }
            command.env(LEASE_VARIABLE, LEASE_ON_STDIN).stdin(Stdio::piped());
        }
        // A value that the pipeline itself sets is kept.
        let is_set = launch.env.contains_key(VISIBLE_DEVICES) && !matches!(launch.resources.gpus, Gpus::Ids(_));
        if let Some(ids) = Visible::here().of_job(&launch.resources.gpus).filter(|_| !is_set) {
            command.env(VISIBLE_DEVICES, ids);
        }
        ask_to_end_with_this_process(&mut command);
        adopt_orphans();
        let others = children();
        let mut child = first_process::start(|| command.spawn())
            .map_err(|source| Error::Spawn { program: first.clone(), source })?;
        let id = child.id().unwrap_or_default();
        first_processes().insert(id);
        let lease = child.stdin.take();
        let first = FirstProcess { id, child: Arc::new(Mutex::new(child)) };
        let (sender, lines) = line_channel();
        tokio::spawn(first.clone().follow(Output::of(launch, None), sender));
        let (job, folder) = (job_variable(launch), launch.job_folder.0.clone());
        let process = Process { first, program, is_trainer, job, folder, others, _lease: lease };
        Ok(StartedJob { handle: Box::new(process), id: id.to_string(), lines })
    }

    /// A job ends with the `pipe` that started it, after saving: the kernel tells its first process. This waits for its end, for two
    /// attempts must not write to one folder.
    async fn find(&self, launch: &Launch, id: Option<&str>, _read: Option<&LogPosition>) -> Result<FoundJob, Error> {
        let job = job_variable(launch);
        let timeout = Duration::from_secs(launch.stop_timeout.into()) + END_TIMEOUT;
        let began = Instant::now();
        while !processes_of(&job).is_empty() && began.elapsed() < timeout {
            tokio::time::sleep(INTERVAL).await;
        }
        end_all(|| processes_of(&job)).await;
        Ok(if id.is_some() { FoundJob::Gone } else { FoundJob::NotStarted })
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
        self.first.signal(libc::SIGTERM);
        // A process that is stopped hears nothing else.
        self.first.signal(libc::SIGCONT);
        Ok(())
    }

    async fn kill(&self) -> Result<(), Error> {
        // It ends all processes of the job, also if a person has stopped it.
        self.first.signal(libc::SIGQUIT);
        self.first.signal(libc::SIGCONT);
        let first = self.first.clone();
        tokio::spawn(async move {
            tokio::time::sleep(END_TIMEOUT).await;
            // The job may have stopped it again.
            first.signal(libc::SIGKILL);
        });
        Ok(())
    }

    async fn ending(&mut self) -> Result<Ending, Error> {
        let status = loop {
            match self.first.child().try_wait() {
                Ok(Some(status)) => break status,
                Ok(None) => {}
                Err(source) => return Err(Error::Spawn { program: self.program.clone(), source }),
            }
            tokio::time::sleep(INTERVAL).await;
        };
        first_processes().remove(&self.first.id);
        // A first process that was killed has written nothing down: a record is the job's own invention.
        let is_killed = status.signal().is_some();
        let end = first_process::end(&self.folder, JobFolder::END).filter(|_| !is_killed);
        if end.is_none() {
            // Nobody else ends what it has left.
            end_all(|| self.strays()).await;
        }
        if let Some(error) = first_process::spawn_error(end.as_ref(), &self.program) {
            return Err(error);
        }
        let exit_code = exit_code(status);
        let completed = end.as_ref().is_some_and(JobEnd::is_completed);
        let oom_killed =
            first_process::is_oom_killed(end.map_or(0, |end| end.oom_kills), exit_code, self.is_trainer, false);
        Ok(Ending { oom_killed, completed, ..Ending::exited(exit_code) })
    }

    async fn remove(&mut self) -> Result<(), Error> {
        Ok(())
    }
}

fn stopped_warning(id: u32) -> String {
    format!(
        "warning: a signal stopped pipe-job (process {id}), which watches this job; `kill -CONT {id}` continues it, `pipe stop` \
         ends the job"
    )
}

fn exit_code(status: ExitStatus) -> Option<i64> {
    status.code().or_else(|| status.signal().map(|signal| 128 + signal)).map(i64::from)
}

/// The processes of a job, wherever they have moved to: children inherit its variable.
fn processes_of(job: &str) -> Vec<u32> {
    process_ids().filter(|id| is_of_job(*id, job)).collect()
}

fn process_ids() -> impl Iterator<Item = u32> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

fn is_of_job(id: u32, job: &str) -> bool {
    let environment = std::fs::read(format!("/proc/{id}/environ")).unwrap_or_default();
    environment.split(|byte| *byte == 0).any(|each| each == job.as_bytes())
}

/// Sends a signal; whether the process is there and may be sent one.
fn signal(id: u32, signal: i32) -> bool {
    // SAFETY: kill takes two integers and has no memory effects.
    unsafe { libc::kill(id.cast_signed(), signal) == 0 }
}

impl Process {
    /// The processes that the job left when its first process was killed: those that have its variable, and orphans, which the kernel
    /// gave to this process.
    fn strays(&self) -> Vec<u32> {
        let orphans = if can_attribute_orphans() { children() } else { Vec::new() };
        let orphans = orphans.into_iter().filter(|id| !self.others.contains(id) && !reap(*id));
        processes_of(&self.job).into_iter().chain(orphans).collect()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        first_processes().remove(&self.first.id);
    }
}

/// Whether an orphan can only be of the job that has just ended: no other job runs here, and this process is not the one that gets
/// all orphans of the machine or the container.
fn can_attribute_orphans() -> bool {
    first_processes().is_empty() && std::process::id() != 1
}

/// The children of this process.
fn children() -> Vec<u32> {
    let own = std::process::id().to_string();
    process_ids().filter(|id| status_field(*id, "PPid:").is_some_and(|parent| parent == own)).collect()
}

/// Takes a child away that has ended; whether it had.
fn reap(id: u32) -> bool {
    // SAFETY: waitpid without a pointer writes nothing.
    unsafe { libc::waitpid(id.cast_signed(), std::ptr::null_mut(), libc::WNOHANG) > 0 }
}

/// A field of `/proc/ID/status`.
fn status_field(id: u32, name: &str) -> Option<String> {
    let text = std::fs::read_to_string(format!("/proc/{id}/status")).ok()?;
    text.lines().find_map(|line| Some(line.strip_prefix(name)?.trim().to_owned()))
}

/// Kills processes until none is left. One that belongs to another user, such as root, is left alone.
async fn end_all(find: impl Fn() -> Vec<u32>) {
    loop {
        let killed = find().into_iter().filter(|id| signal(*id, libc::SIGKILL)).count();
        if killed == 0 {
            return;
        }
        tokio::time::sleep(INTERVAL).await;
    }
}

/// From here on the orphans of a job become children of this process where the first process of the job is killed.
fn adopt_orphans() {
    // SAFETY: prctl with these arguments touches no memory.
    unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) };
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

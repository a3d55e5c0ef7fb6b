//! A run that a job of its engine supervises: `pipe resume` in that job carries it out, and the one here starts that job, brings its files to
//! the run folder and passes requests to stop on to it. While the job lives, only the `pipe` in it writes the files of the run.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use pipe_spec::pipeline::{Container, Gpus, Pipeline};
use pipe_spec::{RunFolder, RunState, Status, Variables, variables};

use super::children::over;
use super::launch::environment;
use super::launch::template::{self, CONTAINER_RUN_FOLDER, JobTemplate};
use super::write_settings;
use crate::engine::{
    Ending, Engine, FoundJob, JobHandle, JobProgram, Launch, Mounts, Resources, SUPERVISOR, SUPERVISOR_VARIABLE,
    Source, StartedJob, is_supervisor, registry,
};
use crate::error::Error;
use crate::input::hub::{self, HubAccess};
use crate::input::load::{self, Loaded, Parsed, Request};
use crate::report::Reporter;
use crate::run::{self, Follow, Listed, Owner, Run, lock};
use crate::system::digests::cache_folder;
use crate::system::files::{self, absolute, write_json};
use crate::system::interrupt::{Interrupts, StopRequest};

/// The activity of a run whose files are on their way to the job that will supervise it.
pub const HANDING_OVER: &str = "starting the job that supervises the run";

/// How often such a job is started before its run is left alone, unless one of them ran for this long.
const MAX_STARTS: u32 = 5;
const LONG_ENOUGH: Duration = Duration::from_secs(600);

/// How often the run folder is read while the job is waited for.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// How long the owner of a run may take to go away whose pod was removed.
const OWNER_TIMEOUT: Duration = Duration::from_secs(120);

/// Where the job has this program.
const PROGRAM: &str = "/run/pipe-supervisor/pipe";

/// The memory and the processors of the job.
const MEMORY: u64 = 512 << 20;
const CPUS: f64 = 1.0;

/// Lines of its output that are kept for an error.
const TAIL: usize = 10;

/// Variables that services are reached with, and the word of a pipeline that needs them.
const CREDENTIALS: [(&str, &str); 5] =
    [("s3://", "AWS_"), ("gs://", "GOOGLE_"), ("az://", "AZURE_"), ("mlflow", "MLFLOW_"), ("wandb", "WANDB_")];

/// Whether this process only follows the one that carries out the run.
pub fn is_followed(state: &RunState) -> bool {
    state.choices.supervised && !is_supervisor()
}

/// Takes a run over. Where its record is on a volume, the process of a lost job may own it for a while.
pub fn take_over(found: &Listed) -> Result<Run, Error> {
    let began = Instant::now();
    loop {
        match Run::take_over(found) {
            Err(Error::RunBusy { .. } | Error::RunElsewhere { .. })
                if is_supervisor() && began.elapsed() < OWNER_TIMEOUT =>
            {
                std::thread::sleep(POLL_INTERVAL);
            }
            taken => return taken,
        }
    }
}

/// Notes that a job will supervise a run which a process in the background resumes, where its pipeline asks for one; whether it will.
pub fn begin_detached(found: &Listed) -> Result<bool, Error> {
    let text = files::read_own_text(&found.folder().resolved()).unwrap_or_default();
    let wants = || {
        let pipeline = registry::parse_pipeline(&text, &[], &load::variables());
        pipeline.is_ok_and(|pipeline| registry::supervises(&found.state.engine, &pipeline))
    };
    let is_supervised = found.state.choices.supervised;
    let is_wanted = is_supervised || found.state.work().is_single() && wants();
    if !is_wanted {
        return Ok(false);
    }
    // One that goes on in its job is left as it is.
    if has_ended(&found.state) || found.state.status == Status::Orphaned && !is_supervised {
        begin(&mut Run::take_over(found)?)?;
    }
    Ok(true)
}

/// The same for a run that this process owns.
pub fn begin(run: &mut Run) -> Result<(), Error> {
    run.state.choices.supervised = true;
    run.set_doing(HANDING_OVER)
}

/// Waits until a job supervises the run, which a process in the background starts, and shows what that does.
pub async fn handed_over(folder: &RunFolder, reporter: &Reporter) -> Result<(), Error> {
    let mut journal = Follow::new(folder.follower_journal());
    loop {
        let has_follower = Owner::exists(folder);
        let state = run::read_state(folder);
        journal.lines()?.iter().for_each(|line| reporter.note(line));
        match state {
            Ok(state) if state.doing.as_deref() != Some(HANDING_OVER) => {
                return if state.status == Status::Running { Ok(()) } else { over(&state) };
            }
            Ok(_) if has_follower => tokio::time::sleep(POLL_INTERVAL).await,
            _ => return Err(Error::NotDriven { log: folder.driver_log() }),
        }
    }
}

/// Follows the run to its end, and starts the job that supervises it where there is none.
pub async fn follow(
    run: Run,
    set: &[String],
    reporter: &mut Reporter,
    interrupts: &mut Interrupts,
) -> Result<(), Error> {
    let journal = run.folder.follower_journal();
    std::fs::create_dir_all(run.folder.supervisor())
        .map_err(|source| Error::Write { path: run.folder.supervisor(), source })?;
    reporter.keep_journal(&journal);
    let parsed = load::parse(&run.folder.resolved(), set)?;
    let request = parsed.pipeline.engine_request().at(run.state.engine_address.clone());
    let engine = registry::choose(Some(&run.state.engine), &request, reporter).await?;
    Follower { run, set, parsed, engine, reporter, interrupts, asked: None }.run_to_end().await
}

struct Follower<'a> {
    run: Run,
    set: &'a [String],
    parsed: Parsed,
    engine: Box<dyn Engine>,
    reporter: &'a mut Reporter,
    interrupts: &'a mut Interrupts,
    /// The last request to stop the run.
    asked: Option<StopRequest>,
}

/// A supervising job that has ended.
struct Ended {
    handle: Box<dyn JobHandle>,
    ending: Ending,
    tail: VecDeque<String>,
}

impl Follower<'_> {
    async fn run_to_end(mut self) -> Result<(), Error> {
        let mut starts = 0;
        let mut found = match self.run.state.doing.as_deref() {
            // A run that has ended is resumed, and not read again.
            _ if has_ended(&self.run.state) => self.remove_jobs().await.map(|()| None)?,
            // Its job may lack files.
            Some(HANDING_OVER) => None,
            _ => self.find().await?,
        };
        loop {
            let job = match found.take() {
                Some(job) => job,
                None if starts == MAX_STARTS => {
                    let reason = format!("the job that supervises the run was lost {starts} times");
                    return Err(Error::CutOff { reason });
                }
                None => {
                    starts += 1;
                    match self.hand_over().await {
                        Ok(job) => job,
                        Err(error) => return Err(self.failed(error)),
                    }
                }
            };
            let began = Instant::now();
            let ended = match self.watch(job).await {
                Ok(ended) => ended,
                Err(error @ Error::EngineLost { .. }) => return Err(error),
                Err(error) => {
                    self.remove_jobs().await.ok();
                    return Err(self.failed(error));
                }
            };
            if began.elapsed() > LONG_ENOUGH {
                starts = 0;
            }
            if let Some(end) = self.judge(ended).await? {
                return end;
            }
        }
    }

    /// The end of the run, unless the job that supervised it was lost.
    async fn judge(&mut self, mut ended: Ended) -> Result<Option<Result<(), Error>>, Error> {
        self.run.state = self.state()?;
        if ended.handle.has_left_files() {
            let reason = "the files of the job that supervised the run did not come from its volume".to_owned();
            return Err(Error::EngineLost { reason });
        }
        ended.handle.remove().await?;
        if is_over(&self.run.state) {
            self.reporter.run_ended(&self.run.state, &self.run.folder.path().display().to_string());
            return Ok(Some(over(&self.run.state)));
        }
        if self.asked.is_some() && !self.run.is_open() {
            return Ok(Some(Err(self.failed(Error::Interrupted))));
        }
        let Ending { exit_code, lost, ended_by, .. } = &ended.ending;
        // Its `pipe` has ended by itself, and the run has not.
        if let Some(code) = exit_code.filter(|code| *code < 128) {
            let last: String = ended.tail.iter().map(|line| format!("\n  {line}")).collect();
            let reason = format!("pipe ended with exit code {code} in the job that supervises the run:{last}");
            return Ok(Some(Err(self.failed(Error::CutOff { reason }))));
        }
        let why = ended_by.as_ref().map(ToString::to_string).or_else(|| lost.clone());
        let why = why.unwrap_or_else(|| exit_code.map_or(String::new(), |code| format!("exit code {code}")));
        self.reporter.note(&format!("the job that supervised the run is gone ({why}): starting another one"));
        Ok(None)
    }

    /// `run.json` as whoever carries out the run has left it.
    fn state(&self) -> Result<RunState, Error> {
        run::read_state(&self.run.folder)
            .map_err(|damage| Error::Damaged { id: self.run.state.id.clone(), damage: vec![damage] })
    }

    /// Writes down that the run has ended here, unless its training goes on.
    fn failed(&mut self, error: Error) -> Error {
        let id = self.run.state.id.clone();
        match self.state() {
            Ok(state) if self.run.folder.state().exists() => self.run.state = state,
            _ => return error,
        }
        if !self.run.is_open() {
            self.run.note_end(Some(&error));
            self.run.save().unwrap_or_else(|error| tracing::debug!("{error}"));
        }
        if matches!(error, Error::Interrupted) { Error::Stopped { id } } else { error }
    }

    /// The job that another `pipe` has started.
    async fn find(&mut self) -> Result<Option<StartedJob>, Error> {
        match self.engine.find(&self.launch(), Some(&self.run.state.id), None).await? {
            FoundJob::Job(job) => Ok(Some(job)),
            FoundJob::NotStarted | FoundJob::Gone => Ok(None),
        }
    }

    /// Removes what is left of earlier jobs that supervised the run.
    async fn remove_jobs(&self) -> Result<(), Error> {
        let jobs = self.engine.jobs().await?;
        for job in jobs.iter().filter(|job| job.run == self.run.state.id && job.attempt == Some(SUPERVISOR)) {
            self.engine.remove(&job.id).await?;
        }
        Ok(())
    }

    /// Starts the job with all that the run needs.
    async fn hand_over(&mut self) -> Result<StartedJob, Error> {
        if !self.run.is_open() {
            self.interrupts.check()?;
        }
        self.run.state = self.state()?;
        self.run.state.engine_address = self.engine.address();
        self.run.set_doing(HANDING_OVER)?;
        let folder = self.run.folder.clone();
        let pins = load::pins(lock::read(&folder).as_ref());
        let request = Request { file: folder.resolved(), set: self.set.to_vec(), access: HubAccess::Fetch, pins };
        let loaded = load::load_interruptibly(request, self.reporter, self.interrupts).await?;
        template::check(self.engine.as_ref(), &loaded.pipeline, self.run.state.choices.job)?;
        if !self.set.is_empty() {
            write_settings(&self.run, &loaded)?;
        }
        let read_only = self.prepare(&loaded).await?;
        let mut launch = self.launch();
        launch.mounts.read_only = read_only;
        launch.env = self.env(&loaded.variables);
        // An earlier one may have left files there.
        std::fs::remove_dir_all(&launch.job_folder.0).ok();
        let write_error = |source| Error::Write { path: launch.job_folder.0.clone(), source };
        std::fs::create_dir_all(&launch.job_folder.0).map_err(write_error)?;
        self.reporter.note("starting the job that supervises the run; from then on this machine is not needed");
        if self.run.is_open() {
            return self.engine.start(&launch).await;
        }
        tokio::select! {
            started = self.engine.start(&launch) => return started,
            () = self.interrupts.signal() => {}
        }
        self.remove_jobs().await?;
        Err(Error::Interrupted)
    }

    /// Makes the image ready and writes the lock, so that the job needs neither Docker nor git. Returns the files that the job reads.
    async fn prepare(&mut self, loaded: &Loaded) -> Result<Vec<(PathBuf, PathBuf)>, Error> {
        let folder = self.run.folder.clone();
        let before = lock::read(&folder);
        let first = before.as_ref().map(|lock| &lock.on);
        let image = loaded.pipeline.container.image.as_ref();
        let program = tokio::select! {
            program = self.engine.prepare(image, first, self.reporter) => program?,
            () = self.interrupts.signal() => return Err(Error::Interrupted),
        };
        let job = self.run.state.choices.job;
        let template = JobTemplate::new(loaded, &loaded.inputs, self.engine.as_ref(), &program, job)?;
        if before.is_none() {
            let engine = self.engine.as_ref();
            let lock =
                environment::collect(program.clone(), engine, &folder, &template, self.reporter, self.interrupts)
                    .await?;
            write_json(&folder.lock(), &lock)?;
        }
        let spec = template.spec(self.engine.as_ref(), folder.path(), 1, &template.first_settings());
        let launch = template.launch(self.engine.as_ref(), &self.run.state.id, &folder, 1, &spec);
        let hosts = launch.mounts.read_only.into_iter().map(|(host, _)| host);
        let hosts: BTreeSet<PathBuf> = hosts.filter(|host| !host.starts_with(folder.path())).collect();
        let own = std::env::current_exe().map_err(|source| Error::Read { path: "this program".into(), source })?;
        let files = hosts.into_iter().map(|host| (host.clone(), host));
        Ok(files.chain([(own, PathBuf::from(PROGRAM))]).collect())
    }

    /// The job, without what it only needs to start.
    fn launch(&self) -> Launch {
        launch(&self.run.state, &self.run.folder, Some(&self.parsed.pipeline), self.set)
    }

    /// The variables of the job: those that its pipeline uses, and where things are.
    fn env(&self, known: &Variables) -> BTreeMap<String, String> {
        let text = lock::settings(&self.parsed.pipeline);
        let mut env: BTreeMap<String, String> = BTreeMap::new();
        let mut add = |(name, value): (&str, &str)| drop(env.insert(name.to_owned(), value.to_owned()));
        variables::names(&text).filter_map(|name| Some((name, known.get(name)?))).for_each(&mut add);
        for (_, prefix) in CREDENTIALS.iter().filter(|(word, _)| text.contains(word)) {
            known.beginning_with(prefix).for_each(&mut add);
        }
        // The job must know too which of them the user has not set.
        let of_file = env.keys().filter(|name| known.is_from_file(name)).cloned().collect::<Vec<_>>().join(",");
        let mut add = |(name, value): (&str, &str)| drop(env.insert(name.to_owned(), value.to_owned()));
        add((variables::FROM_FILE_VARIABLE, &of_file));
        let shown = |path: &Path| absolute(path).display().to_string();
        let runs = self.run.folder.path().parent().unwrap_or(Path::new("/"));
        add((SUPERVISOR_VARIABLE, "1"));
        add(("PIPE_RUNS", &shown(runs)));
        add(("HF_HUB_CACHE", &shown(&hub::cache_path(known))));
        if let Some(cache) = cache_folder() {
            add(("PIPE_CACHE", &shown(&cache)));
        }
        env
    }

    /// Stays with the job until it has ended, and passes requests on to it.
    async fn watch(&mut self, mut job: StartedJob) -> Result<Ended, Error> {
        let mut tail = VecDeque::new();
        if let Some(request) = self.asked {
            pass_on(request, job.handle.as_ref()).await?;
        }
        loop {
            tokio::select! {
                line = job.lines.recv() => match line {
                    None => break,
                    Some(line) => {
                        self.reporter.note(&line.text);
                        if line.source == Source::Job {
                            tail.push_back(line.text);
                            tail.drain(..tail.len().saturating_sub(TAIL));
                        }
                    }
                },
                request = self.interrupts.next() => {
                    self.reporter.note("asking the job that supervises the run to stop it");
                    self.asked = Some(request);
                    pass_on(request, job.handle.as_ref()).await?;
                }
            }
        }
        let ending = job.handle.ending().await?;
        Ok(Ended { handle: job.handle, ending, tail })
    }
}

/// The job that supervises a run, which sees each file where it is on this machine.
fn launch(state: &RunState, folder: &RunFolder, pipeline: Option<&Pipeline>, set: &[String]) -> Launch {
    let job_folder = (folder.supervisor().join("job"), Path::new(CONTAINER_RUN_FOLDER).join("supervisor/job"));
    let own = (folder.path().to_owned(), folder.path().to_owned());
    let set = set.iter().flat_map(|set| ["--set", set.as_str()]);
    let args = ["resume", "--quiet"].into_iter().chain(set).chain(["--", state.id.as_str()]);
    let cwd = state.cwd.clone();
    let command = pipeline.and_then(Pipeline::command);
    let checkpoints = match (command, command.and_then(|command| command.checkpoints.as_ref())) {
        (None, _) => Some(("checkpoints".to_owned(), "*".to_owned())),
        (Some(_), Some(found)) => Some((format!("output/{}", found.folder), found.pattern.clone())),
        (Some(_), None) => None,
    };
    Launch {
        run_id: state.id.clone(),
        attempt: SUPERVISOR,
        run_folder: folder.path().to_owned(),
        mounts: Mounts {
            writable: vec![own, job_folder.clone()],
            read_only: Vec::new(),
            scratch: [cwd.clone()].into_iter().chain(cache_folder().map(|cache| absolute(&cache))).collect(),
        },
        job_folder,
        checkpoints,
        work_folder: Some(cwd).filter(|cwd| cwd.is_absolute()),
        program: JobProgram::Command(PROGRAM.to_owned()),
        image: lock::read(folder).and_then(|lock| lock.on.image),
        image_id: None,
        args: args.map(str::to_owned).collect(),
        env: BTreeMap::new(),
        network: true,
        resources: Resources { gpus: Gpus::Count(0), memory: Some(MEMORY), shm: None, cpus: Some(CPUS), nodes: 1 },
        stop_timeout: pipeline.map_or(Container::STOP_TIMEOUT, |pipeline| pipeline.container.stop_timeout()),
    }
}

/// Brings the folder of a run to this machine that a job of an engine supervises; `wanted` is the beginning of its id, which this returns.
pub async fn fetch(engine: &str, wanted: &str) -> Result<String, Error> {
    let none = || Error::NoRun { wanted: format!("{engine}://{wanted}"), runs: run::runs_folder() };
    let engine = registry::connect(engine, None).await?;
    let jobs = engine.jobs().await?.into_iter();
    let ids: BTreeSet<String> =
        jobs.filter(|job| job.attempt == Some(SUPERVISOR) && job.run.starts_with(wanted)).map(|job| job.run).collect();
    let id = ids.first().ok_or_else(none)?.clone();
    if ids.len() > 1 {
        return Err(Error::AmbiguousRun { wanted: wanted.to_owned(), matches: ids.into_iter().collect() });
    }
    let folder = run::folder_of(&id);
    if folder.state().exists() {
        return Ok(id);
    }
    let launch = launch(&RunState::new(&id, &id, engine.name()), &folder, None, &[]);
    let job_folder = &launch.job_folder.0;
    std::fs::create_dir_all(job_folder).map_err(|source| Error::Write { path: job_folder.clone(), source })?;
    let FoundJob::Job(mut job) = engine.find(&launch, Some(&id), None).await? else { return Err(none()) };
    // It comes after the other files.
    while !folder.state().exists() {
        tokio::select! {
            line = job.lines.recv() => drop(line.ok_or_else(none)?),
            () = tokio::time::sleep(POLL_INTERVAL) => {}
        }
    }
    Ok(id)
}

/// Goes to the folder that a run was started in. Where a job supervises it, this machine need not have that folder.
pub fn enter_folder(state: &RunState) -> Result<(), Error> {
    if is_followed(state) && !state.cwd.is_dir() { Ok(()) } else { load::enter_folder(&state.cwd) }
}

async fn pass_on(request: StopRequest, job: &dyn JobHandle) -> Result<(), Error> {
    match request {
        StopRequest::Graceful => job.stop().await,
        StopRequest::Hard => job.kill().await,
    }
}

/// Whether the run has ended, as whoever carried it out has written down.
fn is_over(state: &RunState) -> bool {
    state.doing.is_none() && has_ended(state)
}

fn has_ended(state: &RunState) -> bool {
    matches!(state.status, Status::Finished | Status::Failed | Status::Stopped)
}

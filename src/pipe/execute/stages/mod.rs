//! Runs a pipeline of several stages: each in a run of its own, in the background, as soon as those that it needs have finished. A
//! stage that has finished before, and of which nothing has changed since, is not run again.

mod content;
mod schedule;
mod watch;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use content::{Identity, StageOutputs, read_files};
use pipe_spec::lock::Program;
use pipe_spec::pipeline::{EngineRequest, Image, Mount, OutputRef, Pipeline, Stage};
use pipe_spec::run::{StageState, StageStatus};
use pipe_spec::{Cause, Job, Lock, PipeExit, RunFolder, RunState, Status};
use schedule::Resources;

use super::children;
use super::launch::template;
use crate::engine::{Engine, registry};
use crate::error::Error;
use crate::execute::launch::environment;
use crate::execute::launch::workload::workload;
use crate::input::load::{self, Loaded, Parsed, ParsedStages};
use crate::report::{Reporter, html};
use crate::run::{self, Listed, Record, Run, lock};
use crate::system::clock::now;
use crate::system::digests::Digests;
use crate::system::files::write_whole;
use crate::system::interrupt::{Interrupts, StopRequest};

pub use content::check_inputs;
pub use watch::StagesWatcher;

/// How often the runs of the stages are looked at.
const POLL_INTERVAL: Duration = Duration::from_millis(150);

/// How long outputs may be read once a stop is requested.
const STOPPING_TIMEOUT: Duration = Duration::from_secs(2);

/// Which stages are run.
#[derive(Clone, Debug, Default)]
pub struct Selection {
    /// This one alone, with what others have written before.
    pub only: Option<String>,
    /// This one and all that come after it, though nothing may have changed.
    pub from: Option<String>,
}

pub struct StagesDriver<'a> {
    parsed: &'a ParsedStages,
    run: Run,
    reporter: &'a mut Reporter,
    interrupts: &'a mut Interrupts,
    watcher: StagesWatcher,
    /// By name, and by what stages ask of them.
    engines: Vec<(String, EngineRequest, Rc<dyn Engine>)>,
    /// The request to stop, if there is one.
    stopping: Option<StopRequest>,
    takeovers: children::Takeovers,
    /// The stages that run again, so that their outputs will be elsewhere.
    moved: BTreeSet<String>,
}

/// Notes why a stage could not begin, or came to nothing, with what to do about it.
fn fail(stage: &mut StageState, error: &Error) {
    stage.status = StageStatus::Failed;
    stage.error = Some(error.hint().map_or_else(|| error.to_string(), |hint| format!("{error} ({hint})")));
    stage.exit_code = Some(error.exit_code().code());
}

/// Moves what a stage has done out of the way of its next run, into the folder of the run of all stages. Returns where it is, for
/// people. What stays where it was would be taken for what the next run does.
fn keep(stage: &RunFolder, whole: &RunFolder, name: &str) -> Result<String, Error> {
    if !stage.path().exists() {
        return Ok(String::new());
    }
    let folder = whole.path().join("replaced");
    std::fs::create_dir_all(&folder).map_err(|source| Error::Write { path: folder.clone(), source })?;
    let mut number = 1;
    let target = loop {
        let target = folder.join(format!("{name}-{number}"));
        if target.symlink_metadata().is_err() {
            break target;
        }
        number += 1;
    };
    std::fs::rename(stage.path(), &target).map_err(|source| Error::Write { path: target.clone(), source })?;
    Ok(format!("; what it had done is in {}", target.display()))
}

/// Why the last job of a run was cancelled, if it was, and not by `pipe`.
fn cancellation(run: &RunState) -> Option<String> {
    let attempt = run.attempts().last().filter(|attempt| attempt.cause == Some(Cause::Cancelled))?;
    attempt.reason.clone()
}

/// Sets which stages of a new run are to run, and which though nothing has changed.
pub async fn select(
    parsed: &ParsedStages,
    state: &mut [StageState],
    selection: &Selection,
    reporter: &mut Reporter,
    interrupts: &mut Interrupts,
) -> Result<(), Error> {
    let graph = &parsed.graph;
    let known = |name: &String| match graph.stage(name) {
        Some(stage) => Ok(stage),
        None => Err(Error::NoStage {
            name: name.clone(),
            stages: graph.stages.iter().map(|stage| stage.name.clone()).collect(),
        }),
    };
    let only = selection.only.as_ref().map(known).transpose()?;
    let from = selection.from.as_ref().map(known).transpose()?;
    for (stage, state) in graph.stages.iter().zip(state) {
        let after = |first: &Stage| stage.name == first.name || stage.ancestors.contains(&first.name);
        state.again = only.or(from).is_some_and(after);
        let Some(only) = only.filter(|only| only.name != stage.name) else { continue };
        state.status = StageStatus::LeftOut;
        if only.ancestors.contains(&stage.name) {
            let outputs = StageOutputs::of(graph, stage);
            let what = format!("the outputs of {}", stage.name);
            let done = read_files(&what, reporter, interrupts, move |digests| outputs.last_success(None, digests));
            let Some(done) = done.await? else {
                return Err(Error::StageNotDone { stage: stage.name.clone(), only: only.name.clone() });
            };
            let needs = state.needs.clone();
            *state = StageState { status: StageStatus::Unchanged, needs, again: false, ..done };
        }
    }
    Ok(())
}

impl<'a> StagesDriver<'a> {
    pub fn new(parsed: &'a ParsedStages, run: Run, reporter: &'a mut Reporter, interrupts: &'a mut Interrupts) -> Self {
        let watcher = StagesWatcher::new(reporter.prints_json(), &run.state);
        Self {
            parsed,
            run,
            reporter,
            interrupts,
            watcher,
            engines: Vec::new(),
            stopping: None,
            takeovers: children::Takeovers::default(),
            moved: BTreeSet::new(),
        }
    }

    /// Runs the stages that have not finished, and leaves the state of the run on disk whatever happens.
    pub async fn run(mut self) -> Result<(), Error> {
        let state = &mut self.run.state;
        state.status = Status::Running;
        (state.error, state.exit_code) = (None, None);
        let result = match self.reset_stages().await {
            Ok(()) => self.run_stages().await.and_then(|()| self.verdict()),
            Err(error) => Err(error),
        };
        let saved = self.end(result.as_ref().err());
        result.and(saved)
    }

    /// Stages that failed or were stopped start again; so do finished ones whose outputs do not exist any more.
    async fn reset_stages(&mut self) -> Result<(), Error> {
        let parsed = self.parsed;
        for (index, stage) in parsed.graph.stages.iter().enumerate() {
            let folder = run::folder_of(&run::child_id(&self.run.state.id, &stage.name));
            let is_lost = match self.run.state.stages()[index].status {
                StageStatus::Finished | StageStatus::Unchanged => self.is_lost(index).await,
                // Its command has ended well, and something is missing all the same.
                StageStatus::Failed => {
                    Listed::read(folder.path()).is_some_and(|run| run.state.status == Status::Finished)
                }
                StageStatus::Waiting | StageStatus::Running | StageStatus::LeftOut | StageStatus::Stopped => false,
            };
            let state = &mut self.run.state.stages_mut()[index];
            if is_lost {
                let kept = keep(&folder, &self.run.folder, &stage.name)?;
                self.reporter.note(&format!("{}: its outputs are not what they were: it runs again{kept}", stage.name));
                self.moved.insert(stage.name.clone());
                *state = StageState { again: state.again, ..StageState::new(&stage.name, stage.needs.clone()) };
            } else if matches!(state.status, StageStatus::Failed | StageStatus::Stopped) {
                (state.status, state.error, state.exit_code) = (StageStatus::Waiting, None, None);
            }
        }
        Ok(())
    }

    /// Whether the outputs of a stage that has finished are not what they were. Nobody knows once a stop is requested.
    async fn is_lost(&mut self, index: usize) -> bool {
        if self.stopping.is_some() {
            return false;
        }
        let stage = &self.parsed.graph.stages[index];
        let (outputs, done) = (StageOutputs::of(&self.parsed.graph, stage), self.run.state.stages()[index].clone());
        let what = format!("the outputs of {}", stage.name);
        let read = move |digests: &mut Digests| outputs.are_intact(&done, digests);
        match read_files(&what, self.reporter, self.interrupts, read).await {
            Err(Error::Interrupted) => {
                self.stop(StopRequest::Graceful);
                false
            }
            intact => !intact.unwrap_or(false),
        }
    }

    async fn run_stages(&mut self) -> Result<(), Error> {
        let takes = self.resources_of_stages().await;
        let room = Resources::of_machine();
        loop {
            self.poll_stages().await?;
            if self.stopping.is_none() {
                for index in schedule::startable(self.run.state.stages(), &takes, room) {
                    self.begin(index).await?;
                    if self.stopping.is_some() {
                        break;
                    }
                }
            }
            self.show()?;
            let runs = self.run.state.stages().iter().any(|stage| stage.status == StageStatus::Running);
            // A stage that was found to be unchanged takes no room, and others may be waiting for it.
            let waits =
                self.stopping.is_none() && !schedule::startable(self.run.state.stages(), &takes, room).is_empty();
            if !runs && !waits {
                return Ok(());
            }
            if waits {
                continue;
            }
            tokio::select! {
                () = tokio::time::sleep(POLL_INTERVAL) => {}
                request = self.interrupts.next() => self.stop(request),
            }
        }
    }

    /// The share of this machine that each stage takes: nothing where its job runs on another.
    async fn resources_of_stages(&mut self) -> Vec<Resources> {
        let parsed = self.parsed;
        let mut rooms = Vec::new();
        for stage in &parsed.graph.stages {
            // A fault of its engine is reported when it begins.
            let is_here = self.engine_of(stage).await.map_or(true, |engine| engine.is_here());
            rooms.push(if is_here { Resources::of_stage(&stage.pipeline.container) } else { Resources::NOTHING });
        }
        rooms
    }

    fn show(&mut self) -> Result<(), Error> {
        self.watcher.show(&self.run.state, self.reporter)
    }

    /// Begins a stage, or finds that it need not run. What is wrong with it ends this stage and no other.
    async fn begin(&mut self, index: usize) -> Result<(), Error> {
        match self.try_begin(index).await {
            Ok(()) => {}
            // Signals are handled in one place for all.
            Err(Error::Interrupted) => self.stop(StopRequest::Graceful),
            Err(error) => {
                fail(&mut self.run.state.stages_mut()[index], &error);
            }
        }
        self.run.save()
    }

    async fn try_begin(&mut self, index: usize) -> Result<(), Error> {
        let parsed = self.parsed;
        let stage = &parsed.graph.stages[index];
        let id = run::child_id(&self.run.state.id, &stage.name);
        let folder = run::folder_of(&id);
        let begun = children::find(&folder)?;
        self.reporter.doing(&format!("preparing {}", stage.name));
        let engine = self.engine_of(stage).await?;
        let (pipeline, loaded) = self.load(stage, engine.as_ref()).await?;
        template::check_new(engine.as_ref(), &pipeline, Job::Train).await?;
        let identity = self.identify(stage, &loaded, engine.as_ref()).await?;
        let (hash, inputs) = identity.map_or_else(Default::default, |known| (Some(known.hash), known.inputs));
        if begun.is_none() {
            let reusable = hash.clone().filter(|_| !self.run.state.stages()[index].again);
            if let Some(done) = self.last_success(stage, reusable).await? {
                let state = &mut self.run.state.stages_mut()[index];
                *state = StageState { status: StageStatus::Unchanged, needs: state.needs.clone(), ..done };
                return Ok(());
            }
            let choices = self.run.state.choices;
            let at = (engine.name(), engine.address());
            drop(Run::create_child(&pipeline, &stage.name, &self.run.state.id, at, choices)?);
        } else if stage.references().iter().any(|named| self.moved.contains(&named.stage)) {
            lock::record_settings(&folder, &pipeline)?;
            write_whole(&folder.resolved(), pipeline.to_yaml().as_bytes())?;
        }
        let has_run = begun.as_ref().is_some_and(|begun| !begun.state.attempts().is_empty());
        let state = &mut self.run.state.stages_mut()[index];
        // A stage that continued with other settings would write what belongs to neither.
        state.hash = hash.filter(|hash| !has_run || state.hash.as_ref() == Some(hash));
        if !has_run || state.hash.is_none() {
            state.inputs = inputs;
        }
        state.run = Some(id);
        state.status = StageStatus::Running;
        state.began.get_or_insert(now());
        // Written before the stage begins, so that the next `pipe` finds its run.
        self.run.save()?;
        children::start(&folder, begun.as_ref())
    }

    fn engine_name(&self, stage: &Stage) -> String {
        stage.pipeline.engine.clone().unwrap_or_else(|| self.run.state.engine.clone())
    }

    async fn engine_of(&mut self, stage: &Stage) -> Result<Rc<dyn Engine>, Error> {
        let wanted = self.engine_name(stage);
        let request = stage.pipeline.engine_request().at(self.run.state.engine_address.clone());
        let known = self.engines.iter().find(|(name, of, _)| *name == wanted && *of == request);
        if let Some((_, _, engine)) = known {
            return Ok(engine.clone());
        }
        let engine: Rc<dyn Engine> = Rc::from(registry::connect_for(&wanted, &request).await?);
        // All of them go where the first one went.
        self.run.state.engine_address = self.run.state.engine_address.take().or_else(|| engine.address());
        self.engines.push((wanted, request, engine.clone()));
        Ok(engine)
    }

    /// A stage with the outputs of other stages where its job finds them: as a pipeline, and what it names.
    async fn load(&mut self, stage: &Stage, engine: &dyn Engine) -> Result<(Pipeline, Loaded), Error> {
        let parsed = self.parsed;
        let file = self.run.folder.pipeline();
        let mounts_outputs = workload(&stage.pipeline).mounts_outputs();
        let host = |named: &OutputRef| -> PathBuf {
            let other = parsed.graph.stage(&named.stage);
            let state = self.run.state.stages().iter().find(|state| state.name == named.stage);
            let folder = state.and_then(|state| state.run.as_ref()).map(|id| run::folder_of(id));
            other.zip(folder).map_or_else(PathBuf::new, |(other, folder)| {
                content::output_path(other, &folder, named.output.as_deref())
            })
        };
        // Files that a training reads are mounted as its data is.
        let seen = |named: &OutputRef| match mounts_outputs {
            true => engine.job_path(host(named), PathBuf::from(named.mounted())),
            false => host(named),
        };
        let path_of = |named: &OutputRef| seen(named).to_string_lossy().into_owned();
        let mut pipeline = stage
            .placed(path_of, &parsed.variables)
            .map_err(|problems| Error::Invalid { path: file.clone(), problems })?;
        for named in stage.references().iter().filter(|named| mounts_outputs && seen(named) != host(named)) {
            let host = host(named).to_string_lossy().into_owned();
            pipeline.container.mounts.push(Mount { host, container: named.mounted(), readonly: true });
        }
        let parsed = Parsed { pipeline: pipeline.clone(), text: String::new(), variables: parsed.variables.clone() };
        let loaded = load::find_interruptibly(parsed, file, self.reporter, self.interrupts).await?;
        Ok((pipeline, loaded))
    }

    /// The last time that a stage with this hash has finished, if there is one.
    async fn last_success(&mut self, stage: &Stage, hash: Option<String>) -> Result<Option<StageState>, Error> {
        let Some(hash) = hash else { return Ok(None) };
        let outputs = StageOutputs::of(&self.parsed.graph, stage);
        let what = format!("the outputs of {}", stage.name);
        let read = move |digests: &mut Digests| outputs.last_success(Some(&hash), digests);
        read_files(&what, self.reporter, self.interrupts, read).await
    }

    async fn identify(
        &mut self,
        stage: &Stage,
        loaded: &Loaded,
        engine: &dyn Engine,
    ) -> Result<Option<Identity>, Error> {
        let workload = workload(&stage.pipeline);
        if !workload.is_hashable() {
            return Ok(None);
        }
        let image = loaded.pipeline.container.image.as_ref();
        let in_image = engine.runs_in_image(image);
        let program = match in_image || workload.is_trainer() {
            true => Some(engine.program(image).await?),
            false => None,
        };
        // One that is built is named by its content, and may not be there yet.
        let image_id = program.as_ref().and_then(|program| program.image_id.clone());
        let image_id = image_id.filter(|_| matches!(image, Some(Image::Existing(_))));
        let locked: Option<Lock> = match workload.is_trainer() {
            false => None,
            true => Some(environment::of_inputs(&loaded.inputs, self.reporter, self.interrupts).await?),
        };
        let outputs = stage.references().into_iter().map(|named| {
            let state = self.run.state.stages().iter().find(|state| state.name == named.stage);
            let hash = state.and_then(|state| state.outputs.get(named.output.as_deref().unwrap_or_default()));
            (named.mounted(), hash.cloned().unwrap_or_default())
        });
        let named: Vec<String> = stage.references().into_iter().map(|named| named.stage).collect();
        let unnamed = stage.needs.iter().filter(|name| !named.contains(name)).map(|name| {
            let state = self.run.state.stages().iter().find(|state| state.name == *name);
            (name.clone(), state.and_then(|state| state.run.clone()).unwrap_or_default())
        });
        let outputs = outputs.chain(unnamed);
        let inputs = content::Inputs {
            program: program.as_ref().map(Program::identity).into_iter().chain(image_id).collect(),
            lock: locked,
            outputs: outputs.collect(),
            names_files: !in_image,
        };
        let (stage, variables) = (stage.clone(), self.parsed.variables.clone());
        let what = format!("the inputs of {}", stage.name);
        let read = move |digests: &mut Digests| content::identify(&stage, &inputs, &variables, digests);
        read_files(&what, self.reporter, self.interrupts, read).await.map(Some)
    }

    /// Takes in how the stages that run have come to their ends.
    async fn poll_stages(&mut self) -> Result<(), Error> {
        for index in 0..self.run.state.stages().len() {
            if self.run.state.stages()[index].status == StageStatus::Running {
                let before = self.run.state.stages()[index].clone();
                self.poll_stage(index).await?;
                if self.run.state.stages()[index] != before {
                    self.run.save()?;
                }
            }
        }
        Ok(())
    }

    async fn poll_stage(&mut self, index: usize) -> Result<(), Error> {
        let stage = &self.parsed.graph.stages[index];
        let folder = run::folder_of(&run::child_id(&self.run.state.id, &stage.name));
        let found = Listed::read(folder.path());
        let seconds =
            found.as_ref().map(|found| found.state.attempts().iter().map(|attempt| attempt.figures.seconds).sum());
        let (status, error, code) = match found {
            None => (StageStatus::Failed, Some("its run folder is gone".to_owned()), None),
            Some(found) => match found.state.status {
                Status::Running => return Ok(()),
                // Its `pipe` was killed: another one takes over.
                Status::Orphaned => match self.takeovers.take_over(&folder) {
                    Ok(()) => {
                        self.stopping.iter().for_each(|request| self.signal_stages(*request));
                        return Ok(());
                    }
                    Err(error) => (StageStatus::Failed, Some(error.to_string()), Some(error.exit_code().code())),
                },
                Status::Finished => match self.take_outputs(index, folder).await {
                    Ok(()) => (StageStatus::Finished, None, None),
                    // They are read when the run is resumed.
                    Err(Error::Interrupted) => {
                        self.stop(StopRequest::Graceful);
                        (StageStatus::Stopped, None, None)
                    }
                    Err(error) => {
                        fail(&mut self.run.state.stages_mut()[index], &error);
                        return Ok(());
                    }
                },
                Status::Stopped => (StageStatus::Stopped, cancellation(&found.state), found.state.exit_code),
                Status::Failed | Status::Unknown => (StageStatus::Failed, found.state.error, found.state.exit_code),
            },
        };
        let state = &mut self.run.state.stages_mut()[index];
        (state.status, state.error, state.exit_code) = (status, error, code);
        state.seconds = seconds;
        Ok(())
    }

    /// Takes in what a stage has written. Where what it read changed meanwhile, nobody knows what that was made of.
    async fn take_outputs(&mut self, index: usize, folder: RunFolder) -> Result<(), Error> {
        let stage = &self.parsed.graph.stages[index];
        let outputs = StageOutputs::of(&self.parsed.graph, stage);
        let (then, variables) = (self.run.state.stages()[index].inputs.clone(), self.parsed.variables.clone());
        let what = format!("the outputs of {}", stage.name);
        let read = move |digests: &mut Digests| {
            let changed = content::changed_inputs(&then, &variables, digests)?;
            Ok((changed, outputs.hash(&folder, digests)?))
        };
        let timeout = if self.stopping.is_some() { STOPPING_TIMEOUT } else { Duration::MAX };
        let read = tokio::time::timeout(timeout, read_files(&what, self.reporter, self.interrupts, read));
        let (changed, outputs) = read.await.unwrap_or(Err(Error::Interrupted))?;
        let state = &mut self.run.state.stages_mut()[index];
        state.outputs = outputs;
        if !changed.is_empty() {
            let names = changed.join(", ");
            self.reporter.note(&format!(
                "warning: {names} changed while the step {} was running: its output may mix both versions; the next `pipe run` \
                 runs it again",
                stage.name
            ));
            (state.hash, state.changed) = (None, changed);
        }
        Ok(())
    }

    /// Asks the stages that run to stop; no other begins.
    fn stop(&mut self, request: StopRequest) {
        if self.stopping.is_none() {
            self.reporter.note("stopping: each step that runs saves and ends; again to end them at once");
        }
        self.stopping = Some(request);
        self.signal_stages(request);
    }

    fn signal_stages(&self, request: StopRequest) {
        for stage in self.run.state.stages().iter().filter(|stage| stage.status == StageStatus::Running) {
            if let Some(id) = &stage.run {
                children::signal(id, request);
            }
        }
    }

    /// How the run has ended, now that no stage runs.
    fn verdict(&self) -> Result<(), Error> {
        let failed: Vec<&StageState> =
            self.run.state.stages().iter().filter(|stage| stage.status == StageStatus::Failed).collect();
        let Some(first) = failed.first() else {
            let mut stopped =
                self.run.state.stages().iter().filter(|stage| stage.status == StageStatus::Stopped).peekable();
            let is_stopped = self.stopping.is_some() || stopped.peek().is_some();
            let cancelled = stopped.find_map(|stage| Some(format!("step {}: {}", stage.name, stage.error.as_ref()?)));
            return match cancelled.filter(|_| self.stopping.is_none()) {
                Some(reason) => Err(Error::Cancelled { reason }),
                None if is_stopped => Err(Error::Interrupted),
                None => Ok(()),
            };
        };
        let reasons = failed.iter().map(|stage| format!("step {}: {}", stage.name, watch::failure(stage)));
        let code = first.exit_code.and_then(PipeExit::from_code).unwrap_or(PipeExit::TrainingFailed);
        Err(Error::StagesFailed { id: self.run.state.id.clone(), reasons: reasons.collect(), code })
    }

    /// Everything that belongs to the end of a run; its state is written last.
    fn end(&mut self, error: Option<&Error>) -> Result<(), Error> {
        self.show().ok();
        self.run.note_end(error);
        let mut record = Record::read(&self.run.folder);
        record.state = Some(self.run.state.clone());
        let page = html::page(&[record], &self.parsed.variables);
        if let Err(error) = write_whole(&self.run.folder.report(), page.as_bytes()) {
            self.reporter.note(&format!("warning: {error}"));
        }
        let saved = self.run.save();
        self.reporter.run_ended(&self.run.state, &self.run.folder.path().display().to_string());
        saved
    }
}

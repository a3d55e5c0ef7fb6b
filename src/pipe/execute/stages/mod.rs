//! Runs a pipeline of several steps: each in a run of its own, in the background, as soon as those that it needs have finished. A
//! step that has finished before, and of which nothing has changed since, is not run again.

mod content;
mod schedule;
mod watch;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use pipe_spec::lock::Program;
use pipe_spec::pipeline::{EngineRequest, Image, Mount, OutputRef, Pipeline, Problems, Stage};
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
use crate::system::files::write_whole;
use crate::system::interrupt::{Interrupts, StopRequest};

pub use watch::StagesWatcher;

/// How often the runs of the steps are looked at.
const POLL_INTERVAL: Duration = Duration::from_millis(150);

/// Which steps are run.
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
    /// By name, and by what steps ask of them.
    engines: Vec<(String, EngineRequest, Rc<dyn Engine>)>,
    /// What was asked of it, if it is to stop.
    stopping: Option<StopRequest>,
    takeovers: children::Takeovers,
    /// The steps that run again, so that their outputs will be elsewhere.
    moved: BTreeSet<String>,
}

/// Notes why a step could not begin, or came to nothing, with what to do about it.
fn fail(step: &mut StageState, error: &Error) {
    step.status = StageStatus::Failed;
    step.error = Some(error.hint().map_or_else(|| error.to_string(), |hint| format!("{error} ({hint})")));
    step.exit_code = Some(error.exit_code().code());
}

/// Moves what a step has done out of the way of its next run, into the folder of the run of all steps. Returns where it is, for
/// people.
fn keep(step: &RunFolder, whole: &RunFolder, name: &str) -> String {
    let folder = whole.path().join("replaced");
    let place = (1..).map(|number| folder.join(format!("{name}-{number}"))).find(|place| !place.exists());
    let Some(place) = place.filter(|_| step.path().exists()) else { return String::new() };
    let moved = std::fs::create_dir_all(&folder).and_then(|()| std::fs::rename(step.path(), &place));
    moved.map_or_else(|_| String::new(), |()| format!("; what it had done is in {}", place.display()))
}

/// Why the last job of a run was cancelled, if it was, and not by `pipe`.
fn cancellation(run: &RunState) -> Option<String> {
    let attempt = run.attempts().last().filter(|attempt| attempt.cause == Some(Cause::Cancelled))?;
    attempt.reason.clone()
}

/// Finds inputs of steps that are not there, in the file `file`.
pub fn check_inputs(parsed: &ParsedStages, file: &Path) -> Result<(), Error> {
    let mut problems = Problems::default();
    for step in &parsed.graph.steps {
        for (index, input) in step.inputs.iter().enumerate() {
            let path = format!("steps.{}.inputs.{index}", step.name);
            match parsed.variables.expand(input) {
                Ok(expanded) if Path::new(&expanded).exists() => {}
                Ok(_) if input.contains("{steps.") => {
                    problems.push(
                        None,
                        &path,
                        "outputs of other steps count by themselves where a step names them; leave it out",
                    );
                }
                Ok(_) => problems.push(None, &path, format!("there is no {input}")),
                Err(_) => problems.push(None, &path, format!("a variable of {input} is not set")),
            }
        }
    }
    if problems.is_empty() { Ok(()) } else { Err(Error::Invalid { path: file.to_owned(), problems }) }
}

/// Sets which steps of a new run are to run, and which though nothing has changed.
pub fn select(parsed: &ParsedStages, state: &mut [StageState], selection: &Selection) -> Result<(), Error> {
    let graph = &parsed.graph;
    let known = |name: &String| match graph.step(name) {
        Some(step) => Ok(step),
        None => Err(Error::NoStage {
            name: name.clone(),
            steps: graph.steps.iter().map(|step| step.name.clone()).collect(),
        }),
    };
    let only = selection.only.as_ref().map(known).transpose()?;
    let from = selection.from.as_ref().map(known).transpose()?;
    for (step, state) in graph.steps.iter().zip(state) {
        let after = |first: &Stage| step.name == first.name || step.ancestors.contains(&first.name);
        state.again = only.or(from).is_some_and(after);
        let Some(only) = only.filter(|only| only.name != step.name) else { continue };
        state.status = StageStatus::LeftOut;
        if only.ancestors.contains(&step.name) {
            let done = content::any_success(graph, step)?;
            let Some(done) = done else {
                return Err(Error::StageNotDone { step: step.name.clone(), only: only.name.clone() });
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

    /// Runs the steps that have not finished, and leaves the state of the run on disk whatever happens.
    pub async fn run(mut self) -> Result<(), Error> {
        let state = &mut self.run.state;
        state.status = Status::Running;
        (state.error, state.exit_code) = (None, None);
        self.reset_stages();
        let result = self.run_stages().await;
        let result = result.and_then(|()| self.verdict());
        let saved = self.end(result.as_ref().err());
        result.and(saved)
    }

    /// What has failed or was stopped is begun again; so is what has finished, where its outputs are not there any more.
    fn reset_stages(&mut self) {
        let id = self.run.state.id.clone();
        for (step, state) in self.parsed.graph.steps.iter().zip(self.run.state.stages_mut()) {
            let folder = run::folder_of(&run::child_id(&id, &step.name));
            let is_lost = match state.status {
                StageStatus::Finished | StageStatus::Unchanged => !content::is_intact(&self.parsed.graph, step, state),
                // Its command has ended well, and something is missing all the same.
                StageStatus::Failed => {
                    Listed::read(folder.path()).is_some_and(|run| run.state.status == Status::Finished)
                }
                StageStatus::Waiting | StageStatus::Running | StageStatus::LeftOut | StageStatus::Stopped => false,
            };
            if is_lost {
                let kept = keep(&folder, &self.run.folder, &step.name);
                self.reporter.note(&format!("{}: its outputs are not what they were: it runs again{kept}", step.name));
                self.moved.insert(step.name.clone());
                *state = StageState { again: state.again, ..StageState::new(&step.name, step.needs.clone()) };
            } else if matches!(state.status, StageStatus::Failed | StageStatus::Stopped) {
                (state.status, state.error, state.exit_code) = (StageStatus::Waiting, None, None);
            }
        }
    }

    async fn run_stages(&mut self) -> Result<(), Error> {
        let takes = self.resources_of_stages().await;
        let room = Resources::of_machine();
        loop {
            self.poll_stages()?;
            if self.stopping.is_none() {
                for index in schedule::startable(self.run.state.stages(), &takes, room) {
                    self.begin(index).await?;
                    if self.stopping.is_some() {
                        break;
                    }
                }
            }
            self.show()?;
            let runs = self.run.state.stages().iter().any(|step| step.status == StageStatus::Running);
            // A step that was found to be unchanged takes no room, and others may be waiting for it.
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

    /// What each step takes of this machine: nothing where its job runs on another.
    async fn resources_of_stages(&mut self) -> Vec<Resources> {
        let parsed = self.parsed;
        let mut rooms = Vec::new();
        for step in &parsed.graph.steps {
            // What is wrong with its engine is said when it begins.
            let is_here = self.engine_of(step).await.map_or(true, |engine| engine.is_here());
            rooms.push(if is_here { Resources::of_step(&step.pipeline.container) } else { Resources::NOTHING });
        }
        rooms
    }

    fn show(&mut self) -> Result<(), Error> {
        self.watcher.show(&self.run.state, self.reporter)
    }

    /// Begins a step, or finds that it need not run. What is wrong with it ends this step and no other.
    async fn begin(&mut self, index: usize) -> Result<(), Error> {
        match self.try_begin(index).await {
            Ok(()) => {}
            // What a signal asks for is done where all signals are.
            Err(Error::Interrupted) => self.stop(StopRequest::Graceful),
            Err(error) => {
                fail(&mut self.run.state.stages_mut()[index], &error);
            }
        }
        self.run.save()
    }

    async fn try_begin(&mut self, index: usize) -> Result<(), Error> {
        let parsed = self.parsed;
        let step = &parsed.graph.steps[index];
        let id = run::child_id(&self.run.state.id, &step.name);
        let folder = run::folder_of(&id);
        let begun = children::find(&folder)?;
        self.reporter.doing(&format!("preparing {}", step.name));
        let engine = self.engine_of(step).await?;
        let (pipeline, loaded) = self.load(step, engine.as_ref()).await?;
        template::check_new(engine.as_ref(), &pipeline, Job::Train).await?;
        let hash = self.hash(step, &loaded, engine.as_ref()).await?;
        if begun.is_none() {
            let reusable = hash.as_ref().filter(|_| !self.run.state.stages()[index].again);
            let done = match reusable {
                Some(hash) => content::last_success(&parsed.graph, step, hash)?,
                None => None,
            };
            if let Some(done) = done {
                let state = &mut self.run.state.stages_mut()[index];
                *state = StageState { status: StageStatus::Unchanged, needs: state.needs.clone(), ..done };
                return Ok(());
            }
            let choices = self.run.state.choices;
            drop(Run::create_child(&pipeline, &step.name, &self.run.state.id, engine.name(), choices)?);
        } else if step.references().iter().any(|named| self.moved.contains(&named.step)) {
            lock::record_settings(&folder, &pipeline)?;
            write_whole(&folder.resolved(), pipeline.to_yaml().as_bytes())?;
        }
        let has_run = begun.as_ref().is_some_and(|begun| !begun.state.attempts().is_empty());
        let state = &mut self.run.state.stages_mut()[index];
        // What goes on with something else than it began with writes what belongs to neither.
        state.hash = hash.filter(|hash| !has_run || state.hash.as_ref() == Some(hash));
        state.run = Some(id);
        state.status = StageStatus::Running;
        state.began.get_or_insert(now());
        // Written before the step begins, so that the next `pipe` finds its run.
        self.run.save()?;
        children::start(&folder, begun.as_ref())
    }

    fn engine_name(&self, step: &Stage) -> String {
        step.pipeline.engine.clone().unwrap_or_else(|| self.run.state.engine.clone())
    }

    async fn engine_of(&mut self, step: &Stage) -> Result<Rc<dyn Engine>, Error> {
        let wanted = self.engine_name(step);
        let request = step.pipeline.engine_request();
        let known = self.engines.iter().find(|(name, of, _)| *name == wanted && *of == request);
        if let Some((_, _, engine)) = known {
            return Ok(engine.clone());
        }
        let engine: Rc<dyn Engine> = Rc::from(registry::connect_for(&wanted, &request).await?);
        self.engines.push((wanted, request, engine.clone()));
        Ok(engine)
    }

    /// A step with the outputs of other steps where its job finds them: as a pipeline, and what it names.
    async fn load(&mut self, step: &Stage, engine: &dyn Engine) -> Result<(Pipeline, Loaded), Error> {
        let parsed = self.parsed;
        let file = self.run.folder.pipeline();
        let mounts_outputs = workload(&step.pipeline).mounts_outputs();
        let host = |named: &OutputRef| -> PathBuf {
            let other = parsed.graph.step(&named.step);
            let state = self.run.state.stages().iter().find(|state| state.name == named.step);
            let folder = state.and_then(|state| state.run.as_ref()).map(|id| run::folder_of(id));
            other.zip(folder).map_or_else(PathBuf::new, |(other, folder)| {
                content::output_path(other, &folder, named.output.as_deref())
            })
        };
        // What a training reads is mounted as its data is.
        let seen = |named: &OutputRef| match mounts_outputs {
            true => engine.job_path(host(named), PathBuf::from(named.mounted())),
            false => host(named),
        };
        let place = |named: &OutputRef| seen(named).to_string_lossy().into_owned();
        let mut pipeline = step
            .placed(place, &parsed.variables)
            .map_err(|problems| Error::Invalid { path: file.clone(), problems })?;
        for named in step.references().iter().filter(|named| mounts_outputs && seen(named) != host(named)) {
            let host = host(named).to_string_lossy().into_owned();
            pipeline.container.mounts.push(Mount { host, container: named.mounted(), readonly: true });
        }
        let parsed = Parsed { pipeline: pipeline.clone(), text: String::new(), variables: parsed.variables.clone() };
        let loaded = load::find_interruptibly(parsed, file, self.reporter, self.interrupts).await?;
        Ok((pipeline, loaded))
    }

    async fn hash(&mut self, step: &Stage, loaded: &Loaded, engine: &dyn Engine) -> Result<Option<String>, Error> {
        let workload = workload(&step.pipeline);
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
        let outputs = step.references().into_iter().map(|named| {
            let state = self.run.state.stages().iter().find(|state| state.name == named.step);
            let hash = state.and_then(|state| state.outputs.get(named.output.as_deref().unwrap_or_default()));
            (named.mounted(), hash.cloned().unwrap_or_default())
        });
        let named: Vec<String> = step.references().into_iter().map(|named| named.step).collect();
        let unnamed = step.needs.iter().filter(|name| !named.contains(name)).map(|name| {
            let state = self.run.state.stages().iter().find(|state| state.name == *name);
            (name.clone(), state.and_then(|state| state.run.clone()).unwrap_or_default())
        });
        let outputs = outputs.chain(unnamed);
        let inputs = content::Inputs {
            program: program.as_ref().map(Program::identity).into_iter().chain(image_id).collect(),
            lock: locked.as_ref(),
            outputs: outputs.collect(),
            names_files: !in_image,
        };
        content::hash(step, &inputs, &self.parsed.variables).map(Some)
    }

    /// Takes in how the steps that run have come to their ends.
    fn poll_stages(&mut self) -> Result<(), Error> {
        for index in 0..self.run.state.stages().len() {
            if self.run.state.stages()[index].status == StageStatus::Running {
                let before = self.run.state.stages()[index].clone();
                self.poll_step(index)?;
                if self.run.state.stages()[index] != before {
                    self.run.save()?;
                }
            }
        }
        Ok(())
    }

    fn poll_step(&mut self, index: usize) -> Result<(), Error> {
        let step = &self.parsed.graph.steps[index];
        let folder = run::folder_of(&run::child_id(&self.run.state.id, &step.name));
        let found = Listed::read(folder.path());
        let seconds = found.as_ref().map(|found| found.state.attempts().iter().map(|attempt| attempt.seconds).sum());
        let (status, error, code) = match found {
            None => (StageStatus::Failed, Some("its run folder is gone".to_owned()), None),
            Some(found) => match found.state.status {
                Status::Running => return Ok(()),
                // Its `pipe` was killed: another one takes over.
                Status::Orphaned => match self.takeovers.take_over(&folder) {
                    Ok(()) => {
                        self.stopping.iter().for_each(|request| self.signal_steps(*request));
                        return Ok(());
                    }
                    Err(error) => (StageStatus::Failed, Some(error.to_string()), Some(error.exit_code().code())),
                },
                Status::Finished => match content::of_outputs(&self.parsed.graph, step, &folder) {
                    Ok(outputs) => {
                        self.run.state.stages_mut()[index].outputs = outputs;
                        (StageStatus::Finished, None, None)
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

    /// Asks the steps that run to stop; no other begins.
    fn stop(&mut self, request: StopRequest) {
        if self.stopping.is_none() {
            self.reporter.note("stopping: each step that runs saves and ends; again to end them at once");
        }
        self.stopping = Some(request);
        self.signal_steps(request);
    }

    fn signal_steps(&self, request: StopRequest) {
        for step in self.run.state.stages().iter().filter(|step| step.status == StageStatus::Running) {
            if let Some(id) = &step.run {
                children::signal(id, request);
            }
        }
    }

    /// How the run has ended, now that no step runs.
    fn verdict(&self) -> Result<(), Error> {
        let failed: Vec<&StageState> =
            self.run.state.stages().iter().filter(|step| step.status == StageStatus::Failed).collect();
        let Some(first) = failed.first() else {
            let mut stopped =
                self.run.state.stages().iter().filter(|step| step.status == StageStatus::Stopped).peekable();
            let is_stopped = self.stopping.is_some() || stopped.peek().is_some();
            let cancelled = stopped.find_map(|step| Some(format!("step {}: {}", step.name, step.error.as_ref()?)));
            return match cancelled.filter(|_| self.stopping.is_none()) {
                Some(reason) => Err(Error::Cancelled { reason }),
                None if is_stopped => Err(Error::Interrupted),
                None => Ok(()),
            };
        };
        let reasons =
            failed.iter().map(|step| format!("step {}: {}", step.name, step.error.as_deref().unwrap_or("failed")));
        let code = first.exit_code.and_then(PipeExit::from_code).unwrap_or(PipeExit::TrainingFailed);
        Err(Error::StepsFailed { id: self.run.state.id.clone(), reasons: reasons.collect(), code })
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

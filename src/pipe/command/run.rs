//! `pipe run`: from a pipeline file to a trained model.
//!
//! `pipe fit`: the largest batch that fits, measured where the training would run.

use std::path::PathBuf;

use pipe_spec::lock::LockedRepository;
use pipe_spec::run::StageState;
use pipe_spec::{Job, Pipeline, RunFolder, Status};
use serde_json::{Value, json};

use super::{print_detached, print_found, runtime};
use crate::engine::{Engine, registry};
use crate::error::Error;
use crate::execute::launch::template::{self, JobTemplate};
use crate::execute::single::StartMode;
use crate::execute::stages::{self, Selection};
use crate::execute::{
    Plan, children, drive, move_here, obstacle, resume, resume_here, resume_here_detached, supervised,
};
use crate::input::hub::HubAccess;
use crate::input::load::{self, Loaded, ParsedStages, Request};
use crate::report::{Output, Reporter, print_json};
use crate::run::{Listed, Run, RunChoices, list, lock, runs_folder};
use crate::system::files::{self, absolute};
use crate::system::interrupt::Interrupts;

pub struct RunOptions {
    pub file: PathBuf,
    pub engine: Option<String>,
    pub set: Vec<String>,
    pub name: Option<String>,
    pub dry_run: bool,
    /// Resume the newest run of the pipeline if it did not finish.
    pub resume: bool,
    /// Run in the background.
    pub detach: bool,
    /// The stages to run, of a pipeline that has several.
    pub selection: Selection,
    pub choices: RunChoices,
    /// The commits of the hub's repositories, where a branch is not to be followed.
    pub pins: Vec<LockedRepository>,
    pub output: Output,
}

pub fn run(options: RunOptions) -> Result<(), Error> {
    run_and_name(options, &mut None)
}

/// The same; `created` is the id of the run, once there is one.
pub fn run_and_name(mut options: RunOptions, created: &mut Option<String>) -> Result<(), Error> {
    options.set.extend(options.name.take().map(|name| format!("name={name:?}")));
    runtime()?.block_on(start(&options, created))
}

async fn start(options: &RunOptions, created: &mut Option<String>) -> Result<(), Error> {
    let mut interrupts = Interrupts::listen()?;
    let mut reporter = Reporter::new(options.output);
    let parsed =
        if options.choices.job == Job::Train { load::parse_stages(&options.file, &options.set)? } else { None };
    if let Some(parsed) = parsed {
        return start_stages(options, parsed, created, &mut reporter, &mut interrupts).await;
    }
    if options.selection.only.is_some() || options.selection.from.is_some() {
        return Err(Error::NotStages { file: options.file.clone() });
    }
    let load = async |pins: Vec<LockedRepository>, interrupts: &mut Interrupts| {
        let access = if options.dry_run { HubAccess::Check } else { HubAccess::Fetch };
        let request = Request { file: options.file.clone(), set: options.set.clone(), access, pins };
        load::load_interruptibly(request, &reporter, interrupts).await
    };
    let mut loaded;
    let name = match options.resume {
        true => load::parse(&options.file, &options.set)?.pipeline.name.to_string(),
        false => String::new(),
    };
    match unfinished(options, &name)? {
        None => loaded = load(options.pins.clone(), &mut interrupts).await?,
        Some(found) => {
            // It keeps the commits that it began with.
            loaded = load(load::pins(lock::read(&found.folder()).as_ref()), &mut interrupts).await?;
            let (id, status) = (&found.state.id, found.state.status.name());
            match obstacle(&found, &loaded, &reporter, &mut interrupts).await? {
                None => {
                    reporter.note(&format!("resuming run {id} ({status})"));
                    return resume_found(options, &found, &loaded, &mut reporter, &mut interrupts).await;
                }
                Some(why) => {
                    reporter.note(&format!("starting a new run: {id} ({status}) cannot continue, {why}"));
                    loaded = load(options.pins.clone(), &mut interrupts).await?;
                }
            }
        }
    }
    let loaded = &loaded;
    let wanted = options.engine.as_deref().or(loaded.pipeline.engine.as_deref());
    let engine = registry::choose(wanted, &loaded.pipeline.engine_request(), &reporter).await?;
    // Missing resources are reported before there is a run.
    template::check_new(engine.as_ref(), &loaded.pipeline, options.choices.job).await?;
    if options.dry_run {
        let description = tokio::select! {
            description = describe(engine.as_ref(), loaded, options.choices.job) => description?,
            () = interrupts.signal() => return Err(Error::Interrupted),
        };
        print_json(&description);
        return Ok(());
    }
    let mut run = Run::create(&loaded.pipeline, &loaded.text, engine.name(), options.choices)?;
    *created = Some(run.state.id.clone());
    if options.detach {
        let (folder, id) = (run.folder.clone(), run.state.id.clone());
        let is_supervised = registry::supervises(engine.name(), &loaded.pipeline);
        if is_supervised {
            supervised::begin(&mut run)?;
        }
        drop(run);
        children::start_detached(&folder, &[])?;
        if is_supervised {
            hand_over(&folder, &id, &reporter, &mut interrupts).await?;
        }
        print_detached(&id, &folder.path().display().to_string(), options.output);
        return Ok(());
    }
    let plan = Plan::Single { loaded, engine };
    let found = drive(run, plan, StartMode::New, &mut reporter, &mut interrupts).await?;
    print_found(found.as_ref(), options.output.is_json());
    Ok(())
}

/// Waits until a job supervises a run in place of this machine, or until a person does not want to wait.
async fn hand_over(
    folder: &RunFolder,
    id: &str,
    reporter: &Reporter,
    interrupts: &mut Interrupts,
) -> Result<(), Error> {
    tokio::select! {
        done = supervised::handed_over(folder, reporter) => done,
        _ = interrupts.next() => {
            reporter.note(&format!("this machine is still needed; `pipe attach {id}` says for how long, `pipe stop {id}` stops the run"));
            Ok(())
        }
    }
}

/// The same for a pipeline of several stages.
async fn start_stages(
    options: &RunOptions,
    mut parsed: ParsedStages,
    created: &mut Option<String>,
    reporter: &mut Reporter,
    interrupts: &mut Interrupts,
) -> Result<(), Error> {
    if let Some(engine) = &options.engine {
        // The engine of the command line holds for every stage.
        let of_stages = parsed.graph.stages.iter().map(|stage| format!("steps.{}.engine={engine}", stage.name));
        let set: Vec<String> = options.set.iter().cloned().chain(of_stages).collect();
        if let Some(again) = load::parse_stages(&options.file, &set)? {
            parsed = again;
        }
    }
    stages::check_inputs(&parsed, &options.file)?;
    if let Some(found) = unfinished(options, parsed.graph.name.as_str())? {
        let then = files::read_own_text(&found.folder().resolved()).unwrap_or_default();
        let (id, status) = (&found.state.id, found.state.status.name());
        if then == parsed.graph.to_yaml() {
            reporter.note(&format!("resuming run {id} ({status})"));
            move_here(&found)?;
            if options.detach {
                children::start_detached(&found.folder(), &[])?;
                print_detached(id, &found.folder, options.output);
                return Ok(());
            }
            return resume(&found, &[], reporter, interrupts).await.map(drop);
        }
        reporter.note(&format!("starting a new run: the file is not that of {id} ({status}) any more; what has not changed is not run again"));
    }
    let mut state: Vec<StageState> =
        parsed.graph.stages.iter().map(|stage| StageState::new(&stage.name, stage.needs.clone())).collect();
    stages::select(&parsed, &mut state, &options.selection, reporter, interrupts).await?;
    if options.dry_run {
        let stages = parsed.graph.stages.iter().zip(&state);
        let stages = stages.map(|(stage, state)| json!({ "name": stage.name, "status": state.status, "needs": stage.needs, "pipeline": stage.pipeline }));
        print_json(&json!({ "steps": stages.collect::<Vec<_>>() }));
        return Ok(());
    }
    // Every stage has an engine; this one is for those that name none.
    let named = parsed.graph.stages.iter().all(|stage| stage.pipeline.engine.is_some());
    let first = parsed.graph.stages.first().map(|stage| &stage.pipeline);
    let wanted = first.and_then(|first| first.engine.as_deref()).filter(|_| named);
    let request = first.map(Pipeline::engine_request).unwrap_or_default();
    let engine = registry::choose(wanted, &request, reporter).await?;
    let run = Run::create_stages(&parsed.graph, state, &parsed.text, engine.name(), options.choices)?;
    let id = run.state.id.clone();
    *created = Some(id.clone());
    if options.detach {
        let folder = run.folder.clone();
        drop(run);
        children::start_detached(&folder, &[])?;
        print_detached(&id, &folder.path().display().to_string(), options.output);
        return Ok(());
    }
    drive(run, Plan::Stages(&parsed), StartMode::New, reporter, interrupts).await.map(drop)
}

/// The job that would be started, for a dry run.
async fn describe(engine: &dyn Engine, loaded: &Loaded, job: Job) -> Result<Value, Error> {
    let pipeline = &loaded.pipeline;
    let program = engine.program(pipeline.container.image.as_ref()).await?;
    let template = JobTemplate::new(loaded, &loaded.inputs, engine, &program, job)?;
    let folder = absolute(&runs_folder()).join(format!("{}-...", pipeline.name));
    let spec = template.spec(engine, &folder, 1, &template.first_settings());
    Ok(json!({ "on": program, "spec": spec }))
}

/// The newest run of the pipeline of this name, with `--resume` and if it has not finished.
fn unfinished(options: &RunOptions, name: &str) -> Result<Option<Listed>, Error> {
    if !options.resume {
        return Ok(None);
    }
    let newest = list()?.into_iter().find(|run| run.state.name == name && run.damage.is_empty() && run.is_own());
    Ok(newest.filter(|run| run.state.status != Status::Finished))
}

async fn resume_found(
    options: &RunOptions,
    found: &Listed,
    loaded: &Loaded,
    reporter: &mut Reporter,
    interrupts: &mut Interrupts,
) -> Result<(), Error> {
    if options.detach {
        let is_supervised = supervised::begin_detached(found)?;
        resume_here_detached(found, loaded)?;
        if is_supervised {
            hand_over(&found.folder(), &found.state.id, reporter, interrupts).await?;
        }
        print_detached(&found.state.id, &found.folder, options.output);
        return Ok(());
    }
    let batch = resume_here(found, loaded, reporter, interrupts).await?;
    print_found(batch.as_ref(), options.output.is_json());
    Ok(())
}

pub fn fit(options: RunOptions) -> Result<(), Error> {
    let choices = RunChoices { job: Job::Fit, ..options.choices };
    run(RunOptions { choices, ..options })
}

//! Carries out runs: one way for a training, a command, a pipeline of stages, a study and a prediction.
//!
//! Takes over a run that has no `pipe` process: one that was interrupted, has failed, or was started in the background.

pub mod children;
pub mod decide;
pub mod inspect;
pub mod launch;
pub mod predict;
pub mod single;
pub mod stages;
pub mod study;
pub mod supervised;

use launch::{environment, template};
use pipe_spec::pipeline::{EngineRequest, WorkKind};
use pipe_spec::{Outcome, Status};
use single::StartMode;
use single::driver::{Driver, FoundBatch, finish_mirror, mirror_address};
use stages::StagesDriver;
use study::StudyDriver;

use crate::bucket::mirror::Mirror;
use crate::engine::{Engine, is_supervisor, registry};
use crate::error::Error;
use crate::input::hub::HubAccess;
use crate::input::load::{self, Loaded, ParsedStages, ParsedStudy, Request};
use crate::report::compare::{changeable_settings, may_change, paths_that_differ};
use crate::report::{Reporter, outlive_stdout};
use crate::run::{Listed, Run, lock};
use crate::system::files::{self, write_whole};
use crate::system::interrupt::{self, Interrupts};

/// The work of a run, loaded and checked.
pub enum Plan<'a> {
    /// A training, a command, or a search for the largest batch.
    Single { loaded: &'a Loaded, engine: Box<dyn Engine> },
    /// Several of these, each in a run of its own.
    Stages(&'a ParsedStages),
    /// Trials, each in a run of its own.
    Study { parsed: &'a ParsedStudy, engine: Box<dyn Engine> },
}

/// Carries out a run from its state on disk to its end: one that is new, or one that is taken over. Returns what a search for the
/// largest batch has found.
pub async fn drive(
    mut run: Run,
    plan: Plan<'_>,
    start_mode: StartMode,
    reporter: &mut Reporter,
    interrupts: &mut Interrupts,
) -> Result<Option<FoundBatch>, Error> {
    outlive_stdout();
    reporter.keep_journal(&run.folder.journal());
    if start_mode == StartMode::New {
        let noun = if matches!(plan, Plan::Study { .. }) { "study" } else { "run" };
        reporter.note(&format!("{noun} {}", run.state.id));
    }
    if let Plan::Single { engine, .. } | Plan::Study { engine, .. } = &plan
        && run.state.engine_address != engine.address()
    {
        run.state.engine_address = engine.address();
        run.save()?;
    }
    let id = run.state.id.clone();
    let result = match plan {
        Plan::Single { loaded, engine } => {
            Driver::new(loaded, run, start_mode, reporter, interrupts).run(engine.as_ref()).await
        }
        Plan::Stages(parsed) => StagesDriver::new(parsed, run, reporter, interrupts).run().await.map(|()| None),
        Plan::Study { parsed, engine } => {
            let driver = StudyDriver::new(&parsed.study, &parsed.variables, run, engine, reporter, interrupts)?;
            driver.run().await.map(|()| None)
        }
    };
    result.map_err(|error| match error {
        Error::Interrupted => Error::Stopped { id },
        error => error,
    })
}

/// Takes over a run without a `pipe` process and runs it to its end, in the folder that it was started in.
pub async fn resume(
    found: &Listed,
    set: &[String],
    reporter: &mut Reporter,
    interrupts: &mut Interrupts,
) -> Result<Option<FoundBatch>, Error> {
    match found.state.work() {
        WorkKind::Training | WorkKind::Command => {}
        WorkKind::Stages => return resume_stages(found, set, reporter, interrupts).await,
        WorkKind::Study => return resume_study(found, set, reporter, interrupts).await,
    }
    let run = supervised::take_over(found)?;
    if !lock::has_own_settings(&run.folder) {
        let change = "settings: resolved.yaml was changed after pipe wrote it".to_owned();
        return Err(Error::InputsChanged { changes: vec![change] });
    }
    if run.state.choices.supervised {
        interrupts.end_on_sigterm();
    }
    if supervised::is_followed(&run.state) {
        return supervised::follow(run, set, reporter, interrupts).await.map(|()| None);
    }
    let pins = load::pins(lock::read(&run.folder).as_ref());
    let request = Request { file: run.folder.resolved(), set: set.to_vec(), access: HubAccess::Fetch, pins };
    let loaded = match run.is_open() {
        // Who is asked to stop a job that runs takes it over first.
        true => load::load_whole(request, reporter).await?,
        false => load::load_interruptibly(request, reporter, interrupts).await?,
    };
    drive_single(run, &loaded, !set.is_empty(), reporter, interrupts).await
}

/// The same for a run of several stages.
async fn resume_stages(
    found: &Listed,
    set: &[String],
    reporter: &mut Reporter,
    interrupts: &mut Interrupts,
) -> Result<Option<FoundBatch>, Error> {
    if !set.is_empty() {
        let runs = found.state.stages().iter().filter_map(|stage| stage.run.clone()).collect();
        return Err(Error::HasStages { id: found.state.id.clone(), runs });
    }
    let run = Run::take_over(found)?;
    let file = run.folder.resolved();
    let Some(parsed) = load::parse_stages(&file, &[])? else { return Err(Error::NotStages { file }) };
    drive(run, Plan::Stages(&parsed), StartMode::Continue, reporter, interrupts).await
}

/// The same for a study.
async fn resume_study(
    found: &Listed,
    set: &[String],
    reporter: &mut Reporter,
    interrupts: &mut Interrupts,
) -> Result<Option<FoundBatch>, Error> {
    let run = Run::take_over(found)?;
    let file = run.folder.resolved();
    let Some(parsed) = load::parse_study(&file, set)? else { return Err(Error::NotStudyRun { id: run.state.id }) };
    if !set.is_empty() {
        write_whole(&file, parsed.study.to_yaml().as_bytes())?;
    }
    let request = engine_request_of(&parsed).at(run.state.engine_address.clone());
    let engine = registry::choose(Some(&run.state.engine), &request, reporter).await?;
    drive(run, Plan::Study { parsed: &parsed, engine }, StartMode::Continue, reporter, interrupts).await
}

/// Copies what is missing of a run that has finished to the bucket of its pipeline, where it names one.
pub async fn copy_finished(found: &Listed, reporter: &mut Reporter, interrupts: &mut Interrupts) -> Result<(), Error> {
    let variables = load::variables();
    let text = files::read_own_text(&found.folder().resolved()).unwrap_or_default();
    let pipeline = registry::parse_pipeline(&text, &[], &variables).ok();
    let Some(to) = pipeline.as_ref().and_then(mirror_address) else { return Ok(()) };
    let (id, folder) = (found.state.id.clone(), found.folder());
    let start = move || Mirror::start(&to, &id, &folder, &variables);
    let mirror = interrupt::run_interruptibly(interrupts, start).await?;
    finish_mirror(&mirror, &found.state.id, reporter, interrupts).await
}

/// The demands of a study's trials on their engine.
fn engine_request_of(parsed: &ParsedStudy) -> EngineRequest {
    let ParsedStudy { study, variables, .. } = parsed;
    let first = study.pipeline(study.name.as_str(), &study.first_point(), &[], variables);
    first.map(|first| first.engine_request()).unwrap_or_default()
}

/// The same with the pipeline as it is now, in the working directory, where it may be another checkout of the same files.
pub async fn resume_here(
    found: &Listed,
    loaded: &Loaded,
    reporter: &mut Reporter,
    interrupts: &mut Interrupts,
) -> Result<Option<FoundBatch>, Error> {
    let run = take_here(found)?;
    let changed = is_changed(&run, loaded);
    if supervised::is_followed(&run.state) {
        interrupts.end_on_sigterm();
        if changed {
            write_settings(&run, loaded)?;
        }
        run.save()?;
        return supervised::follow(run, &[], reporter, interrupts).await.map(|()| None);
    }
    drive_single(run, loaded, changed, reporter, interrupts).await
}

/// The same in the background.
pub fn resume_here_detached(found: &Listed, loaded: &Loaded) -> Result<(), Error> {
    let run = take_here(found)?;
    let folder = run.folder.clone();
    if is_changed(&run, loaded) {
        write_settings(&run, loaded)?;
    }
    run.save()?;
    drop(run);
    children::start_detached(&folder, &[])
}

/// Notes that the paths of a run begin in the working directory from now on.
pub fn move_here(found: &Listed) -> Result<(), Error> {
    take_here(found)?.save()
}

fn take_here(found: &Listed) -> Result<Run, Error> {
    let mut run = Run::take_over(found)?;
    run.state.cwd = std::env::current_dir().unwrap_or_default();
    Ok(run)
}

fn is_changed(run: &Run, loaded: &Loaded) -> bool {
    files::read_own(&run.folder.resolved()).ok().is_none_or(|before| before != loaded.pipeline.to_yaml().as_bytes())
}

fn write_settings(run: &Run, loaded: &Loaded) -> Result<(), Error> {
    lock::record_settings(&run.folder, &loaded.pipeline)?;
    write_whole(&run.folder.resolved(), loaded.pipeline.to_yaml().as_bytes())
}

async fn drive_single(
    run: Run,
    loaded: &Loaded,
    changed: bool,
    reporter: &mut Reporter,
    interrupts: &mut Interrupts,
) -> Result<Option<FoundBatch>, Error> {
    let start_mode = match run.state.status {
        Status::Finished => return Ok(None),
        // A run that had failed before its end was recorded must not fail the same way again by itself.
        Status::Running | Status::Orphaned if has_failed(&run) => StartMode::Resumed { changed },
        Status::Running | Status::Orphaned | Status::Unknown => StartMode::Continue,
        Status::Failed | Status::Stopped => StartMode::Resumed { changed },
    };
    let address = run.state.engine_address.clone();
    let request = loaded.pipeline.engine_request().at(address.clone());
    let engine = registry::choose(Some(&run.state.engine), &request, reporter).await?;
    if run.is_open() && address.is_some() && engine.address() != address {
        return Err(Error::JobElsewhere { id: run.state.id, engine: engine.describe() });
    }
    // Where a job supervises the run, that was checked before, and the libraries of the trainer are in its image alone.
    if !is_supervisor() {
        template::check(engine.as_ref(), &loaded.pipeline, run.state.choices.job)?;
    }
    if changed {
        write_settings(&run, loaded)?;
    }
    drive(run, Plan::Single { loaded, engine }, start_mode, reporter, interrupts).await
}

fn has_failed(run: &Run) -> bool {
    run.state.attempts().last().is_some_and(|attempt| attempt.outcome == Some(Outcome::Failed))
}

/// Why a run cannot be resumed with this pipeline; nothing if it can.
pub async fn obstacle(
    found: &Listed,
    loaded: &Loaded,
    reporter: &Reporter,
    interrupts: &mut Interrupts,
) -> Result<Option<String>, Error> {
    let text = files::read_own_text(&found.folder().resolved()).unwrap_or_default();
    let Ok(then) = registry::parse_pipeline(&text, &[], &loaded.variables) else {
        return Ok(Some("its settings cannot be read".to_owned()));
    };
    let differing = paths_that_differ(&then, &loaded.pipeline);
    if let Some(path) = differing.iter().find(|path| !may_change(path, &changeable_settings())) {
        return Ok(Some(format!("{path} has changed")));
    }
    let inputs = environment::changed_inputs(&found.folder(), &loaded.inputs, reporter, interrupts).await?;
    Ok(inputs.first().map(|input| format!("{} has changed", input.what)))
}

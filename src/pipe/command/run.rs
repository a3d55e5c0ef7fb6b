//! `pipe run`: from a pipeline file to a trained model.

use std::path::PathBuf;

use pipe_spec::Status;
use pipe_spec::event::Fitted;
use pipe_spec::lock::LockedRepository;
use pipe_spec::pipeline::EngineKind;
use pipe_spec::text::human_bytes;
use serde_json::json;

use super::resume;
use crate::detach;
use crate::drive::{Chosen, Driver};
use crate::error::Error;
use crate::hub::Reach;
use crate::interrupt::Interrupts;
use crate::load::{self, Loaded, Request};
use crate::lock;
use crate::plan::Job;
use crate::report::{Reporter, print, print_json};
use crate::run::{self, Choices, Listed, Run};
use crate::supervise::Entry;

pub struct Options {
    pub job: Job,
    pub file: PathBuf,
    pub engine: Option<EngineKind>,
    pub set: Vec<String>,
    pub name: Option<String>,
    pub dry_run: bool,
    /// To go on with the newest run of the pipeline, where that did not finish.
    pub resume: bool,
    /// To go on in the background.
    pub detach: bool,
    pub choices: Choices,
    /// The commits of the hub's repositories, where a branch is not to be followed.
    pub pins: Vec<LockedRepository>,
    pub json: bool,
    pub quiet: bool,
}

pub fn run(mut options: Options) -> Result<(), Error> {
    options.set.extend(options.name.take().map(|name| format!("name={name:?}")));
    super::runtime()?.block_on(start(&options))
}

async fn start(options: &Options) -> Result<(), Error> {
    let mut interrupts = Interrupts::listen()?;
    let mut reporter = Reporter::new(options.json, options.quiet);
    let load = async |pins: Vec<LockedRepository>, interrupts: &mut Interrupts| {
        let reach = if options.dry_run { Reach::Check } else { Reach::All };
        let request = Request { file: options.file.clone(), set: options.set.clone(), reach, pins };
        load::load_interruptibly(request, &reporter, interrupts).await
    };
    let mut loaded;
    match unfinished(options)? {
        None => loaded = load(options.pins.clone(), &mut interrupts).await?,
        Some(found) => {
            // It keeps the commits that it began with.
            loaded = load(load::pins(lock::read(&found.folder()).as_ref()), &mut interrupts).await?;
            let (id, status) = (&found.state.id, found.state.status.name());
            match resume::obstacle(&found, &loaded, &reporter)? {
                None => {
                    reporter.note(&format!("resuming run {id} ({status})"));
                    return go_on(options, &found, &loaded, &mut reporter, &mut interrupts).await;
                }
                Some(why) => {
                    reporter.note(&format!("starting a new run: {id} ({status}) cannot go on, {why}"));
                    loaded = load(options.pins.clone(), &mut interrupts).await?;
                }
            }
        }
    }
    let loaded = &loaded;
    let engine = Chosen::choose(options.engine.or(loaded.pipeline.engine), &reporter).await?;
    // What cannot be had is said before there is a run.
    engine.check(&loaded.pipeline.container)?;
    if options.dry_run {
        print_json(&engine.describe(loaded, options.job)?);
        return Ok(());
    }
    let run = Run::create(&loaded.pipeline, &loaded.text, engine.kind(), options.choices)?;
    if options.detach {
        let (folder, id) = (run.folder.clone(), run.state.id.clone());
        drop(run);
        detach::start(&folder, &[])?;
        say_where(&id, &folder.path().display().to_string(), options.json, options.quiet);
        return Ok(());
    }
    let id = run.state.id.clone();
    let driver = Driver::new(loaded, run, Entry::GoOn, &mut reporter, &mut interrupts);
    driver.reporter.note(&format!("run {id}"));
    match options.job {
        Job::Train => driver.train(engine).await,
        Job::Fit => {
            let fitted = driver.fit(engine).await?;
            if !options.json {
                print(&fitting(&fitted));
            }
            Ok(())
        }
    }
}

/// The newest run of this pipeline, where that is asked for and it has not finished.
fn unfinished(options: &Options) -> Result<Option<Listed>, Error> {
    if !options.resume {
        return Ok(None);
    }
    let name = load::parse(&options.file, &options.set)?.pipeline.name;
    let newest = run::list()?.into_iter().find(|run| run.state.name == name.as_str() && run.damage.is_empty());
    Ok(newest.filter(|run| run.state.status != Status::Finished))
}

async fn go_on(
    options: &Options,
    found: &Listed,
    loaded: &Loaded,
    reporter: &mut Reporter,
    interrupts: &mut Interrupts,
) -> Result<(), Error> {
    if options.detach {
        resume::go_on_here_detached(found, loaded)?;
        say_where(&found.state.id, &found.folder, options.json, options.quiet);
        return Ok(());
    }
    resume::go_on_here(found, loaded, reporter, interrupts).await
}

/// A run goes on in the background: how to come back to it.
pub fn say_where(id: &str, folder: &str, json: bool, quiet: bool) {
    if json {
        print_json(&json!({ "id": id, "folder": folder }));
        return;
    }
    print(id);
    if quiet {
        return;
    }
    eprintln!("it runs in the background: `pipe attach {id}` watches it, `pipe stop {id}` stops it");
}

/// What was found, in words.
fn fitting(fitted: &Fitted) -> String {
    let Fitted { batch, accum, effective_batch, peak, .. } = fitted;
    let of = fitted.capacity.map_or(String::new(), |capacity| format!(" of {}", human_bytes(capacity)));
    format!(
        "train.batch: {batch}   # x accum {accum} = {effective_batch}; peak {}{of} on {}",
        human_bytes(*peak),
        fitted.device
    )
}

//! `pipe run`: from a pipeline file to a trained model.

use std::path::PathBuf;

use pipe_spec::event::Fitted;
use pipe_spec::lock::LockedRepository;
use pipe_spec::pipeline::EngineKind;
use pipe_spec::text::human_bytes;
use serde_json::json;

use crate::detach;
use crate::drive::{Chosen, Driver};
use crate::error::Error;
use crate::hub::Reach;
use crate::interrupt::Interrupts;
use crate::load::{self, Request};
use crate::plan::Job;
use crate::report::{Reporter, print, print_json};
use crate::run::{Choices, Run};
use crate::supervise::Entry;

pub struct Options {
    pub job: Job,
    pub file: PathBuf,
    pub engine: Option<EngineKind>,
    pub set: Vec<String>,
    pub name: Option<String>,
    pub dry_run: bool,
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
    let request = Request {
        file: options.file.clone(),
        set: options.set.clone(),
        reach: if options.dry_run { Reach::Check } else { Reach::All },
        pins: options.pins.clone(),
    };
    let loaded = &load::load_interruptibly(request, &reporter, &mut interrupts).await?;
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

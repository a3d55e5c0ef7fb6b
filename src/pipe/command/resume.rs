//! `pipe resume`: a run goes on from where it stands, whoever left it there.

use pipe_spec::Status;
use pipe_spec::pipeline::{EngineKind, Pipeline};

use crate::compare::paths_that_differ;
use crate::detach;
use crate::drive::{Chosen, Driver};
use crate::error::Error;
use crate::hub::Reach;
use crate::interrupt::Interrupts;
use crate::load::{self, Loaded, Request};
use crate::lock;
use crate::report::{Reporter, print};
use crate::run::{self, Listed, Run, write_whole};
use crate::supervise::Entry;

pub struct Options {
    pub run: String,
    pub set: Vec<String>,
    pub detach: bool,
    pub json: bool,
    pub quiet: bool,
}

/// What may be said anew about a run that goes on: nothing that changes what is computed.
const CHANGEABLE: [&str; 8] =
    ["container", "data.prefetch", "data.workers", "evaluate.batch", "memory", "notify", "on_oom", "track"];

pub fn run(options: &Options) -> Result<(), Error> {
    let found = run::find(&options.run)?;
    if found.state.status == Status::Finished {
        print(&format!("run {} has finished: {}", found.state.id, found.folder));
        return Ok(());
    }
    options.set.iter().try_for_each(|set| is_changeable(set))?;
    if options.detach {
        detach::start(&found.folder(), &options.set)?;
        super::run::say_where(&found.state.id, &found.folder, options.json, options.quiet);
        return Ok(());
    }
    load::go_to(&found.state.cwd)?;
    super::runtime()?.block_on(async {
        let mut interrupts = Interrupts::listen()?;
        let mut reporter = Reporter::new(options.json, options.quiet);
        go_on(&found, &options.set, &mut reporter, &mut interrupts).await
    })
}

/// Takes a run over that nobody drives, and drives it to its end; in the folder that it was started in.
pub async fn go_on(
    found: &Listed,
    set: &[String],
    reporter: &mut Reporter,
    interrupts: &mut Interrupts,
) -> Result<(), Error> {
    let run = Run::take_over(found)?;
    let pins = load::pins(lock::read(&run.folder).as_ref());
    let request = Request { file: run.folder.resolved(), set: set.to_vec(), reach: Reach::All, pins };
    let loaded = load::load_interruptibly(request, reporter, interrupts).await?;
    drive(run, &loaded, !set.is_empty(), reporter, interrupts).await
}

/// The same with the pipeline as it is now, in the working directory, where it may be another checkout of the same files.
pub async fn go_on_here(
    found: &Listed,
    loaded: &Loaded,
    reporter: &mut Reporter,
    interrupts: &mut Interrupts,
) -> Result<(), Error> {
    let run = take_here(found)?;
    let changed = is_changed(&run, loaded);
    drive(run, loaded, changed, reporter, interrupts).await
}

/// The same in the background.
pub fn go_on_here_detached(found: &Listed, loaded: &Loaded) -> Result<(), Error> {
    let run = take_here(found)?;
    let folder = run.folder.clone();
    if is_changed(&run, loaded) {
        settle(&run, loaded)?;
    }
    run.save()?;
    drop(run);
    detach::start(&folder, &[])
}

fn take_here(found: &Listed) -> Result<Run, Error> {
    let mut run = Run::take_over(found)?;
    run.state.cwd = std::env::current_dir().unwrap_or_default();
    Ok(run)
}

fn is_changed(run: &Run, loaded: &Loaded) -> bool {
    std::fs::read(run.folder.resolved()).ok().is_none_or(|before| before != loaded.pipeline.to_yaml().as_bytes())
}

fn settle(run: &Run, loaded: &Loaded) -> Result<(), Error> {
    write_whole(&run.folder.resolved(), loaded.pipeline.to_yaml().as_bytes())?;
    lock::settle(&run.folder, &loaded.pipeline)
}

async fn drive(
    run: Run,
    loaded: &Loaded,
    changed: bool,
    reporter: &mut Reporter,
    interrupts: &mut Interrupts,
) -> Result<(), Error> {
    let entry = match run.state.status {
        Status::Finished => return Ok(()),
        Status::Running | Status::Orphaned | Status::Unknown => Entry::GoOn,
        Status::Failed | Status::Stopped => Entry::Resumed { changed },
    };
    let wanted = if run.state.engine == "process" { EngineKind::Process } else { EngineKind::Docker };
    let engine = Chosen::choose(Some(wanted), reporter).await?;
    engine.check(&loaded.pipeline.container)?;
    if changed {
        settle(&run, loaded)?;
    }
    let driver = Driver::new(loaded, run, entry, reporter, interrupts);
    driver.train(engine).await
}

/// Why a run cannot go on with this pipeline; nothing where it can.
pub fn obstacle(found: &Listed, loaded: &Loaded, reporter: &Reporter) -> Result<Option<String>, Error> {
    let text = std::fs::read_to_string(found.folder().resolved()).unwrap_or_default();
    let Ok(then) = Pipeline::parse(&text, &[], &loaded.variables) else {
        return Ok(Some("its settings cannot be read".to_owned()));
    };
    let differing = paths_that_differ(&then, &loaded.pipeline);
    if let Some(path) = differing.iter().find(|path| !may_change(path)) {
        return Ok(Some(format!("{path} is another now")));
    }
    let inputs = lock::changed_inputs(&found.folder(), &loaded.inputs, reporter)?;
    Ok(inputs.first().map(|input| format!("{} has changed", input.what)))
}

fn is_changeable(set: &str) -> Result<(), Error> {
    let key = set.split('=').next().unwrap_or_default().trim();
    match may_change(key) {
        true => Ok(()),
        false => Err(Error::NotChangeable { key: key.to_owned(), allowed: CHANGEABLE.join(", ") }),
    }
}

/// Whether the setting of this path may be another when a run goes on.
fn may_change(path: &str) -> bool {
    let under =
        |allowed: &&str| path.strip_prefix(*allowed).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'));
    CHANGEABLE.iter().any(under) && path != "container.image"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_changes_the_maths_is_refused() {
        for set in [
            "on_oom.retries=9",
            "container.memory=8g",
            "memory.limit=0.5",
            "evaluate.batch=2",
            "track.tensorboard=true",
        ] {
            assert!(is_changeable(set).is_ok(), "{set}");
        }
        for set in
            ["train.seed=1", "train.batch=4", "memoryx=1", "container.image=x", "data.train=x", "evaluate.every=1", ""]
        {
            assert!(is_changeable(set).is_err(), "{set}");
        }
    }
}

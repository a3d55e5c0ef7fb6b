//! `pipe resume`: a run goes on from where it stands, whoever left it there.

use pipe_spec::Status;
use pipe_spec::pipeline::EngineKind;

use crate::detach;
use crate::drive::{Chosen, Driver};
use crate::error::Error;
use crate::hub::Reach;
use crate::interrupt::Interrupts;
use crate::load::{self, Request};
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
    let entry = match run.state.status {
        Status::Finished => return Ok(()),
        Status::Running | Status::Orphaned | Status::Unknown => Entry::GoOn,
        Status::Failed | Status::Stopped => Entry::Resumed { changed: !set.is_empty() },
    };
    let pins = load::pins(lock::read(&run.folder).as_ref());
    let request = Request { file: run.folder.resolved(), set: set.to_vec(), reach: Reach::All, pins };
    let loaded = load::load_interruptibly(request, reporter, interrupts).await?;
    let wanted = if run.state.engine == "process" { EngineKind::Process } else { EngineKind::Docker };
    let engine = Chosen::choose(Some(wanted), reporter).await?;
    engine.check(&loaded.pipeline.container)?;
    if !set.is_empty() {
        write_whole(&run.folder.resolved(), loaded.pipeline.to_yaml().as_bytes())?;
        lock::settle(&run.folder, &loaded.pipeline)?;
    }
    let driver = Driver::new(&loaded, run, entry, reporter, interrupts);
    driver.train(engine).await
}

fn is_changeable(set: &str) -> Result<(), Error> {
    let key = set.split('=').next().unwrap_or_default().trim();
    let under =
        |allowed: &&str| key.strip_prefix(*allowed).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'));
    match CHANGEABLE.iter().any(under) && key != "container.image" {
        true => Ok(()),
        false => Err(Error::NotChangeable { key: key.to_owned(), allowed: CHANGEABLE.join(", ") }),
    }
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

//! `pipe stop`: a run saves and ends, whoever drives it.

use std::time::Duration;

use pipe_spec::Status;

use super::resume;
use crate::error::Error;
use crate::interrupt::Interrupts;
use crate::load;
use crate::report::{Reporter, print};
use crate::run::{self, Listed, Owner};

/// Between asking and asking again, or the two would be taken for one.
const PAUSE: Duration = Duration::from_millis(500);

pub fn run(wanted: &[String], at_once: bool, quiet: bool) -> Result<(), Error> {
    // All are found before any is stopped, so that a misspelt one stops nothing.
    let found = wanted.iter().map(|wanted| run::find(wanted)).collect::<Result<Vec<_>, _>>()?;
    found.iter().try_for_each(|found| stop(found, at_once, quiet))
}

fn stop(found: &Listed, at_once: bool, quiet: bool) -> Result<(), Error> {
    let id = &found.state.id;
    match found.state.status {
        Status::Running => ask_its_owner(found, at_once, quiet),
        Status::Orphaned => take_over_and_stop(found, at_once, quiet)?,
        Status::Finished | Status::Failed | Status::Stopped | Status::Unknown => {
            print(&format!("{id} is not running: {}", found.state.status.name()));
            return Ok(());
        }
    }
    let status = Listed::read(found.folder().path()).map_or("gone", |now| now.state.status.name());
    print(&format!("{id}: {status}"));
    Ok(())
}

fn ask_its_owner(found: &Listed, at_once: bool, quiet: bool) {
    let folder = found.folder();
    let ask = || {
        if let Some(pid) = Owner::pid(&folder) {
            // SAFETY: kill takes two integers and has no memory effects.
            unsafe { libc::kill(pid, libc::SIGTERM) };
        }
    };
    ask();
    if at_once {
        std::thread::sleep(PAUSE);
        ask();
    }
    if !quiet {
        let how = if at_once { "the trainer is ended" } else { "the trainer saves and ends" };
        eprintln!("stopping {}: {how}", found.state.id);
    }
    while Owner::exists(&folder) {
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Nobody drives it, so this one does, to the end that is asked for.
fn take_over_and_stop(found: &Listed, at_once: bool, quiet: bool) -> Result<(), Error> {
    load::go_to(&found.state.cwd)?;
    super::runtime()?.block_on(async {
        let mut interrupts = Interrupts::listen()?.due(if at_once { 2 } else { 1 });
        let mut reporter = Reporter::new(false, quiet);
        match resume::go_on(found, &[], &mut reporter, &mut interrupts).await {
            Err(Error::Interrupted) => Ok(()),
            other => other,
        }
    })
}

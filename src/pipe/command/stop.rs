//! `pipe stop`: a run saves a checkpoint and ends.

use std::time::{Duration, Instant};

use pipe_spec::pipeline::{Container, WorkKind};
use pipe_spec::{RunFolder, Status, Variables};

use crate::engine::registry;
use crate::error::Error;
use crate::execute::{resume, supervised};
use crate::report::{Output, Reporter, print, say};
use crate::run::{self, Listed, Owner};
use crate::system::files::{self, belongs_to};
use crate::system::interrupt::{Interrupts, StopRequest};

/// How long a `pipe` that was asked to stop may take, beyond what its job may, before it is taken to be stuck.
const DRIVER_TIMEOUT: Duration = Duration::from_secs(90);

pub fn run(wanted: &[String], at_once: bool, output: Output) -> Result<(), Error> {
    let request = if at_once { StopRequest::Hard } else { StopRequest::Graceful };
    // All are found before any is stopped, so that a misspelt one stops nothing.
    let found = wanted.iter().map(|wanted| run::find(wanted)).collect::<Result<Vec<_>, _>>()?;
    found.iter().try_for_each(|found| stop(found, request, output))
}

fn stop(found: &Listed, request: StopRequest, output: Output) -> Result<(), Error> {
    let id = &found.state.id;
    match found.state.status {
        Status::Running => signal_owner(found, request, output)?,
        Status::Orphaned => {}
        // The connection to its engine was lost: nobody knows whether the job has ended.
        Status::Failed if found.state.attempts().last().is_some_and(|attempt| attempt.outcome.is_none()) => {
            take_over_and_stop(found, request, output)?;
        }
        Status::Finished | Status::Failed | Status::Stopped | Status::Unknown => {
            print(&format!("{id} is not running: {}", found.state.status.name()));
            return Ok(());
        }
    }
    // Its `pipe` was killed, now or before: the job has not been stopped.
    let orphaned = Listed::read(found.folder().path()).filter(|now| now.state.status == Status::Orphaned);
    if let Some(now) = orphaned {
        take_over_and_stop(&now, request, output)?;
    }
    let status = Listed::read(found.folder().path()).map_or("gone", |now| now.state.status.name());
    print(&format!("{id}: {status}"));
    Ok(())
}

fn signal_owner(found: &Listed, request: StopRequest, output: Output) -> Result<(), Error> {
    let folder = found.folder();
    if let Some(user) = belongs_to(&folder.owner()).filter(|_| !rustix::process::geteuid().is_root()) {
        return Err(Error::NotYours { id: found.state.id.clone(), user });
    }
    let Some(owner) = Owner::process(&folder) else { return Ok(()) };
    let pid = owner.pid;
    // SIGTERM ends the process that only follows a supervising job, or that job.
    if owner.is_here() && !found.state.choices.supervised {
        request.send(pid);
    } else {
        Owner::ask(&folder, request)?;
    }
    let timeout = stop_timeout(&folder);
    if output != Output::Quiet {
        let what = match found.state.work() {
            WorkKind::Training => "the trainer",
            WorkKind::Command => "the command",
            WorkKind::Stages => "each step that runs",
            WorkKind::Study => "each trial that runs",
        };
        let how = match request {
            StopRequest::Graceful => format!(
                "{what} saves and ends, within {} s at most (`pipe stop --now` ends it at once)",
                timeout.as_secs()
            ),
            StopRequest::Hard => format!("{what} is ended"),
        };
        say(&format!("stopping {}: {how}", found.state.id));
    }
    let wait = match request {
        StopRequest::Graceful => timeout + DRIVER_TIMEOUT,
        StopRequest::Hard => DRIVER_TIMEOUT,
    };
    let (began, mut heard, mut state) = (Instant::now(), Instant::now(), None);
    while Owner::exists(&folder) {
        // One that still brings here what the job has saved writes down how far it is.
        let changed = folder.state().metadata().and_then(|meta| meta.modified()).ok();
        if std::mem::replace(&mut state, changed) != changed {
            heard = Instant::now();
        }
        if began.elapsed() > wait && heard.elapsed() > DRIVER_TIMEOUT {
            return Err(Error::DriverStuck { id: found.state.id.clone(), pid });
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}

/// How long the run's job may take to save and end.
fn stop_timeout(folder: &RunFolder) -> Duration {
    let text = files::read_own_text(&folder.resolved()).unwrap_or_default();
    let pipeline = registry::parse_pipeline(&text, &[], &Variables::of_process(None));
    Duration::from_secs(pipeline.map_or(Container::STOP_TIMEOUT, |pipeline| pipeline.container.stop_timeout()).into())
}

/// The run has no `pipe` process: this process takes it over and stops it.
fn take_over_and_stop(found: &Listed, request: StopRequest, output: Output) -> Result<(), Error> {
    supervised::enter_folder(&found.state)?;
    super::runtime()?.block_on(async {
        let mut interrupts = Interrupts::listen()?.with_pending(request);
        let mut reporter = Reporter::new(output);
        match resume(found, &[], &mut reporter, &mut interrupts).await {
            Err(Error::Interrupted | Error::Stopped { .. }) => Ok(()),
            other => other.map(drop),
        }
    })
}

//! `pipe rm`: runs with all that belongs to them, or the containers that a killed `pipe` left.

use pipe_spec::Status;

use crate::engine::registry;
use crate::error::Error;
use crate::report::{print, say};
use crate::run::{self, Listed, Owner, lock};

/// Removes the containers of runs without a `pipe` process, and keeps the folders.
pub fn left_behind() -> Result<(), Error> {
    let mut runs = run::list()?;
    super::ls::find_left_behind(&mut runs)?;
    for run in &runs {
        for id in &run.left_behind {
            remove_job(run, id)?;
            print(&format!("removed container {id}"));
        }
    }
    Ok(())
}

/// Removes runs with their folders and containers. `force` removes them also where containers stay, or another run reads them.
pub fn run(wanted: &[String], force: bool) -> Result<(), Error> {
    // All are found and owned before any is removed, so that a misspelt or busy one loses nothing.
    let mut found = wanted.iter().map(|wanted| run::find(wanted)).collect::<Result<Vec<_>, _>>()?;
    // The runs of its stages belong to a run of several.
    let all = run::list()?;
    let stages: Vec<Listed> = found.iter().flat_map(|run| run::stages_of(&all, &run.state)).cloned().collect();
    found.extend(stages);
    let removed = |id: &str| found.iter().any(|run| run.state.id == id);
    for run in all.iter().filter(|run| run.is_owned() && !removed(&run.state.id) && !force) {
        if let Some(read) = run.state.stages().iter().filter_map(|stage| stage.run.as_ref()).find(|id| removed(id)) {
            return Err(Error::RunInUse { id: read.clone(), by: run.state.id.clone() });
        }
    }
    found.sort_by(|a, b| a.state.id.cmp(&b.state.id));
    found.dedup_by(|a, b| a.state.id == b.state.id);
    let owners = found.iter().map(|run| Owner::take(&run.folder(), &run.state.id)).collect::<Result<Vec<_>, _>>()?;
    found.iter().zip(owners).try_for_each(|(run, owner)| remove(run, &owner, force))
}

/// Removes a run that this process owns.
fn remove(run: &Listed, _owner: &Owner, force: bool) -> Result<(), Error> {
    let (id, folder) = (&run.state.id, run.folder());
    let engine = engine_name(run);
    // A folder that says nothing of an engine has never had a job.
    let may_have_jobs = !(engine.is_empty() && run.state.attempts().is_empty()) && run.original().is_none();
    // The one that supervised it is removed when its last files have come.
    let may_have_jobs = may_have_jobs && (run.state.status != Status::Finished || run.state.choices.supervised);
    if may_have_jobs && registry::keeps_jobs(&engine) {
        match super::ls::jobs(&engine, run.state.engine_address.as_deref()) {
            Ok(jobs) => {
                for job in jobs.iter().filter(|job| job.run == *id) {
                    remove_job(run, &job.id)?;
                }
            }
            Err(error) if force => say(&format!("warning: if {id} has left a container, it stays: {error}")),
            Err(error) => return Err(Error::ContainersUnknown { id: id.clone(), reason: error.to_string() }),
        }
    }
    let path = folder.path().to_owned();
    std::fs::remove_dir_all(&path).map_err(|source| Error::Write { path, source })?;
    print(&format!("removed {id}"));
    Ok(())
}

/// The engine of a run. A damaged folder may say it only in its lock.
fn engine_name(run: &Listed) -> String {
    match run.state.engine.as_str() {
        "" => lock::read(&run.folder()).map(|lock| lock.on.engine).unwrap_or_default(),
        engine => engine.to_owned(),
    }
}

fn remove_job(run: &Listed, id: &str) -> Result<(), Error> {
    let (engine, address) = (engine_name(run), run.state.engine_address.as_deref());
    super::runtime()?.block_on(async { registry::connect(&engine, address).await?.remove(id).await })
}

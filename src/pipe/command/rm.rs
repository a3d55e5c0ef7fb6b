//! `pipe rm`: runs with all that belongs to them, or the containers that a killed `pipe` left.

use crate::engine::docker::DockerEngine;
use crate::error::Error;
use crate::report::print;
use crate::run::{self, Listed};

pub fn run(wanted: &[String], left_behind: bool) -> Result<(), Error> {
    if left_behind {
        let mut runs = run::list()?;
        super::ls::find_left_behind(&mut runs)?;
        let ids: Vec<&String> = runs.iter().flat_map(|run| &run.left_behind).collect();
        for id in &ids {
            remove_container(id)?;
            print(&format!("removed container {id}"));
        }
        return Ok(());
    }
    // All are found before any is removed, so that a misspelt one loses nothing.
    let found = wanted.iter().map(|wanted| run::find(wanted)).collect::<Result<Vec<_>, _>>()?;
    if let Some(busy) = found.iter().find(|run| run.is_owned()) {
        return Err(Error::RunBusy { id: busy.state.id.clone() });
    }
    found.into_iter().try_for_each(remove)
}

fn remove(run: Listed) -> Result<(), Error> {
    let mut runs = [run];
    super::ls::find_left_behind(&mut runs)?;
    let [run] = runs;
    for id in &run.left_behind {
        remove_container(id)?;
    }
    let path = run.folder().path().to_owned();
    std::fs::remove_dir_all(&path).map_err(|source| Error::Write { path, source })?;
    print(&format!("removed {}", run.state.id));
    Ok(())
}

fn remove_container(id: &str) -> Result<(), Error> {
    super::runtime()?.block_on(async { DockerEngine::connect().await?.remove(id).await })
}

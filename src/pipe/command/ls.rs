//! `pipe ls`: the runs, newest first, with what a killed `pipe` left behind.

use std::collections::BTreeSet;

use pipe_spec::Status;

use crate::engine::{EngineJob, registry};
use crate::error::Error;
use crate::report::{Table, duration, print, print_json, visible_line};
use crate::run::{self, Listed};

pub fn run(json: bool, quiet: bool) -> Result<(), Error> {
    let mut runs = run::list()?;
    if quiet && !json {
        runs.iter().for_each(|run| print(&visible_line(&run.state.id)));
        return Ok(());
    }
    find_left_behind(&mut runs)?;
    if json {
        print_json(&runs);
        return Ok(());
    }
    let mut table = Table::new(&["run", "status", "attempts", "steps", "loss", "time", ""]);
    for run in &runs {
        let state = &run.state;
        let last = state.attempts.iter().rev().find_map(|attempt| Some((attempt.last_step?, attempt.last_loss?)));
        let steps = match (last, state.steps) {
            (Some((step, _)), Some(steps)) => format!("{step}/{steps}"),
            _ => "-".to_owned(),
        };
        let seconds: f64 = state.attempts.iter().map(|attempt| attempt.seconds).sum();
        table.row(vec![
            state.id.clone(),
            state.status.name().to_owned(),
            state.attempts.len().to_string(),
            steps,
            last.map_or("-".to_owned(), |(_, loss)| format!("{loss:.4}")),
            duration(seconds),
            remark(run),
        ]);
    }
    print(&table.on_stdout());
    Ok(())
}

/// The last column: damage, stage, or what to do.
fn remark(run: &Listed) -> String {
    if let Some(damage) = run.damage.first() {
        return damage.clone();
    }
    match run.state.status {
        Status::Running => run.state.doing.clone().unwrap_or_default(),
        Status::Orphaned if run.left_behind.is_empty() => "`pipe resume` continues it".to_owned(),
        _ if !run.left_behind.is_empty() => {
            "its container is still running; `pipe attach` continues the run".to_owned()
        }
        _ => String::new(),
    }
}

/// The jobs of all runs that an engine has.
pub fn jobs(engine: &str) -> Result<Vec<EngineJob>, Error> {
    super::runtime()?.block_on(async { registry::connect(engine).await?.jobs().await })
}

/// Finds the jobs of runs without a `pipe` process. The jobs of an engine that does not answer stay unknown.
pub fn find_left_behind(runs: &mut [Listed]) -> Result<(), Error> {
    let may_have_left = |run: &Listed| {
        run.state.status != Status::Finished && registry::keeps_jobs(&run.state.engine) && !run.is_owned()
    };
    let engines: BTreeSet<String> =
        runs.iter().filter(|run| may_have_left(run)).map(|run| run.state.engine.clone()).collect();
    for engine in engines {
        let Ok(jobs) = jobs(&engine) else { continue };
        for run in runs.iter_mut().filter(|run| run.state.engine == engine && !run.is_owned()) {
            let left = jobs.iter().filter(|job| job.run == run.state.id);
            run.left_behind = left.map(|job| job.id.clone()).collect();
        }
    }
    Ok(())
}

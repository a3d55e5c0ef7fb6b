//! `pipe ls`: the runs, newest first, with what a killed `pipe` left behind.

use pipe_spec::Status;

use crate::engine::docker::DockerEngine;
use crate::error::Error;
use crate::report::{Table, duration, print, print_json};
use crate::run::{self, Listed};

pub fn run(json: bool) -> Result<(), Error> {
    let mut runs = run::list()?;
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
    print(&table.to_string());
    Ok(())
}

/// What there is to say about a run beyond its figures.
fn remark(run: &Listed) -> String {
    if let Some(damage) = run.damage.first() {
        return damage.clone();
    }
    match run.state.status {
        Status::Running => run.state.doing.clone().unwrap_or_default(),
        Status::Orphaned if run.left_behind.is_empty() => "`pipe resume` goes on".to_owned(),
        _ if !run.left_behind.is_empty() => "its container goes on; `pipe attach` takes it over".to_owned(),
        _ => String::new(),
    }
}

/// The containers of runs that nobody drives. Where no daemon answers there is nothing to say about containers.
pub fn find_left_behind(runs: &mut [Listed]) -> Result<(), Error> {
    let unfinished = |run: &Listed| run.state.status != Status::Finished && run.state.engine == "docker";
    if !runs.iter().any(|run| unfinished(run) && !run.is_owned()) {
        return Ok(());
    }
    let containers = super::runtime()?.block_on(async { DockerEngine::connect().await?.containers().await });
    let Ok(containers) = containers else { return Ok(()) };
    for run in runs.iter_mut().filter(|run| !run.is_owned()) {
        let ours = containers.iter().filter(|container| container.run == run.state.id);
        run.left_behind = ours.map(|container| container.id.clone()).collect();
    }
    Ok(())
}

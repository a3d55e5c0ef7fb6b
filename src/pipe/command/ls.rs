//! `pipe ls`: lists the runs that match, newest first, with the jobs that a killed `pipe` left behind.

use std::cmp::Ordering;
use std::collections::{BTreeSet, HashMap, HashSet};

use pipe_spec::pipeline::{Metric, WorkKind};
use pipe_spec::run::StageStatus;
use pipe_spec::{RunState, Status};

use crate::engine::{EngineJob, registry};
use crate::error::Error;
use crate::report::{Output, Table, bounded, duration, figure, print, print_json, say, visible_line};
use crate::run::{self, Filter, Listed};

/// The order of the list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sort {
    /// The best first, within runs of the same metric.
    Metric,
    /// The newest first.
    #[default]
    Started,
    Name,
}

pub struct LsOptions {
    pub filter: Filter,
    /// The trials of studies too.
    pub trials: bool,
    /// The number of runs at most: the first in the order.
    pub limit: Option<usize>,
    pub sort: Sort,
    pub output: Output,
}

pub fn run(options: &LsOptions) -> Result<(), Error> {
    let all = run::list()?;
    let count = all.len();
    let mut runs = select(all, options);
    if options.sort != Sort::Metric {
        runs = with_stages_below(runs);
    }
    if options.output == Output::Quiet {
        runs.iter().for_each(|run| print(&visible_line(&run.state.id)));
        return Ok(());
    }
    find_left_behind(&mut runs)?;
    if options.output.is_json() {
        print_json(&runs);
        return Ok(());
    }
    print_table(&runs);
    if runs.is_empty() && count > 0 && !options.filter.is_empty() {
        say(&format!("no run matches; `pipe ls` lists all {count}"));
    }
    Ok(())
}

/// The runs that are wanted, in the order that is wanted.
fn select(mut runs: Vec<Listed>, options: &LsOptions) -> Vec<Listed> {
    if !options.trials {
        let studies: HashSet<String> =
            runs.iter().filter(|run| run.state.work() == WorkKind::Study).map(|run| run.state.id.clone()).collect();
        runs.retain(|run| !run.is_part_of(&studies));
    }
    runs.retain(|run| options.filter.wants(run));
    let limit = options.limit.unwrap_or(usize::MAX);
    // Only the order by metric needs the results of all.
    if options.sort != Sort::Metric {
        sort(&mut runs, options.sort);
        runs.truncate(limit);
    }
    runs.iter_mut().for_each(Listed::read_result);
    if options.sort == Sort::Metric {
        sort(&mut runs, options.sort);
        runs.truncate(limit);
    }
    runs
}

/// The runs of stages after the run that they belong to.
fn with_stages_below(runs: Vec<Listed>) -> Vec<Listed> {
    let ids = run::ids_of(&runs);
    let mut below: HashMap<&str, Vec<&Listed>> = HashMap::new();
    for run in &runs {
        if let Some(whole) = run.wholes().find(|whole| ids.contains(*whole)) {
            below.entry(whole).or_default().push(run);
        }
    }
    let mut ordered = Vec::new();
    for run in runs.iter().filter(|run| !run.is_part_of(&ids)) {
        ordered.push(run.clone());
        let mut stages = below.remove(run.state.id.as_str()).unwrap_or_default();
        run::sort_stages(&mut stages, &run.state);
        ordered.extend(stages.into_iter().cloned());
    }
    ordered
}

fn sort(runs: &mut [Listed], by: Sort) {
    match by {
        Sort::Metric => runs.sort_by(by_metric),
        Sort::Started => {}
        Sort::Name => runs.sort_by(|a, b| a.state.id.cmp(&b.state.id)),
    }
}

fn print_table(runs: &[Listed]) {
    let ids = run::ids_of(runs);
    let mut table = Table::new(&["run", "status", "attempts", "steps", "metric", "time", ""]);
    for run in runs {
        let state = &run.state;
        let last = state.attempts().iter().rev().find_map(|attempt| attempt.figures.last_step);
        let steps = match (last, state.steps()) {
            (Some(step), Some(steps)) => format!("{step}/{steps}"),
            _ => "-".to_owned(),
        };
        let seconds = match state.work() {
            WorkKind::Training | WorkKind::Command => {
                state.attempts().iter().map(|attempt| attempt.figures.seconds).sum()
            }
            WorkKind::Study => state.study().map_or(0.0, |study| study.seconds),
            WorkKind::Stages => state
                .stages()
                .iter()
                .filter(|stage| stage.status != StageStatus::Unchanged)
                .filter_map(|stage| stage.seconds)
                .sum(),
        };
        let is_below = run.is_part_of(&ids);
        let attempts = if state.work().is_single() { state.attempts().len().to_string() } else { "-".to_owned() };
        table.row(vec![
            if is_below { format!("  {}", state.id) } else { state.id.clone() },
            run.status_name().to_owned(),
            attempts,
            steps,
            metric(state),
            duration(seconds),
            remark(run),
        ]);
    }
    print(&table.on_stdout());
}

/// The metric of the run with its value; the training loss for a run that has no result yet.
fn metric(state: &RunState) -> String {
    let result = state.result().and_then(|result| Some((result.metric.as_deref()?, result.value?)));
    let last_loss = || state.attempts().iter().rev().find_map(|attempt| attempt.figures.last_loss);
    match result.or_else(|| last_loss().map(|loss| ("loss", loss))) {
        Some((name, value)) => format!("{} {}", name.trim_start_matches("eval."), figure(value)),
        None => "-".to_owned(),
    }
}

/// Runs of one metric together, the best of them first; runs without one last.
fn by_metric(a: &Listed, b: &Listed) -> Ordering {
    let known = |run: &Listed| {
        let result = run.state.result()?;
        Some((result.metric.clone()?, result.value?))
    };
    match (known(a), known(b)) {
        (Some((first, a)), Some((second, b))) => first.cmp(&second).then_with(|| {
            let less_is_better = Metric::less_is_better(&first);
            if less_is_better { a.total_cmp(&b) } else { b.total_cmp(&a) }
        }),
        (a, b) => b.is_some().cmp(&a.is_some()),
    }
}

/// Characters of the first line of a note in the list.
const NOTE: usize = 60;

/// The last column: damage, stage, or what to do; then the tags and the note.
fn remark(run: &Listed) -> String {
    let tags = run.notes.tags.join(", ");
    let tags = if tags.is_empty() { tags } else { format!("tags: {tags}") };
    let parts = [remark_of_state(run), tags, bounded(run.notes.first_line(), NOTE)];
    parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join("; ")
}

fn remark_of_state(run: &Listed) -> String {
    if let Some(damage) = run.damage.first() {
        return damage.clone();
    }
    if !run.state.stages().is_empty() {
        let of =
            |wanted: fn(StageStatus) -> bool| run.state.stages().iter().filter(|stage| wanted(stage.status)).count();
        let done = format!("{} of {} steps done", of(StageStatus::is_done), run.state.stages().len());
        return match of(|status| status == StageStatus::Failed) {
            0 => done,
            failed => format!("{done}, {failed} failed"),
        };
    }
    if let Some(study) = run.state.study() {
        let of = study.budget.map_or(String::new(), |budget| format!(" of {budget}"));
        let best =
            study.best.map_or(String::new(), |(number, value)| format!(", best {} (trial {number})", figure(value)));
        return format!("{}{of} trials{best}", study.trials.run());
    }
    let remark = match run.state.status {
        Status::Running => run.state.doing.clone().unwrap_or_default(),
        Status::Orphaned if run.state.choices.supervised => run.state.doing.clone().unwrap_or_default(),
        Status::Orphaned | Status::Stopped if run.left_behind.is_empty() => "`pipe resume` continues it".to_owned(),
        _ if !run.left_behind.is_empty() => {
            "its container is still running; `pipe attach` continues the run".to_owned()
        }
        _ => String::new(),
    };
    let ranks = run.state.attempts().last().map_or(1, |attempt| attempt.ranks);
    let ranks = (ranks > 1).then(|| format!("{ranks} ranks"));
    ranks.into_iter().chain(Some(remark).filter(|remark| !remark.is_empty())).collect::<Vec<_>>().join("; ")
}

/// The jobs of all runs that an engine has.
pub fn jobs(engine: &str, address: Option<&str>) -> Result<Vec<EngineJob>, Error> {
    super::runtime()?.block_on(async { registry::connect(engine, address).await?.jobs().await })
}

/// Finds the jobs of runs without a `pipe` process. The jobs of an engine that does not answer stay unknown.
pub fn find_left_behind(runs: &mut [Listed]) -> Result<(), Error> {
    let may_have_left = |run: &Listed| {
        run.state.status != Status::Finished && registry::keeps_jobs(&run.state.engine) && !run.is_owned()
    };
    let engine_of = |run: &Listed| (run.state.engine.clone(), run.state.engine_address.clone());
    let engines: BTreeSet<(String, Option<String>)> =
        runs.iter().filter(|run| may_have_left(run)).map(engine_of).collect();
    for engine in engines {
        let Ok(jobs) = jobs(&engine.0, engine.1.as_deref()) else { continue };
        for run in runs.iter_mut().filter(|run| engine_of(run) == engine && !run.is_owned()) {
            let left: Vec<String> =
                jobs.iter().filter(|job| job.run == run.state.id).map(|job| job.id.clone()).collect();
            // Those of a copy belong to the run.
            if !left.is_empty() && run.original().is_none() {
                run.left_behind = left;
            }
        }
    }
    Ok(())
}

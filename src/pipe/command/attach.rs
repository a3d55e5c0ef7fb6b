//! `pipe attach`: watches a run in the background; if its `pipe` process was killed, it starts another one.

use std::time::Duration;

use pipe_spec::pipeline::WorkKind;
use pipe_spec::{PipeExit, RunState, Status};

use crate::detach;
use crate::error::Error;
use crate::graph::GraphWatcher;
use crate::interrupt::Interrupts;
use crate::report::{Reporter, say};
use crate::run::{self, Listed};
use crate::watcher::Watcher;

/// How often the run folder is read.
const POLL_INTERVAL: Duration = Duration::from_millis(150);

/// A run whose `pipe` ends so often without a word is left alone.
const MAX_TAKEOVERS: u32 = 5;

pub fn run(wanted: &str, json: bool, quiet: bool) -> Result<(), Error> {
    let found = run::find(wanted)?;
    if !found.damage.is_empty() {
        return Err(Error::Damaged { id: found.state.id, damage: found.damage });
    }
    super::runtime()?.block_on(async {
        let mut interrupts = Interrupts::listen()?;
        let reporter = Reporter::new(json, quiet);
        tokio::select! {
            ended = watch(&found, reporter, json) => ended,
            _ = interrupts.next() => {
                if !quiet {
                    say(&format!("the run continues: `pipe attach {0}` watches it again, `pipe stop {0}` stops it", found.state.id));
                }
                Ok(())
            }
        }
    })
}

async fn watch(found: &Listed, reporter: Reporter, json: bool) -> Result<(), Error> {
    let mut watcher = Watcher::new(found, reporter, json);
    let mut steps = match found.state.work {
        WorkKind::Steps => Some(GraphWatcher::new(json, &found.state)),
        WorkKind::Training | WorkKind::Command => None,
    };
    watcher.catch_up()?;
    let mut takeovers = 0;
    loop {
        let state = watcher.look()?;
        if state.status == Status::Orphaned {
            takeovers += 1;
            if takeovers > MAX_TAKEOVERS {
                return Err(Error::NotDriven { log: found.folder().driver_log() });
            }
            watcher.reporter.note("no pipe process is running this run: starting one in the background");
            detach::start(&found.folder(), &[])?;
            continue;
        }
        watcher.show(&state)?;
        if let Some(steps) = &mut steps {
            steps.show(&state, &mut watcher.reporter)?;
        }
        if state.status != Status::Running {
            watcher.reporter.run_ended(&state, &found.folder);
            return over(&state);
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

fn over(state: &RunState) -> Result<(), Error> {
    let code = state.exit_code.and_then(PipeExit::from_code);
    match state.status {
        Status::Finished => Ok(()),
        _ => Err(Error::RunEnded {
            reason: state.error.clone().unwrap_or_else(|| state.status.name().to_owned()),
            code: code.unwrap_or(PipeExit::TrainingFailed),
        }),
    }
}

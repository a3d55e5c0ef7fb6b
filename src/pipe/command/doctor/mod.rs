//! `pipe doctor`: is everything there that a run needs, and what to do where it is not.

mod links;
mod machine;
mod program;

use crate::engine::{Check, CheckStatus, Host, registry};
use crate::error::Error;
use crate::report::{print, print_json, stdout_columns, wrap};
use crate::run;
use crate::system::files::absolute;

pub fn run(engine: Option<&str>, json: bool) -> Result<(), Error> {
    let checks = checks(engine)?;
    if json {
        print_json(&checks);
    } else {
        checks.iter().for_each(show);
    }
    let missing: Vec<String> =
        checks.iter().filter(|check| check.status == CheckStatus::Missing).map(|check| check.name.to_owned()).collect();
    if missing.is_empty() { Ok(()) } else { Err(Error::DoctorFailed { missing }) }
}

fn checks(engine: Option<&str>) -> Result<Vec<Check>, Error> {
    let host = Host::look(absolute(&run::runs_folder()));
    let mut checks = super::runtime()?.block_on(registry::doctor(&host, engine));
    let Host { trainer, cards, .. } = &host;
    match cards.as_slice() {
        [] | [_] => checks.push(program::card(host.card())),
        several => checks.extend(several.iter().map(|card| program::card(Some(card)))),
    }
    checks.push(program::trainer(trainer));
    if trainer.is_ok() {
        checks.extend([program::libtorch(host.card()), program::image()]);
    }
    if cards.len() > 1 {
        checks.push(links::links(cards.len()));
        checks.extend(trainer.as_ref().ok().map(|_| links::nccl()));
    }
    let shared_memory = machine::shared_memory(cards.len());
    checks.extend([machine::memory(), shared_memory, machine::disk(), machine::ledger(), machine::cache()]);
    Ok(checks)
}

/// The text begins in this column.
const MARGIN: usize = 18;

fn show(check: &Check) {
    let columns = stdout_columns();
    let indented = |text: &str| {
        let lines = match columns {
            Some(columns) => wrap(text, columns.saturating_sub(MARGIN)),
            None => text.lines().map(str::to_owned).collect(),
        };
        lines.join(&format!("\n{}", " ".repeat(MARGIN)))
    };
    print(&format!("{:<8} {:<8} {}", check.status.name(), check.name, indented(&check.found)));
    if let Some(hint) = &check.hint {
        print(&format!("{}{}", " ".repeat(MARGIN), indented(&format!("hint: {hint}"))));
    }
}

//! `pipe doctor`: is everything there that a run needs, and what to do where it is not.

mod machine;
mod program;

use crate::engine::registry::{self, Host};
use crate::error::Error;
use crate::report::{Check, CheckStatus, print, print_json};

pub fn run(json: bool) -> Result<(), Error> {
    let checks = checks()?;
    if json {
        print_json(&checks);
    } else {
        checks.iter().for_each(show);
    }
    let missing: Vec<String> =
        checks.iter().filter(|check| check.status == CheckStatus::Missing).map(|check| check.name.to_owned()).collect();
    if missing.is_empty() { Ok(()) } else { Err(Error::DoctorFailed { missing }) }
}

fn checks() -> Result<Vec<Check>, Error> {
    let host = Host::look();
    let mut checks = super::runtime()?.block_on(registry::doctor(&host));
    let Host { trainer, card } = &host;
    checks.extend([program::card(card.as_ref()), program::trainer(trainer)]);
    if trainer.is_ok() {
        checks.extend([program::libtorch(card.as_ref()), program::image()]);
    }
    checks.extend([machine::memory(), machine::shared_memory(), machine::disk(), machine::ledger(), machine::cache()]);
    Ok(checks)
}

fn show(check: &Check) {
    let margin = format!("{:<8} {:<9}", "", "");
    let found = check.found.lines().collect::<Vec<_>>().join(&format!("\n{margin}"));
    print(&format!("{:<8} {:<8} {found}", check.status.name(), check.name));
    if let Some(hint) = &check.hint {
        print(&format!("{margin}hint: {hint}"));
    }
}

//! `pipe doctor`: is everything there that a run needs, and what to do where it is not.

mod check;
mod engine;
mod machine;
mod program;

use pipe_spec::pipeline::Gpus;

use crate::card::Card;
use crate::engine::docker::DockerEngine;
use crate::error::Error;
use crate::image;
use crate::report::{print, print_json};
use check::{Check, Status};

pub fn run(json: bool) -> Result<(), Error> {
    let checks = checks()?;
    if json {
        print_json(&checks);
    } else {
        checks.iter().for_each(show);
    }
    let missing: Vec<String> =
        checks.iter().filter(|check| check.status == Status::Missing).map(|check| check.name.to_owned()).collect();
    if missing.is_empty() { Ok(()) } else { Err(Error::Unwell { missing }) }
}

fn checks() -> Result<Vec<Check>, Error> {
    let docker = super::runtime()?.block_on(DockerEngine::connect());
    let info = docker.as_ref().ok().map(DockerEngine::info);
    let card = Card::read(&Gpus::Auto);
    let trainer = image::find_trainer();
    let mut checks = vec![engine::engine(docker.as_ref(), trainer.is_ok()), engine::podman()];
    checks.extend(engine::ways(info, card.as_ref()));
    checks.extend([program::card(card.as_ref()), program::trainer(&trainer)]);
    if trainer.is_ok() {
        checks.extend([program::libtorch(card.as_ref()), program::image()]);
    }
    checks.extend([machine::memory(), machine::shared_memory(), machine::disk()]);
    checks.extend(machine::engine_disk(info));
    checks.extend([machine::ledger(), machine::cache()]);
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

//! The runner from outside, on the real `pipe` and the real daemon. Nothing here needs libtorch: where a job is run, it is
//! the stand-in of `tests/job`.

#[path = "runner/bad_input.rs"]
mod bad_input;
#[path = "runner/browser.rs"]
mod browser;
#[path = "runner/buckets.rs"]
mod buckets;
#[path = "runner/ci.rs"]
mod ci;
#[path = "runner/commands.rs"]
mod commands;
#[path = "runner/compute_capability.rs"]
mod compute_capability;
#[path = "runner/containers.rs"]
mod containers;
#[path = "runner/cuda.rs"]
mod cuda;
#[path = "runner/data_files.rs"]
mod data_files;
#[path = "runner/detach_and_resume.rs"]
mod detach_and_resume;
#[path = "runner/engines.rs"]
mod engines;
mod harness;
#[path = "runner/hub/mod.rs"]
mod hub;
#[path = "runner/init_and_doctor.rs"]
mod init_and_doctor;
#[path = "runner/job_folder.rs"]
mod job_folder;
#[path = "runner/killed.rs"]
mod killed;
#[path = "runner/ledger.rs"]
mod ledger;
#[path = "runner/memory.rs"]
mod memory;
#[path = "runner/notifications.rs"]
mod notifications;
#[path = "runner/output.rs"]
mod output;
#[path = "runner/own_loop.rs"]
mod own_loop;
#[path = "runner/progress.rs"]
mod progress;
#[path = "runner/python.rs"]
mod python;
#[path = "runner/queue.rs"]
mod queue;
#[path = "runner/releases.rs"]
mod releases;
#[path = "runner/reports.rs"]
mod reports;
#[path = "runner/reproducing.rs"]
mod reproducing;
#[path = "runner/results.rs"]
mod results;
#[path = "runner/retries.rs"]
mod retries;
#[path = "runner/several_cards.rs"]
mod several_cards;
#[path = "runner/sizes.rs"]
mod sizes;
#[path = "runner/source.rs"]
mod source;
#[path = "runner/stand_ins/mod.rs"]
mod stand_ins;
#[path = "runner/steps.rs"]
mod steps;
#[path = "runner/stopping.rs"]
mod stopping;
#[path = "runner/terminal.rs"]
mod terminal;
#[path = "runner/tokenizers.rs"]
mod tokenizers;
#[path = "runner/tracking.rs"]
mod tracking;
#[path = "runner/tune.rs"]
mod tune;
#[path = "runner/ui.rs"]
mod ui;
#[path = "runner/ui_in_a_browser.rs"]
mod ui_in_a_browser;
#[path = "runner/untrusted_input.rs"]
mod untrusted_input;
#[path = "runner/walk.rs"]
mod walk;
#[path = "runner/walls.rs"]
mod walls;
#[path = "runner/words.rs"]
mod words;

use std::process::ExitCode;

fn main() -> ExitCode {
    let mut suite = harness::Suite::default();
    bad_input::tests(&mut suite);
    buckets::tests(&mut suite);
    tokenizers::tests(&mut suite);
    data_files::tests(&mut suite);
    output::tests(&mut suite);
    engines::tests(&mut suite);
    results::tests(&mut suite);
    retries::tests(&mut suite);
    memory::tests(&mut suite);
    tracking::tests(&mut suite);
    notifications::tests(&mut suite);
    reports::tests(&mut suite);
    releases::tests(&mut suite);
    stopping::tests(&mut suite);
    job_folder::tests(&mut suite);
    killed::tests(&mut suite);
    detach_and_resume::tests(&mut suite);
    ci::tests(&mut suite);
    containers::tests(&mut suite);
    commands::tests(&mut suite);
    steps::tests(&mut suite);
    tune::tests(&mut suite);
    own_loop::tests(&mut suite);
    python::tests(&mut suite);
    compute_capability::tests(&mut suite);
    cuda::tests(&mut suite);
    reproducing::tests(&mut suite);
    init_and_doctor::tests(&mut suite);
    hub::tests(&mut suite);
    progress::tests(&mut suite);
    queue::tests(&mut suite);
    several_cards::tests(&mut suite);
    ledger::tests(&mut suite);
    terminal::tests(&mut suite);
    ui::tests(&mut suite);
    ui_in_a_browser::tests(&mut suite);
    untrusted_input::tests(&mut suite);
    sizes::tests(&mut suite);
    walls::tests(&mut suite);
    words::tests(&mut suite);
    suite.run()
}

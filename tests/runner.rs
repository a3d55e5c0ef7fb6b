//! The runner from outside, on the real `pipe` and the real daemon. Nothing here needs libtorch: where a job is run, it is
//! the stand-in of `tests/job.rs`.

#[path = "runner/bad_input.rs"]
mod bad_input;
#[path = "runner/capability.rs"]
mod capability;
#[path = "runner/ci.rs"]
mod ci;
#[path = "runner/containers.rs"]
mod containers;
#[path = "runner/cuda.rs"]
mod cuda;
#[path = "runner/data_files.rs"]
mod data_files;
#[path = "runner/engines.rs"]
mod engines;
mod harness;
#[path = "runner/hub/mod.rs"]
mod hub;
#[path = "harness/hub.rs"]
mod hub_server;
#[path = "runner/images.rs"]
mod images;
#[path = "runner/leaving.rs"]
mod leaving;
#[path = "runner/looks.rs"]
mod looks;
#[path = "runner/memory.rs"]
mod memory;
#[path = "runner/reports.rs"]
mod reports;
#[path = "runner/reproducing.rs"]
mod reproducing;
#[path = "runner/retries.rs"]
mod retries;
#[path = "runner/starting.rs"]
mod starting;
#[path = "runner/stopping.rs"]
mod stopping;
#[path = "runner/telling.rs"]
mod telling;
#[path = "runner/tokenizers.rs"]
mod tokenizers;
#[path = "runner/tracking.rs"]
mod tracking;
#[path = "runner/wandb.rs"]
mod wandb;
#[path = "runner/watching.rs"]
mod watching;

use std::process::ExitCode;

fn main() -> ExitCode {
    let mut suite = harness::Suite::default();
    bad_input::tests(&mut suite);
    tokenizers::tests(&mut suite);
    data_files::tests(&mut suite);
    looks::tests(&mut suite);
    engines::tests(&mut suite);
    retries::tests(&mut suite);
    memory::tests(&mut suite);
    tracking::tests(&mut suite);
    wandb::tests(&mut suite);
    telling::tests(&mut suite);
    reports::tests(&mut suite);
    stopping::tests(&mut suite);
    leaving::tests(&mut suite);
    ci::tests(&mut suite);
    images::tests(&mut suite);
    containers::tests(&mut suite);
    capability::tests(&mut suite);
    cuda::tests(&mut suite);
    reproducing::tests(&mut suite);
    starting::tests(&mut suite);
    hub::tests(&mut suite);
    watching::tests(&mut suite);
    suite.run()
}

//! Engines start jobs. An engine knows containers or processes; it never knows what is trained.
//!
//! Everything that differs between engines is behind `Engine`, and `registry` lists them: no file outside this folder names
//! an engine. `docs/dev/adding-an-engine.md` walks through a new one.

mod contract;
mod docker;
pub mod first_process;
mod job;
mod kubernetes;
mod output;
mod process;
pub mod registry;
mod slurm;
mod sockets;
#[cfg(test)]
mod toy;

pub use contract::{
    BuiltImage, Check, CheckStatus, ConnectImages, Connection, EndedBy, Ending, Engine, EngineJob, FoundJob, Host,
    ImageStore, JobHandle, Progress, Registration, StartedJob, remove_jobs_of,
};
pub use job::{JobProgram, Launch, Mounts, Resources, SUPERVISOR, SUPERVISOR_VARIABLE, is_supervisor};
pub use output::{Closed, Line, LineSender, OUTPUT_INTERVAL, Output, Source, channel as line_channel, release};
pub use sockets::EngineSockets;

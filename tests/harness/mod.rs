//! What the end-to-end tests share: a working folder with the real binaries, and their output.

#![allow(dead_code, unused_imports)] // Each test program uses its own part of this.

pub mod answer;
pub mod ci;
pub mod daemon;
pub mod docker_proxy;
pub mod folder;
pub mod generated;
pub mod job;
pub mod mlflow;
pub mod receiver;
pub mod running;
pub mod slurm;
pub mod source;
pub mod suite;
pub mod tmpfs;
pub mod wandb;
pub mod watchdog;

pub use answer::Answer;
pub use folder::Folder;
pub use running::Running;
pub use slurm::Slurm;
pub use suite::{Needs, Suite};
pub use tmpfs::Tmpfs;

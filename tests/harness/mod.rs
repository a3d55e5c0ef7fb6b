//! What the end-to-end tests share: a working folder with the real binaries, and their output.

pub mod answer;
pub mod ci;
pub mod daemons;
pub mod folder;
#[allow(dead_code)] // Each test program has tests with other needs.
pub mod moto;
pub mod running;
pub mod suite;
pub mod tmpfs;
pub mod watchdog;

pub use answer::Answer;
pub use folder::Folder;
pub use running::Running;
pub use suite::{Needs, Suite};
#[allow(unused_imports)] // The runner's tests alone use a disk.
pub use tmpfs::{Disk, Tmpfs};

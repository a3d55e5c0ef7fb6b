//! The machine below: files, HTTP, signals and the clock. Knows nothing about runs.

pub mod clock;
pub mod digests;
pub mod files;
pub mod http;
pub mod interrupt;

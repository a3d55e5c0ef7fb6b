//! A study in a journal file of Optuna: `JournalStorage(JournalFileBackend(path))` of Optuna 4 and 5 reads and writes
//! the same file while we do. It must know nothing of samplers, pipelines or runs.
//!
//! The file is a log of operations, one JSON object a line. Whoever writes holds a lock beside the file and appends
//! whole lines; whoever reads replays the lines. A trial has an id, counted over all studies of the file, and a number,
//! counted in its study.

mod distribution;
mod log;
mod ops;
mod python;
mod study;
#[cfg(test)]
mod tests;

pub use log::JournalError;
pub use study::Journal;

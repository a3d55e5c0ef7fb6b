//! Decisions as pure functions: how an attempt ended, and what to do next. Reads no files and asks no machine.

pub mod metrics;
pub mod oom_text;
pub mod outcome;
pub mod retry;

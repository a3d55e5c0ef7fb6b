//! One attempt of a run as pure functions: what is launched for it, how it ended, and what to do next. Starts nothing.

pub mod checkpoint;
pub mod job_spec;
pub mod metrics;
pub mod oom_text;
pub mod outcome;
pub mod placement;
pub mod retry;
pub mod template;

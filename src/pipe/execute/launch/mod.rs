//! What an attempt launches: where it runs, its spec and the job that an engine starts.

pub mod environment;
pub mod job_spec;
pub mod placement;
pub mod template;
pub mod workload;

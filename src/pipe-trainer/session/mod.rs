//! The surroundings of a training: its spec, its events, and its progress for the record of an out-of-memory.

pub mod events;
pub mod oom;
pub mod spec;

//! What an attempt has beside its training: its spec, its events, and what it was doing when memory ran out.

pub mod events;
pub mod oom;
pub mod spec;

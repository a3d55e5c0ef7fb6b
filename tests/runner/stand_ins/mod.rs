//! Programs and servers that stand in for those that a test cannot use, or that it may not disturb.

pub mod daemon;
pub mod hub;
pub mod job;
pub mod receiver;
pub mod trackers;

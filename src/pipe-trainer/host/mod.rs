//! This process and its host: the memory it holds, the limit on it, signals to stop, and the lease of the runner.

pub mod activity;
pub mod allocator;
pub mod child;
pub mod lease;
pub mod limit;
pub mod memory;
mod stop;

pub use memory::HostMemory;
pub use stop::Stop;

//! This process and its host: the memory it holds, the limit on it, signals to stop, and the lease of the runner.

mod memory;
mod process;

pub use memory::{HostAllocator, HostMemory, bounded, during, exhausted, lift_limit, set_limit, total_memory};
pub use process::{
    Stop, bytes_moved, cpu_time, die_with_this_process, offer_to_be_killed, stopped_while_opening, stops_while_opening,
    training_started, watch_lease,
};

//! Several processes that train together, each with a card of its own: another one on each machine starts them and watches them, all of
//! them sum what they compute, and none waits for one that is gone.

mod address;
mod heartbeat;
mod launcher;
mod notices;
mod peers;
mod waiter;
mod watched;

pub use launcher::{Start, await_batch, launch};
pub use notices::Notices;
pub use peers::{Peers, SharedSum};

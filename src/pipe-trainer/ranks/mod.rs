//! Several processes that train together, each with a card of its own: one of them starts the others and watches them, all of them sum
//! what they compute, and none waits for one that is gone.

mod heartbeat;
mod launcher;
mod notices;
mod peers;
mod waiter;

pub use launcher::{Start, launch};
pub use notices::Notices;
pub use peers::{Peers, SharedSum};

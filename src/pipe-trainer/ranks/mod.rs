//! Several processes that train together, each with a card of its own: another one on each machine starts them and watches them, all of
//! them sum what they compute, and none waits for one that is gone.

mod exchange;
mod launcher;
mod notices;
mod peers;
mod waiter;

pub use exchange::Exchange;
pub use launcher::{Start, await_batch, launch};
pub use notices::Notices;
pub use peers::{Peers, SharedSum};

//! The cards of this host, as the driver sees them. Knows nothing of engines.

mod card;
pub mod queue;

#[cfg(test)]
pub use card::Holder;
pub use card::{Architecture, Capability, Card, VISIBLE_DEVICES, Visible, is_whole};

//! The cards of this host, as the driver sees them. Knows nothing of engines.

mod capability;
mod card;
mod visible;

pub use capability::{Architecture, Capability};
#[cfg(test)]
pub use card::Holder;
pub use card::{Card, is_whole};
pub use visible::{VISIBLE_DEVICES, Visible};

//! The cards of this host, as the driver sees them. Knows nothing of engines.

mod capability;
mod card;

pub use capability::{Architecture, Capability};
pub use card::Card;
#[cfg(test)]
pub use card::Holder;

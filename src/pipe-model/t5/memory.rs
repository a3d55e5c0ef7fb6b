//! What the passes of a training step hold.

use super::T5Config;
use crate::memory::{Stage, Work};

/// In the order of the forward pass.
pub fn stages(config: &T5Config, work: &Work) -> Vec<Stage> {
    let _ = (config, work);
    Vec::new()
}

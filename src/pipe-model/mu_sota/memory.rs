//! What the passes of a training step hold.

use super::MuSotaConfig;
use crate::memory::{Stage, Work};

/// In the order of the forward pass.
pub fn stages(config: &MuSotaConfig, work: &Work) -> Vec<Stage> {
    let _ = (config, work);
    Vec::new()
}

//! The memory of a training on a card: the estimate of a step, how its samples are cut into parts that fit, and the
//! largest batch.

mod cut;
mod cutter;
mod fit;

pub use cut::{Lengths, cut, even};
pub use cutter::{Cutter, Recompute};
pub use fit::{MARGIN, Search, largest};

pub use crate::estimate::{
    Estimate, Peak, ROW_MULTIPLE, Stage, StepMemory, WORKSPACE, Work, has_attention_kernel, owners, peak, usable,
};

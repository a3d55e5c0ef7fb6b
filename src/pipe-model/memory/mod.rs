//! The memory of a training on a card: the estimate of a step, how its samples are split into parts that fit, and the
//! largest batch.

mod fit;
mod part_budget;
mod part_sizes;

pub use fit::{MARGIN, Search, largest};
pub use part_budget::{PartBudget, Recompute};
pub use part_sizes::{Layout, Lengths, even_part_sizes, part_sizes, rounded_tokens};

pub use crate::estimate::{
    AdapterWork, Estimate, MOMENT_BLOCK, Peak, ROW_MULTIPLE, SMALLEST_OF_8_BITS, Stage, StepMemory, WORKSPACE, Work,
    has_attention_kernel, owners, peak, usable,
};

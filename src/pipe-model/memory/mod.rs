//! What a training holds on a card: the state of the model, computed exactly, and what passes through it, stage by stage.

mod attention;
mod chunk;
mod column_sums;
mod cut;
mod estimate;
mod fit;
mod lengths;
mod owners;
mod recomputed;
mod stage;
mod step_memory;
mod word_loss;
mod work;

pub(crate) use attention::{Attention, Bias, Way};
pub use attention::{ROW_MULTIPLE, has_attention_kernel};
pub(crate) use chunk::rows_at_a_time;
pub(crate) use column_sums::column_sums;
pub use cut::{Cutter, Recompute, cut, even, usable};
pub use estimate::{Estimate, WORKSPACE};
pub use fit::{MARGIN, Search, largest};
pub use lengths::Lengths;
pub use owners::owners;
pub(crate) use recomputed::recomputed;
pub use stage::{Peak, Stage, peak};
pub use step_memory::StepMemory;
pub(crate) use word_loss::WordLoss;
pub use work::Work;

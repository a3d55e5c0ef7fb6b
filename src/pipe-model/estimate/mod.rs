//! The estimate of what a training step holds on a card: the stages of its passes with their bytes, and the peak. It
//! must know no model.

mod kernels;
mod peak;
mod stage;
mod work;

pub(crate) use kernels::{Attention, Bias, Way, bias_sums, column_sums, embedding_sums, rows_at_a_time};
pub use kernels::{ROW_MULTIPLE, has_attention_kernel};
pub use peak::{Estimate, MOMENT_BLOCK, SMALLEST_OF_8_BITS, StepMemory, WORKSPACE, usable};
pub use stage::{Peak, Stage, peak};
pub(crate) use stage::{WordLoss, recomputed};
pub use work::{AdapterWork, Work, owners};

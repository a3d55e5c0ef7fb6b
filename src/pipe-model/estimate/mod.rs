//! The estimate of what a training step holds on a card: the stages of its passes with their bytes, and the peak. It
//! must know no model.

mod kernels;
mod peak;
mod work;

pub(crate) use kernels::{Attention, Bias, Way, bias_sums, column_sums, embedding_sums, rows_at_a_time};
pub use kernels::{ROW_MULTIPLE, has_attention_kernel};
pub use peak::{Estimate, MOMENT_BLOCK, Peak, SMALLEST_OF_8_BITS, Stage, StepMemory, WORKSPACE, peak, usable};
pub(crate) use peak::{WordLoss, recomputed};
pub use work::{AdapterWork, Work, owners};

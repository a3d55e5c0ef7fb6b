//! What decides how much a training holds, beside the model.

use pipe_spec::pipeline::{OptimizerKind, Precision};

/// Sizes are 128 bits wide while they are multiplied: no product of
/// sizes that a pipeline and a config may have overflows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Work {
    pub precision: Precision,
    pub optimizer: OptimizerKind,
    pub checkpointing: bool,
    /// Samples in one forward and backward pass.
    pub batch: u128,
    /// Passes of a rank in a step.
    pub accum: u128,
    /// Processes that share a step.
    pub ranks: u32,
    /// Whether each of them keeps the optimizer's state of its own parameters alone.
    pub sharded: bool,
    /// Tokens of a row, of a T5's source, as they are padded.
    pub source: u128,
    /// Tokens of a T5's target.
    pub target: u128,
    /// Whether some rows are shorter than others, so that there is a mask.
    pub padded: bool,
    /// Whether anything is dropped.
    pub drops: bool,
}

impl Work {
    /// Bytes of a weight, of its gradient and of each of its moments.
    pub fn weight(&self) -> u128 {
        match self.precision {
            Precision::Bf16 => 2,
            Precision::Fp32 | Precision::Tf32 | Precision::Bf16Mixed | Precision::Fp16Mixed => 4,
        }
    }

    /// Bytes of what matrix products take and give.
    pub fn compute(&self) -> u128 {
        match self.precision {
            Precision::Fp32 | Precision::Tf32 => 4,
            Precision::Bf16 | Precision::Bf16Mixed | Precision::Fp16Mixed => 2,
        }
    }

    /// Whether there are gradients of all parameters before a pass begins: those of an earlier pass, or the room in which ranks add
    /// theirs up.
    pub fn holds_gradients(&self) -> bool {
        self.accum > 1 || self.ranks > 1
    }

    /// Whether products are computed in less than the weights are kept in.
    pub fn mixed(&self) -> bool {
        self.compute() < self.weight()
    }
}

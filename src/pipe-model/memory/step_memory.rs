//! The estimate of what a training step holds.

use super::estimate::Estimate;
use super::stage::Stage;
use super::work::Work;
use crate::Parameter;

pub trait StepMemory {
    /// The passes of a step, in the order of the forward pass.
    fn stages(&self, work: &Work) -> Vec<Stage>;

    /// What deterministic kernels hold beyond the estimate, in words.
    fn uncounted_when_deterministic(&self) -> Option<&'static str> {
        None
    }

    /// The peak of a training. `parameters` are the model's own, which stay the same however often it is estimated.
    fn estimate(&self, parameters: &[Parameter], work: &Work) -> Estimate {
        Estimate::of(parameters, &self.stages(work), work)
    }
}

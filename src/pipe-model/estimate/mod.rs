//! The estimate of what a training step holds on a card: the settings that decide it beside the model, the stages of its passes with
//! their bytes, and the peak. It must know no model.

mod kernels;
mod peak;

use pipe_spec::pipeline::{OptimizerKind, Precision, Quantize};

use crate::adaptable::Adaptable;
use crate::parameter::Parameter;

pub(crate) use kernels::{Attention, Bias, Way, bias_sums, column_sums, embedding_sums, rows_at_a_time};
pub use kernels::{ROW_MULTIPLE, has_attention_kernel};
pub use peak::{Estimate, MOMENT_BLOCK, Peak, SMALLEST_OF_8_BITS, Stage, StepMemory, WORKSPACE, peak, usable};
pub(crate) use peak::{WordLoss, recomputed};

/// Numbers that have one scale in 4 bits, and scales that have one.
const BLOCK: u128 = 64;
const OUTER_BLOCK: u128 = 256;

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
    /// Whether anything of the model is dropped.
    pub drops: bool,
    /// The adapter that is trained instead of the weights.
    pub adapter: Option<AdapterWork>,
}

/// The small matrices beside some layers of a model.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdapterWork {
    pub rank: u128,
    /// Whether some of its input is dropped.
    pub drops: bool,
    /// A bit for each layer of `Architecture::adapts`.
    pub layers: u32,
    /// How the weights of all layers of `Architecture::adapts` are kept, and which these are.
    pub quantize: Quantize,
    pub adapts: Adaptable,
}

impl AdapterWork {
    /// Whether layer number `layer` of `Architecture::adapts` has one.
    pub fn is_beside(&self, layer: usize) -> bool {
        self.layers >> layer & 1 == 1
    }

    /// Bytes of a parameter that is quantized.
    pub fn quantized(&self, parameter: &Parameter) -> Option<u128> {
        let [rows, columns] = *parameter.shape.as_slice() else { return None };
        let layer = parameter.name.strip_suffix(".weight")?;
        let numbers = (rows * columns) as u128;
        let blocks = numbers.div_ceil(BLOCK);
        let bytes = match self.quantize {
            Quantize::None => return None,
            Quantize::Int8 => numbers + rows as u128 * 4,
            // Codes, a scale for each block, and a scale of scales for each block of these, beside their map.
            Quantize::Nf4 => numbers.div_ceil(2) + blocks + blocks.div_ceil(OUTER_BLOCK) * 4 + 256 * 4,
        };
        (parameter.frozen && self.adapts.position(layer).is_some()).then_some(bytes)
    }
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

    /// Bytes of the narrow copy of so many weights that a product makes for a moment. Those beside an adapter are narrow.
    pub fn narrow_copy(&self, weights: u128) -> u128 {
        if self.mixed() && self.adapter.is_none() { weights * self.compute() } else { 0 }
    }

    /// Bytes of so many quantized weights that are made wide for a product.
    pub fn made_wide(&self, weights: u128) -> u128 {
        if self.adapter.is_some_and(|adapter| !adapter.quantize.is_none()) { weights * self.compute() } else { 0 }
    }

    /// So many numbers where the model itself is trained; none where an adapter is.
    pub fn own(&self, numbers: u128) -> u128 {
        if self.adapter.is_none() { numbers } else { 0 }
    }

    /// The numbers of a matrix that are trained: its own, or those of its adapter. `layer` is its number in `Architecture::adapts`.
    pub fn trained(&self, layer: usize, inputs: u128, outputs: u128) -> u128 {
        match self.adapter {
            None => inputs * outputs,
            Some(adapter) if adapter.is_beside(layer) => adapter.rank * (inputs + outputs),
            Some(_) => 0,
        }
    }

    /// The same with a bias, which no adapter has.
    pub fn trained_linear(&self, layer: usize, inputs: u128, outputs: u128) -> u128 {
        self.trained(layer, inputs, outputs) + self.own(outputs)
    }

    /// Whether the input of any of these layers is kept for a gradient as it is: an adapter that drops some of it keeps what is left.
    pub fn keeps_input(&self, layers: &[usize]) -> bool {
        self.adapter.is_none_or(|adapter| !adapter.drops && self.is_any_adapted(layers))
    }

    /// Whether any of these layers has an adapter.
    pub fn is_any_adapted(&self, layers: &[usize]) -> bool {
        self.adapter.is_some_and(|adapter| layers.iter().any(|layer| adapter.is_beside(*layer)))
    }

    /// Bytes that the adapter of a layer keeps of so many rows: what goes through the rank, and its input where some of it is dropped.
    pub fn adapter_keeps(&self, layer: usize, rows: u128, inputs: u128) -> u128 {
        match self.adapter {
            Some(adapter) if adapter.is_beside(layer) => {
                rows * (adapter.rank + if adapter.drops { inputs } else { 0 }) * self.compute()
            }
            _ => 0,
        }
    }

    /// New gradients, where those of the passes before are there already.
    pub fn beside(&self, gradients: u128) -> u128 {
        if self.accum > 1 { gradients } else { 0 }
    }
}

/// For each of them, by its size: the rank that has it. The largest first, each to the rank that has least so far.
pub fn owners(sizes: &[u64], ranks: u32) -> Vec<u32> {
    let mut order: Vec<usize> = (0..sizes.len()).collect();
    order.sort_by_key(|index| (std::cmp::Reverse(sizes[*index]), *index));
    let mut held = vec![0u64; ranks.max(1) as usize];
    let mut owners = vec![0; sizes.len()];
    for index in order {
        let least = (0..held.len()).min_by_key(|rank| held[*rank]).unwrap_or(0);
        held[least] += sizes[index];
        owners[index] = least as u32;
    }
    owners
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_alike() {
        let sizes: Vec<u64> = (1..=40).map(|size| size * size * 1000).collect();
        for ranks in 1..=8 {
            let owners = owners(&sizes, ranks);
            let share =
                |rank: u32| (0..40).filter(|index| owners[*index] == rank).map(|index| sizes[index]).sum::<u64>();
            let (most, least) = ((0..ranks).map(share).max().unwrap(), (0..ranks).map(share).min().unwrap());
            assert!(most - least <= *sizes.last().unwrap() / 10, "{ranks} ranks: {most} and {least}");
        }
        assert_eq!(owners(&[5, 9, 1], 1), [0, 0, 0]);
        assert_eq!(owners(&[5, 9, 1], 2), [1, 0, 1]);
        assert_eq!(owners(&[5], 3), [0], "more ranks than parameters");
    }
}

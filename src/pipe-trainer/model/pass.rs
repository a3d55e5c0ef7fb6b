//! One pass through a model: what every layer of it has in common, what dropout drops, and kinds.
//!
//! How a model is built: what its weights start from, and what it computes in.

use std::cell::Cell;
use std::sync::{Arc, Mutex, PoisonError};

use pipe_model::adapter::Lora;
use pipe_spec::pipeline::{Checkpointing, Precision, Preference, Train};
use tch::{Device, Kind, Tensor};

use super::quantized::QuantizedLayers;
use crate::data::Packed;
use crate::error::TrainerError;
use crate::random::{self, Purpose};
use crate::storage::TensorFiles;
use crate::torch::{self, Dropped};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// With dropout.
    Train(Drawn),
    /// Without.
    Eval,
    /// Without, and without the adapter: the model as it was before it was adapted.
    Reference,
}

/// How a part is computed. What dropout draws in it is a function of seed, first sample and the dropout in the model, and of nothing else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Drawn {
    /// Seed of the step.
    pub seed: u64,
    /// Where the first sample of the part stands in the step.
    pub first_sample: u32,
    /// Where the kernels of a CUDA graph find the keys, each time that it is launched.
    pub keys: Option<&'static DropoutKeys>,
    /// Whether blocks are computed again for the backward pass, where the model does not do so anyway.
    pub recomputes: bool,
}

impl Drawn {
    pub fn new(seed: u64, first_sample: u32) -> Self {
        Self { seed, first_sample, keys: None, recomputes: false }
    }

    /// The key of the thing that is dropped in a block after `count` others.
    pub fn key(&self, block: u64, count: u64) -> u64 {
        random::derived(Purpose::Dropout, self.seed, &[block, count])
    }
}

#[derive(Clone, Copy)]
pub struct Pass {
    pub dropout: f64,
    /// Absent when nothing is dropped.
    pub drawn: Option<Drawn>,
    /// The kind that matrix products are computed in.
    pub compute: Kind,
    pub checkpointing: bool,
    /// Whether adapters are added.
    pub adapts: bool,
    /// The number of the block that is being computed.
    pub block: u64,
    /// Where samples are packed: the address of the places of their tokens, as in `Dropped`.
    pub tokens: u64,
}

thread_local! {
    /// How often something was dropped in the block that this thread computes.
    static DROPS: Cell<u64> = const { Cell::new(0) };
}

impl Pass {
    pub fn new(mode: Mode, dropout: f64, setup: &Setup) -> Self {
        let (compute, checkpointing) = (setup.kinds.compute, setup.checkpointing);
        // An adapter drops where the model itself may not.
        let most = setup.adapter.map_or(dropout, |adapter| dropout.max(adapter.dropout));
        match mode {
            Mode::Train(drawn) => {
                let checkpointing = checkpointing || drawn.recomputes;
                Self {
                    dropout,
                    drawn: Some(drawn).filter(|_| most > 0.0),
                    compute,
                    checkpointing,
                    adapts: true,
                    block: 0,
                    tokens: 0,
                }
            }
            Mode::Eval => Self::quiet(compute),
            Mode::Reference => Self { adapts: false, ..Self::quiet(compute) },
        }
    }

    /// Nothing is dropped, and all is computed in `kind`.
    pub fn quiet(kind: Kind) -> Self {
        Self { dropout: 0.0, drawn: None, compute: kind, checkpointing: false, adapts: true, block: 0, tokens: 0 }
    }

    /// Dropouts are counted anew in each block, so that a block that is recomputed drops the same.
    pub fn for_block(self, block: u64) -> Self {
        DROPS.set(0);
        Self { block, ..self }
    }

    /// The same pass through packed samples, or through a row for each. Their tensors live until the gradient is computed, as inputs of blocks do.
    pub fn through(self, packed: Option<Packed<'_>>) -> Self {
        Self { tokens: packed.map_or(0, |packed| packed.places.data_ptr() as u64), ..self }
    }

    /// The same pass with another share dropped.
    pub fn dropping(self, dropout: f64) -> Self {
        Self { dropout, ..self }
    }

    /// The key of the next dropout in this block: a dropout of the model is a block and how often something was dropped in it before.
    pub fn dropped(self) -> Dropped {
        match self.drawn {
            Some(drawn) if self.dropout > 0.0 => {
                let count = DROPS.replace(DROPS.get() + 1);
                let place = drawn.keys.map_or(0, |keys| keys.address_of(self.block, count));
                let key = drawn.key(self.block, count);
                Dropped { share: self.dropout, key, first_sample: drawn.first_sample, place, tokens: self.tokens }
            }
            _ => Dropped::NOTHING,
        }
    }

    /// `input` has samples first and features last.
    pub fn drop_out(self, input: &Tensor) -> Result<Tensor, TrainerError> {
        match self.dropped() {
            Dropped::NOTHING => Ok(input.shallow_clone()),
            dropped => Ok(torch::drop_add(input, None, dropped)?),
        }
    }

    /// The same for [rows, features] that all samples of the step share.
    pub fn drop_out_shared(self, input: &Tensor) -> Result<Tensor, TrainerError> {
        match self.dropped() {
            Dropped::NOTHING => Ok(input.shallow_clone()),
            dropped if dropped.place != 0 => {
                let message = "a CUDA graph of a model that drops the same in all samples".to_owned();
                Err(TrainerError::Panic { message })
            }
            dropped => {
                let dropped = Dropped { first_sample: 0, tokens: 0, ..dropped };
                Ok(torch::drop_add(&input.f_unsqueeze(0)?, None, dropped)?.f_squeeze_dim(0)?)
            }
        }
    }

    /// A layer's output, some of it dropped, added to `residual`, in whose kind the sum is.
    pub fn drop_add(self, output: &Tensor, residual: &Tensor) -> Result<Tensor, TrainerError> {
        if output.device().is_cuda() {
            return Ok(torch::drop_add(output, Some(residual), self.dropped())?);
        }
        Ok(residual.f_add(&self.drop_out(output)?)?)
    }

    pub fn linear(self, input: &Tensor, weight: &Tensor, bias: Option<&Tensor>) -> Result<Tensor, TrainerError> {
        match weight.kind() == self.compute {
            true => {
                let bias = bias.map(|bias| bias.f_to_kind(self.compute)).transpose()?;
                Ok(input.f_linear(weight, bias.as_ref())?)
            }
            false => Ok(torch::linear(input, weight, bias)?),
        }
    }

    /// The input of the first block. Beside an adapter nothing before it is trained; with a gradient of its own that block too is recomputed
    /// instead of being kept.
    pub fn first_input(self, hidden: Tensor) -> Result<Tensor, TrainerError> {
        match self.checkpointing && !hidden.requires_grad() {
            true => Ok(hidden.f_detach()?.f_set_requires_grad(true)?),
            false => Ok(hidden),
        }
    }

    /// `block` number `number` of `inputs`, the first of which is what flows through the model. With checkpointing what it
    /// computes inside is discarded, and recomputed for its gradient.
    pub fn block<B: Block + 'static>(
        self,
        block: &Arc<B>,
        number: u64,
        inputs: &[&Tensor],
    ) -> Result<Tensor, TrainerError> {
        // Where nothing that goes in has a gradient, recomputing would not be asked for.
        if !self.checkpointing || inputs.iter().all(|input| !input.requires_grad()) {
            return block.forward(inputs, self.for_block(number));
        }
        let block = Arc::clone(block);
        let again = move |inputs: &[&Tensor]| block.forward(inputs, self.for_block(number));
        Ok(torch::checkpoint(inputs, again)?)
    }
}

/// A piece of a model that can be computed a second time, on the thread of the backward pass.
pub trait Block: Send + Sync {
    fn forward(&self, inputs: &[&Tensor], pass: Pass) -> Result<Tensor, TrainerError>;
}

/// The keys of dropout in the memory of a card: a CUDA graph is launched again with other ones, which its kernels read there.
///
/// Where the keys lie, [ROWS, 2] of 64 bits each, and of which dropouts of the model they are. Each row is the key of a dropout and
/// where the first sample of the part stands in its step.
#[derive(Debug)]
pub struct DropoutKeys {
    address: u64,
    /// By row: the block, and how often something was dropped in it before.
    dropouts: Mutex<Vec<(u64, u64)>>,
}

/// Each is itself alone.
impl PartialEq for DropoutKeys {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self, other)
    }
}

impl Eq for DropoutKeys {}

impl DropoutKeys {
    /// Dropouts that a model may have.
    pub const ROWS: usize = 2048;

    const ROW_BYTES: u64 = 16;

    pub fn new(address: u64) -> Self {
        Self { address, dropouts: Mutex::default() }
    }

    /// Where the key of a dropout lies. A model with more dropouts than rows is told by `are_too_many`.
    pub fn address_of(&self, block: u64, count: u64) -> u64 {
        let mut dropouts = self.dropouts.lock().unwrap_or_else(PoisonError::into_inner);
        let row = dropouts.iter().position(|known| *known == (block, count)).unwrap_or_else(|| {
            dropouts.push((block, count));
            dropouts.len() - 1
        });
        self.address + row.min(Self::ROWS - 1) as u64 * Self::ROW_BYTES
    }

    pub fn are_too_many(&self) -> bool {
        self.dropouts.lock().unwrap_or_else(PoisonError::into_inner).len() > Self::ROWS
    }

    /// All rows so far, for a part of a step.
    pub fn rows(&self, drawn: Drawn) -> Vec<i64> {
        let dropouts = self.dropouts.lock().unwrap_or_else(PoisonError::into_inner);
        let row = |(block, count): &(u64, u64)| [drawn.key(*block, *count).cast_signed(), drawn.first_sample.into()];
        dropouts.iter().flat_map(row).collect()
    }
}

#[cfg(test)]
mod dropout_keys_tests {
    use super::*;

    #[test]
    fn every_place_has_a_row_of_its_own() {
        let keys = DropoutKeys::new(4096);
        let addresses = [(1, 0), (1, 1), (2, 0), (1, 1)].map(|(block, count)| keys.address_of(block, count));
        assert_eq!(addresses, [4096, 4112, 4128, 4112]);
        let drawn = Drawn::new(7, 12);
        let key = |block, count| drawn.key(block, count).cast_signed();
        assert_eq!(keys.rows(drawn), [key(1, 0), 12, key(1, 1), 12, key(2, 0), 12]);
        assert!(!keys.are_too_many());
        (0..DropoutKeys::ROWS as u64).for_each(|block| assert!(keys.address_of(block, 9) >= 4096));
        assert!(keys.are_too_many());
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kinds {
    /// Weights, their gradients and the optimizer's moments.
    pub weights: Kind,
    /// Matrix products and attention. Where it is narrower than the weights, what is added up along the layers stays wide.
    pub compute: Kind,
}

impl Kinds {
    pub const FP32: Self = Self { weights: Kind::Float, compute: Kind::Float };

    pub fn of(precision: Precision) -> Self {
        match precision {
            Precision::Fp32 | Precision::Tf32 => Self::FP32,
            Precision::Bf16 => Self { weights: Kind::BFloat16, compute: Kind::BFloat16 },
            Precision::Bf16Mixed => Self { weights: Kind::Float, compute: Kind::BFloat16 },
            Precision::Fp16Mixed => Self { weights: Kind::Float, compute: Kind::Half },
        }
    }
}

/// Added to the score of what must not be seen: about the least number of the kind.
pub fn hidden_score(kind: Kind) -> f64 {
    match kind {
        Kind::Half => -6.0e4,
        Kind::BFloat16 => -3.0e38,
        _ => f64::from(f32::MIN),
    }
}

/// The start of a model's weights.
pub enum Start<'a> {
    Random {
        seed: u64,
    },
    /// Trained weights; what may be missing there is drawn with the seed.
    Tensors {
        files: &'a TensorFiles,
        seed: u64,
    },
}

/// How a model is to compute, whatever it is.
#[derive(Clone, Copy)]
pub struct Setup {
    /// Instead of what the config says.
    pub dropout: Option<f64>,
    pub device: Device,
    pub kinds: Kinds,
    /// Whether what a block computes inside is thrown away and recomputed for its gradient.
    pub checkpointing: bool,
    /// The adapter that is trained in place of the weights.
    pub adapter: Option<&'static Lora>,
    /// The layers whose weights are quantized.
    pub quantized: QuantizedLayers,
    /// The loss of pairs of answers, for a training on them.
    pub preference: Preference,
}

impl Setup {
    pub fn of(train: &Train, device: Device) -> Self {
        let kinds = Kinds::of(train.precision);
        Self {
            dropout: train.dropout,
            device,
            kinds,
            checkpointing: train.checkpointing == Checkpointing::On,
            adapter: None,
            quantized: QuantizedLayers::NONE,
            preference: train.preference.unwrap_or_default(),
        }
    }

    /// fp32 on the CPU, as the config says.
    pub fn plain() -> Self {
        Self {
            dropout: None,
            device: Device::Cpu,
            kinds: Kinds::FP32,
            checkpointing: false,
            adapter: None,
            quantized: QuantizedLayers::NONE,
            preference: Preference::default(),
        }
    }
}

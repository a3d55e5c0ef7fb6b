//! One pass through a model: what every layer of it has in common, dropout and kinds.

use std::cell::Cell;
use std::sync::Arc;

use tch::{Kind, Tensor};

use super::interface::{Drawn, Mode};
use super::setup::Setup;
use crate::error::TrainerError;
use crate::torch::{self, Dropped};

#[derive(Clone, Copy)]
pub struct Pass {
    pub dropout: f64,
    /// Absent when nothing is dropped.
    pub drawn: Option<Drawn>,
    /// The kind that matrix products are computed in.
    pub compute: Kind,
    pub checkpointing: bool,
    /// The number of the block that is being computed.
    pub block: u64,
}

thread_local! {
    /// How often something was dropped in the block that this thread computes.
    static DROPS: Cell<u64> = const { Cell::new(0) };
}

impl Pass {
    pub fn new(mode: Mode, dropout: f64, setup: &Setup) -> Self {
        let (compute, checkpointing) = (setup.kinds.compute, setup.checkpointing);
        match mode {
            Mode::Train(drawn) => {
                let checkpointing = checkpointing || drawn.recomputes;
                Self { dropout, drawn: Some(drawn).filter(|_| dropout > 0.0), compute, checkpointing, block: 0 }
            }
            Mode::Eval => Self::quiet(compute),
        }
    }

    /// Nothing is dropped, and all is computed in `kind`.
    pub fn quiet(kind: Kind) -> Self {
        Self { dropout: 0.0, drawn: None, compute: kind, checkpointing: false, block: 0 }
    }

    /// What is dropped is counted in each block anew, so that a block that is recomputed drops the same.
    pub fn for_block(self, block: u64) -> Self {
        DROPS.set(0);
        Self { block, ..self }
    }

    /// The same pass with another share dropped.
    pub fn dropping(self, dropout: f64) -> Self {
        Self { dropout, ..self }
    }

    /// What is dropped next in this block: a place in the model is a block and how often something was dropped in it before.
    pub fn dropped(self) -> Dropped {
        match self.drawn {
            Some(drawn) if self.dropout > 0.0 => {
                let count = DROPS.replace(DROPS.get() + 1);
                let place = drawn.keys.map_or(0, |keys| keys.address_of(self.block, count));
                let key = drawn.key(self.block, count);
                Dropped { share: self.dropout, key, first_sample: drawn.first_sample, place }
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
                let dropped = Dropped { first_sample: 0, ..dropped };
                Ok(torch::drop_add(&input.f_unsqueeze(0)?, None, dropped)?.f_squeeze_dim(0)?)
            }
        }
    }

    /// What a layer gave, some of it dropped, added to `residual`, in whose kind the sum is.
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

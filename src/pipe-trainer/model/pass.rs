//! One pass through a model: what every layer of it has in common, dropout and kinds.

use std::sync::Arc;

use tch::{Kind, Tensor};

use super::{Mode, Setup};
use crate::error::TrainerError;
use crate::random::{self, Purpose};
use crate::torch;

#[derive(Clone, Copy)]
pub struct Pass {
    pub dropout: f64,
    /// Absent when nothing is dropped.
    pub seed: Option<u64>,
    /// The kind that matrix products are computed in.
    pub compute: Kind,
    pub checkpointing: bool,
}

impl Pass {
    pub fn new(mode: Mode, dropout: f64, setup: &Setup) -> Self {
        let (compute, checkpointing) = (setup.kinds.compute, setup.checkpointing);
        match mode {
            Mode::Train { seed } => {
                Self { dropout, seed: Some(seed).filter(|_| dropout > 0.0), compute, checkpointing }
            }
            Mode::Eval => Self { dropout: 0.0, seed: None, compute, checkpointing: false },
        }
    }

    /// Random numbers begin anew in each block, so that one that is computed again drops the same.
    pub fn for_block(self, block: u64) -> Self {
        if let Some(seed) = self.seed {
            random::seed_torch(Purpose::Dropout, seed, &[block]);
        }
        self
    }

    /// The same pass with another share dropped.
    pub fn dropping(self, dropout: f64) -> Self {
        Self { dropout, ..self }
    }

    pub fn drop_out(self, input: &Tensor) -> Result<Tensor, TrainerError> {
        match self.seed {
            Some(_) if self.dropout > 0.0 => Ok(input.f_dropout(self.dropout, true)?),
            _ => Ok(input.shallow_clone()),
        }
    }

    /// The share that attention drops of its weights.
    pub fn attention_dropout(self) -> f64 {
        if self.seed.is_some() { self.dropout } else { 0.0 }
    }

    pub fn linear(self, input: &Tensor, weight: &Tensor, bias: Option<&Tensor>) -> Result<Tensor, TrainerError> {
        let bias = bias.map(|bias| bias.f_to_kind(self.compute)).transpose()?;
        Ok(input.f_linear(&weight.f_to_kind(self.compute)?, bias.as_ref())?)
    }

    /// `block` number `number` of `inputs`, the first of which is what flows through the model. With checkpointing what it
    /// computes inside is thrown away, and computed again for its gradient.
    pub fn block<B: Block + 'static>(
        self,
        block: &Arc<B>,
        number: u64,
        inputs: &[&Tensor],
    ) -> Result<Tensor, TrainerError> {
        if !self.checkpointing {
            return block.forward(inputs, self.for_block(number));
        }
        let block = Arc::clone(block);
        let again = move |inputs: &[&Tensor]| block.forward(inputs, self.for_block(number));
        Ok(torch::checkpoint(inputs, again)?)
    }
}

/// A piece of a model that can be computed a second time.
pub trait Block {
    fn forward(&self, inputs: &[&Tensor], pass: Pass) -> Result<Tensor, TrainerError>;
}

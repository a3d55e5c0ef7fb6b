//! The optimizer that a training asks for.

use pipe_spec::pipeline::{OptimizerKind, Train};
use tch::{TchError, Tensor};

use super::adafactor::Adafactor;
use super::adamw::AdamW;
use super::adamw_8bit::AdamW8Bit;
use super::share::Share;
use crate::error::TrainerError;
use crate::model::Weights;
use crate::storage::TensorFiles;

pub enum Optimizer {
    AdamW(AdamW),
    AdamW8Bit(AdamW8Bit),
    Adafactor(Adafactor),
}

impl Optimizer {
    /// The prefixes of the names of `tensors`, in their order.
    pub const KINDS: [&str; 7] =
        ["exp_avg", "exp_avg_sq", "exp_avg_scales", "exp_avg_sq_scales", "row", "column", "square"];

    /// An optimizer for the parameters of a share.
    pub fn new(train: &Train, weights: &Weights, share: &Share) -> Result<Self, TrainerError> {
        match train.optimizer.kind {
            OptimizerKind::Adamw => AdamW::new(train, weights, share).map(Self::AdamW),
            OptimizerKind::Adamw8bit => AdamW8Bit::new(train, weights, share).map(Self::AdamW8Bit),
            OptimizerKind::Adafactor => Adafactor::new(train, weights, share).map(Self::Adafactor),
        }
    }

    /// Restores the tensors that `tensors` gave, as far as they belong to a share.
    pub fn load(train: &Train, weights: &Weights, share: &Share, files: &TensorFiles) -> Result<Self, TrainerError> {
        match train.optimizer.kind {
            OptimizerKind::Adamw => AdamW::load(train, weights, share, files).map(Self::AdamW),
            OptimizerKind::Adamw8bit => AdamW8Bit::load(train, weights, share, files).map(Self::AdamW8Bit),
            OptimizerKind::Adafactor => Adafactor::load(train, weights, share, files).map(Self::Adafactor),
        }
    }

    /// All that it remembers of its share between updates, by name.
    pub fn tensors(&self) -> Vec<(String, &Tensor)> {
        match self {
            Self::AdamW(adamw) => adamw.tensors(),
            Self::AdamW8Bit(adamw) => adamw.tensors(),
            Self::Adafactor(adafactor) => adafactor.tensors(),
        }
    }

    /// Allocates for a moment what an update allocates, and changes nothing.
    pub fn rehearse(&self, weights: &Weights) -> Result<(), TchError> {
        match self {
            // In place.
            Self::AdamW(_) | Self::AdamW8Bit(_) => Ok(()),
            Self::Adafactor(_) => Adafactor::rehearse(weights),
        }
    }

    /// One update of its share, the `step`th, counted from 1, with the gradients times `scale`. An error leaves some parameters updated
    /// and others not.
    pub fn update(
        &mut self,
        weights: &Weights,
        gradients: &[Tensor],
        scale: &Tensor,
        lr: f64,
        step: u64,
    ) -> Result<(), TchError> {
        match self {
            Self::AdamW(adamw) => adamw.update(weights, gradients, scale, lr, step),
            Self::AdamW8Bit(adamw) => adamw.update(weights, gradients, scale, lr, step),
            Self::Adafactor(adafactor) => adafactor.update(weights, gradients, scale, lr, step),
        }
    }
}

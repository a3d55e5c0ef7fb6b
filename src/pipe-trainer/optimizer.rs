//! The optimizer that a training asks for.

use pipe_spec::pipeline::{Decay, OptimizerKind, Train};
use tch::{TchError, Tensor};

use crate::adafactor::Adafactor;
use crate::adamw::AdamW;
use crate::error::TrainerError;
use crate::tensor_files::TensorFiles;
use crate::weights::Weights;

pub enum Optimizer {
    AdamW(AdamW),
    Adafactor(Adafactor),
}

impl Optimizer {
    pub fn new(train: &Train, weights: &Weights) -> Result<Self, TrainerError> {
        match train.optimizer.kind {
            OptimizerKind::Adamw => AdamW::new(train, weights).map(Self::AdamW),
            OptimizerKind::Adafactor => Adafactor::new(train, weights).map(Self::Adafactor),
        }
    }

    /// What `tensors` wrote.
    pub fn load(train: &Train, weights: &Weights, files: &TensorFiles) -> Result<Self, TrainerError> {
        match train.optimizer.kind {
            OptimizerKind::Adamw => AdamW::load(train, weights, files).map(Self::AdamW),
            OptimizerKind::Adafactor => Adafactor::load(train, weights, files).map(Self::Adafactor),
        }
    }

    /// All that it remembers between updates, by name.
    pub fn tensors(&self) -> Vec<(String, &Tensor)> {
        match self {
            Self::AdamW(adamw) => adamw.tensors(),
            Self::Adafactor(adafactor) => adafactor.tensors(),
        }
    }

    /// Holds for a moment what an update holds beside what is there already, and changes nothing.
    pub fn rehearse(&self, weights: &Weights) -> Result<(), TchError> {
        match self {
            // In place.
            Self::AdamW(_) => Ok(()),
            Self::Adafactor(_) => Adafactor::rehearse(weights),
        }
    }

    /// One update, the `step`th, counted from 1, with the gradients times `scale`. An error leaves some parameters updated
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
            Self::Adafactor(adafactor) => adafactor.update(weights, gradients, scale, lr, step),
        }
    }
}

/// Whether weight decay applies to the parameter `name`. Biases of several blocks are one tensor of two dimensions.
pub fn decays(decay: Decay, name: &str, parameter: &Tensor) -> bool {
    decay == Decay::All || (parameter.dim() >= 2 && !name.ends_with(".bias"))
}

#[cfg(test)]
mod tests {
    use tch::{Device, Kind};

    use super::*;

    #[test]
    fn biases_and_norms_do_not_decay_with_matrices() {
        let tensor = |shape: &[i64]| Tensor::zeros(shape, (Kind::Float, Device::Cpu));
        let cases: [(&str, &[i64], bool); 5] = [
            ("fc1.weight", &[4, 2], true),
            ("fc1.bias", &[4], false),
            ("ln.weight", &[2], false),
            ("blocks.qkv.bias", &[3, 12], false),
            ("relative_attention_bias.weight", &[8, 2], true),
        ];
        for (name, shape, want) in cases {
            assert_eq!(decays(Decay::Matrices, name, &tensor(shape)), want, "{name}");
            assert!(decays(Decay::All, name, &tensor(shape)), "{name}");
        }
    }
}

//! Batch norm: in training by the mean and variance of the batch, which it also remembers; otherwise by what it remembers.

use std::cell::RefCell;

use tch::{Kind, Tensor};

use crate::error::TrainerError;
use crate::model::weights::Weights;

const EPSILON: f64 = 1e-5;
const MOMENTUM: f64 = 0.1;

pub struct BatchNorm {
    weight: Tensor,
    bias: Tensor,
    remembered: Statistics,
    /// What the step that is under way has seen, if it has seen anything.
    seen: RefCell<Option<Statistics>>,
}

struct Statistics {
    mean: Tensor,
    var: Tensor,
    batches: Tensor,
}

impl BatchNorm {
    pub fn new(weights: &Weights, path: &str) -> Self {
        let of = |name: &str| weights.get(&format!("{path}.{name}"));
        let remembered =
            Statistics { mean: of("running_mean"), var: of("running_var"), batches: of("num_batches_tracked") };
        Self { weight: of("weight"), bias: of("bias"), remembered, seen: RefCell::new(None) }
    }

    /// [batch, channels, time], in the kind of the input; inside in fp32.
    pub fn forward(&self, input: &Tensor, training: bool) -> Result<Tensor, TrainerError> {
        let (weight, bias) = (self.weight.f_to_kind(Kind::Float)?, self.bias.f_to_kind(Kind::Float)?);
        let norm = |by: &Statistics| {
            let (mean, var) = (Some(&by.mean), Some(&by.var));
            input.f_batch_norm(Some(&weight), Some(&bias), mean, var, training, MOMENTUM, EPSILON, true)
        };
        if !training {
            return Ok(norm(&self.remembered)?);
        }
        // A copy each time: the graph of the batch before still holds the one it was computed with.
        let seen = self.seen.borrow_mut().take().as_ref().unwrap_or(&self.remembered).copy()?;
        let normed = norm(&seen)?;
        let _ = seen.batches.shallow_clone().f_add_scalar_(1)?;
        *self.seen.borrow_mut() = Some(seen);
        Ok(normed)
    }

    /// Remembers what the step has seen, or forgets it.
    pub fn step_ended(&self, done: bool) -> Result<(), TrainerError> {
        match self.seen.borrow_mut().take() {
            Some(seen) if done => self.remembered.become_like(&seen),
            _ => Ok(()),
        }
    }
}

impl Statistics {
    fn copy(&self) -> Result<Self, TrainerError> {
        let copy = |tensor: &Tensor| -> Result<Tensor, TrainerError> {
            let mut copy = tensor.f_empty_like()?;
            copy.f_copy_(tensor)?;
            Ok(copy)
        };
        Ok(Self { mean: copy(&self.mean)?, var: copy(&self.var)?, batches: copy(&self.batches)? })
    }

    fn become_like(&self, other: &Self) -> Result<(), TrainerError> {
        for (own, others) in [(&self.mean, &other.mean), (&self.var, &other.var), (&self.batches, &other.batches)] {
            own.shallow_clone().f_copy_(others)?;
        }
        Ok(())
    }
}

//! Batch norm, for whatever lies behind the channels: times of a series, pixels of a picture.

use std::cell::{Cell, RefCell};

use tch::{Kind, TchError, Tensor};

use super::weights::{SharedTensor, Weights};
use crate::error::TrainerError;
use crate::ranks::SharedSum;

/// Why a training with batch norm is not the same with another batch.
pub const DEPENDS_ON_BATCH: &str = "batch norm takes the mean and variance of each batch by itself";

/// Those of torch.
const MOMENTUM: f64 = 0.1;
const EPSILON: f64 = 1e-5;

/// Batch norm: in training by the mean and variance of the batch, which it also remembers; otherwise by what it remembers.
pub struct BatchNorm {
    weight: SharedTensor,
    bias: SharedTensor,
    remembered: Statistics,
    /// Statistics that the step under way has seen, if it has seen anything.
    seen: RefCell<Option<Statistics>>,
    /// Where several ranks have a batch together.
    shared: Cell<Option<&'static SharedSum>>,
}

struct Statistics {
    mean: Tensor,
    var: Tensor,
    batches: Tensor,
}

impl BatchNorm {
    pub fn new(weights: &Weights, path: &str) -> Self {
        let of = |name: &str| weights.get(&format!("{path}.{name}"));
        let [mean, var, batches] =
            ["running_mean", "running_var", "num_batches_tracked"].map(|name| of(name).shallow_clone());
        let remembered = Statistics { mean, var, batches };
        Self { weight: of("weight"), bias: of("bias"), remembered, seen: RefCell::new(None), shared: Cell::new(None) }
    }

    /// [batch, channels, ...], in the kind of the input; inside in fp32. A single value for each channel has no variance: it is normed
    /// by what is remembered.
    pub fn forward(&self, input: &Tensor, training: bool) -> Result<Tensor, TrainerError> {
        let training = training && (self.shared.get().is_some() || values_of_a_channel(input) > 1);
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
        let normed = match self.shared.get() {
            None => norm(&seen)?,
            Some(shared) => norm_shared(input, &weight, &bias, &seen, shared)?,
        };
        let _ = seen.batches.shallow_clone().f_add_scalar_(1)?;
        *self.seen.borrow_mut() = Some(seen);
        Ok(normed)
    }

    /// From now on a batch is that of all ranks together.
    pub fn share_statistics(&self, sum: &'static SharedSum) {
        self.shared.set(Some(sum));
    }

    /// Remembers what the step has seen, or forgets it.
    pub fn step_ended(&self, done: bool) -> Result<(), TrainerError> {
        match self.seen.borrow_mut().take() {
            Some(seen) if done => self.remembered.become_like(&seen),
            _ => Ok(()),
        }
    }
}

fn values_of_a_channel(input: &Tensor) -> i64 {
    let size = input.size();
    size[0] * size[2..].iter().product::<i64>()
}

/// By mean and variance of the batches of all ranks, which `seen` takes in.
fn norm_shared(
    input: &Tensor,
    weight: &Tensor,
    bias: &Tensor,
    seen: &Statistics,
    shared: &'static SharedSum,
) -> Result<Tensor, TrainerError> {
    let wide = input.f_to_kind(Kind::Float)?;
    // [1, channels, 1, ...]
    let others: Vec<i64> = (0..input.dim() as i64).filter(|dimension| *dimension != 1).collect();
    let total = |of: &Tensor| of.f_sum_dim_intlist(others.as_slice(), true, Kind::Float);
    let own = if shared.is_silent() { 0.0 } else { 1.0 };
    let count = Tensor::f_full([1], own * values_of_a_channel(input) as f64, (Kind::Float, input.device()))?;
    let count = shared.of(&count)?.f_detach()?;
    let mean = shared.of(&total(&wide)?.f_mul_scalar(own)?)?.f_div(&count)?;
    let apart = wide.f_sub(&mean)?;
    let var = shared.of(&total(&apart.f_square()?)?.f_mul_scalar(own)?)?.f_div(&count)?;
    tch::no_grad(|| {
        let unbiased = var.f_mul(&count)?.f_div(&count.f_sub_scalar(1.0)?.f_clamp_min(1.0)?)?;
        for (seen, found) in [(&seen.mean, &mean), (&seen.var, &unbiased)] {
            let _ = seen.shallow_clone().f_lerp_(&found.f_reshape([-1i64])?, MOMENTUM)?;
        }
        Ok::<_, TchError>(())
    })?;
    let wide_shape = |of: &Tensor| of.f_reshape(mean.size().as_slice());
    let normed = apart.f_mul(&var.f_add_scalar(EPSILON)?.f_rsqrt()?)?;
    Ok(normed.f_mul(&wide_shape(weight)?)?.f_add(&wide_shape(bias)?)?.f_to_kind(input.kind())?)
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

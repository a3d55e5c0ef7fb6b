//! How weights are updated: the optimizer that a training asks for, the parameters that a rank updates and those of them that decay, the
//! learning rate of each step, and the scale of the loss in fp16. Knows no data.

mod adafactor;
mod adamw;
mod adamw_8bit;

use std::f64::consts::PI;

use adafactor::Adafactor;
use adamw::AdamW;
use adamw_8bit::AdamW8Bit;
use pipe_model::memory;
use pipe_spec::pipeline::{Decay, OptimizerKind, Precision, Schedule, ScheduleKind, Train};
use pipe_spec::trainer::Rank;
use serde::{Deserialize, Serialize};
use tch::{TchError, Tensor};

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

/// The trained parameters that a rank updates, by their order: all of them, unless the optimizer's state is shared out.
pub struct Share {
    rank: u32,
    /// The rank that updates each; absent where every rank does.
    owners: Option<Vec<i32>>,
}

impl Share {
    pub fn of(train: &Train, rank: Rank, weights: &Weights) -> Self {
        let shared = rank.count > 1 && !train.shard.is_none();
        let sizes: Vec<u64> = weights.trained().map(|(_, tensor)| tensor.numel() as u64).collect();
        let owners = shared.then(|| memory::owners(&sizes, rank.count).into_iter().map(u32::cast_signed).collect());
        Self { rank: rank.index, owners }
    }

    /// All of them.
    #[cfg(test)]
    pub fn whole() -> Self {
        Self { rank: 0, owners: None }
    }

    /// Whether this rank updates the parameter with this number.
    pub fn has(&self, index: usize) -> bool {
        self.owners.as_ref().is_none_or(|owners| owners[index].cast_unsigned() == self.rank)
    }

    /// The rank that updates each parameter, where they are shared out.
    pub fn owners(&self) -> Option<&[i32]> {
        self.owners.as_deref()
    }
}

/// Whether weight decay applies to the parameter `name`. Biases of several blocks are one tensor of two dimensions.
pub fn decays(decay: Decay, name: &str, parameter: &Tensor) -> bool {
    decay == Decay::All || (parameter.dim() >= 2 && !name.ends_with(".bias"))
}

/// The factor of the learning rate in step `step`, counted from 0, of `total`: as transformers'
/// `get_*_schedule_with_warmup`.
pub fn factor(schedule: &Schedule, step: u64, total: u64) -> f64 {
    let warmup = schedule.warmup.steps(total);
    if step < warmup {
        return step as f64 / warmup.max(1) as f64;
    }
    let rest = total.saturating_sub(warmup).max(1) as f64;
    let done = (step - warmup) as f64 / rest;
    match schedule.kind {
        ScheduleKind::Constant => 1.0,
        ScheduleKind::Linear => (1.0 - done).max(0.0),
        ScheduleKind::Cosine => (0.5 * (1.0 + (PI * done).cos())).max(0.0),
    }
}

/// Dynamic loss scaling for fp16 (Micikevicius et al., 2018): gradients too small for fp16 are scaled up, as far as
/// possible.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct LossScale {
    pub factor: f64,
    /// Steps since it last changed.
    steady: u32,
}

impl LossScale {
    /// As torch.amp.GradScaler.
    const FIRST: f64 = 65536.0;
    const GROW_AFTER: u32 = 2000;

    /// fp16 needs it, nothing else does.
    pub fn new(precision: Precision) -> Option<Self> {
        (precision == Precision::Fp16Mixed).then_some(Self { factor: Self::FIRST, steady: 0 })
    }

    /// After a step whose gradients were finite.
    pub fn succeeded(&mut self) {
        self.steady += 1;
        if self.steady == Self::GROW_AFTER {
            *self = Self { factor: self.factor * 2.0, steady: 0 };
        }
    }

    /// After gradients that were not. Whether the step is to be repeated.
    pub fn overflowed(&mut self) -> bool {
        *self = Self { factor: self.factor / 2.0, steady: 0 };
        self.factor >= 1.0
    }
}

#[cfg(test)]
mod tests {
    use pipe_spec::pipeline::Warmup;
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

    #[test]
    fn a_share_of_the_steps_is_the_same_as_those_steps() {
        for kind in [ScheduleKind::Constant, ScheduleKind::Linear, ScheduleKind::Cosine] {
            let of = |warmup| (0..10).map(|step| factor(&Schedule { kind, warmup }, step, 10)).collect::<Vec<_>>();
            assert_eq!(of(Warmup::Share(0.31)), of(Warmup::Steps(4)));
            assert_eq!(of(Warmup::Share(0.0)), of(Warmup::Steps(0)));
        }
    }

    #[test]
    fn factors_by_hand() {
        let cases = [
            (ScheduleKind::Constant, 0, 0, 1.0),
            (ScheduleKind::Constant, 4, 0, 0.0),
            (ScheduleKind::Constant, 4, 1, 0.25),
            (ScheduleKind::Constant, 4, 9, 1.0),
            (ScheduleKind::Linear, 0, 0, 1.0),
            (ScheduleKind::Linear, 2, 1, 0.5),
            (ScheduleKind::Linear, 2, 2, 1.0),
            (ScheduleKind::Linear, 2, 6, 0.5),
            (ScheduleKind::Linear, 2, 9, 0.125),
            (ScheduleKind::Cosine, 2, 2, 1.0),
            (ScheduleKind::Cosine, 2, 4, 0.853_553_390_593_273_7),
            (ScheduleKind::Cosine, 2, 6, 0.5),
            (ScheduleKind::Cosine, 2, 10, 0.0),
        ];
        for (kind, warmup, step, want) in cases {
            let found = factor(&Schedule { kind, warmup: Warmup::Steps(warmup) }, step, 10);
            assert!((found - want).abs() < 1e-12, "{kind:?} warmup {warmup} step {step}: {found}");
        }
    }

    #[test]
    fn falls_at_once_and_grows_slowly() {
        assert_eq!(LossScale::new(Precision::Bf16), None);
        let mut scale = LossScale::new(Precision::Fp16Mixed).unwrap();
        assert!(scale.overflowed());
        assert_eq!(scale.factor, 32768.0);
        (0..2000).for_each(|_| scale.succeeded());
        assert_eq!(scale.factor, 65536.0);
        assert_eq!((0..20).take_while(|_| scale.overflowed()).count(), 16);
    }
}

//! AdamW (Loshchilov and Hutter, 2019) with the arithmetic of `torch.optim.AdamW`, all parameters in one call.

use pipe_spec::pipeline::{Decay, Optimizer, Train};
use tch::{TchError, Tensor};

use crate::error::TrainerError;
use crate::tensor_files::TensorFiles;
use crate::torch::{self, AdamWGroup, AdamWStep};
use crate::weights::Weights;

pub struct AdamW {
    settings: Optimizer,
    seed: u64,
    moments: Vec<Moments>,
}

struct Moments {
    name: String,
    average: Tensor,
    square: Tensor,
}

impl AdamW {
    pub fn new(train: &Train, weights: &Weights) -> Result<Self, TrainerError> {
        Self::build(train, weights, |_, tensor| {
            let zeros = || tensor.f_detach()?.f_zeros_like();
            Ok((zeros()?, zeros()?))
        })
    }

    /// What `tensors` wrote.
    pub fn load(train: &Train, weights: &Weights, files: &TensorFiles) -> Result<Self, TrainerError> {
        Self::build(train, weights, |name, tensor| {
            let read = |kind: &str| {
                files.read_shaped(&format!("{kind}.{name}"), &tensor.size(), tensor.kind(), tensor.device())
            };
            Ok((read("exp_avg")?, read("exp_avg_sq")?))
        })
    }

    fn build(
        train: &Train,
        weights: &Weights,
        make: impl Fn(&str, &Tensor) -> Result<(Tensor, Tensor), TrainerError>,
    ) -> Result<Self, TrainerError> {
        let moments = |(name, tensor): (&str, &Tensor)| {
            let (average, square) = make(name, tensor)?;
            Ok(Moments { name: name.to_owned(), average, square })
        };
        let moments = weights.iter().map(moments).collect::<Result<_, TrainerError>>()?;
        Ok(Self { settings: train.optimizer.clone(), seed: train.seed, moments })
    }

    pub fn tensors(&self) -> Vec<(String, &Tensor)> {
        let both = |moments: &'_ Moments| [format!("exp_avg.{}", moments.name), format!("exp_avg_sq.{}", moments.name)];
        self.moments
            .iter()
            .flat_map(|moments| both(moments).into_iter().zip([&moments.average, &moments.square]))
            .collect()
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
        let Optimizer { betas, eps, weight_decay, decay, .. } = self.settings;
        for decays in [true, false] {
            let mut group = AdamWGroup::default();
            for ((moments, (_, parameter)), gradient) in self.moments.iter().zip(weights.iter()).zip(gradients) {
                if (decay == Decay::All || parameter.dim() >= 2) == decays {
                    group.parameters.push(parameter);
                    group.gradients.push(gradient);
                    group.averages.push(&moments.average);
                    group.squares.push(&moments.square);
                }
            }
            let weight_decay = if decays { weight_decay } else { 0.0 };
            torch::adamw(&group, scale, &AdamWStep { lr, betas, eps, weight_decay, step, seed: self.seed })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use tch::{Device, Kind};

    use super::*;

    /// Weights of about 1 that are to become 1.05 in steps of 1e-4, each far below what bf16 can tell apart there.
    fn distance_after(steps: u64, kind: Kind, mut update: impl FnMut(&Tensor, &Tensor, &AdamWGroup<'_>, &AdamWStep)) -> f64 {
        let _guard = tch::no_grad_guard();
        let weight = Tensor::ones([4096], (kind, Device::Cpu));
        let target = Tensor::full([4096], 1.05, (Kind::Float, Device::Cpu));
        let (average, square) = (weight.zeros_like(), weight.zeros_like());
        for step in 1..=steps {
            let gradient = (weight.to_kind(Kind::Float) - &target).to_kind(kind);
            let group = AdamWGroup {
                parameters: vec![&weight],
                gradients: vec![&gradient],
                averages: vec![&average],
                squares: vec![&square],
            };
            let numbers = AdamWStep { lr: 1e-4, betas: [0.9, 0.999], eps: 1e-8, weight_decay: 0.0, step, seed: 3 };
            update(&weight, &gradient, &group, &numbers);
        }
        (weight.to_kind(Kind::Float) - target).abs().mean(Kind::Float).double_value(&[])
    }

    #[test]
    fn stochastic_rounding_learns_where_plain_rounding_stands_still() {
        let one = Tensor::ones([], (Kind::Float, Device::Cpu));
        let by_torch = |_: &Tensor, _: &Tensor, group: &AdamWGroup<'_>, step: &AdamWStep| {
            torch::adamw(group, &one, step).unwrap();
        };
        let wide = distance_after(600, Kind::Float, by_torch);
        let stochastic = distance_after(600, Kind::BFloat16, by_torch);
        // What a nearest rounding of the same step does: Adam's step is the rate, whatever the gradient.
        let plain = distance_after(600, Kind::BFloat16, |weight, gradient, _, step| {
            let change = gradient.to_kind(Kind::Float).sign() * step.lr;
            let next = (weight.to_kind(Kind::Float) - change).to_kind(Kind::BFloat16);
            weight.shallow_clone().copy_(&next);
        });
        assert!(wide < 0.015, "fp32 is {wide} away");
        assert!((plain - 0.05).abs() < 0.005, "plain rounding was to stand still: {plain}");
        assert!(stochastic < 0.015, "stochastic rounding is {stochastic} away");
    }
}

//! AdamW (Loshchilov and Hutter, 2019) with the arithmetic of `torch.optim.AdamW`, for many parameters in one call.

use pipe_spec::pipeline::{Decay, Optimizer, Train};
use tch::{Kind, TchError, Tensor};

use super::Share;
use crate::error::TrainerError;
use crate::model::Weights;
use crate::storage::TensorFiles;
use crate::torch::{self, AdamWGroup, AdamWStep};

pub struct AdamW {
    settings: Optimizer,
    seed: u64,
    /// By parameter; absent where another rank has them.
    moments: Vec<Option<Moments>>,
    groups: Vec<Group>,
}

struct Moments {
    name: String,
    average: Tensor,
    square: Tensor,
}

/// Parameters that are updated together.
struct Group {
    /// Their places among all.
    members: Vec<usize>,
    decays: bool,
}

impl AdamW {
    pub fn new(train: &Train, weights: &Weights, share: &Share) -> Result<Self, TrainerError> {
        Self::build(train, weights, share, |_, tensor| {
            let zeros = || tensor.f_detach()?.f_zeros_like();
            Ok((zeros()?, zeros()?))
        })
    }

    /// Restores the tensors that `tensors` gave.
    pub fn load(train: &Train, weights: &Weights, share: &Share, files: &TensorFiles) -> Result<Self, TrainerError> {
        Self::build(train, weights, share, |name, tensor| {
            let read = |kind: &str| {
                files.read_shaped(&format!("{kind}.{name}"), &tensor.size(), tensor.kind(), tensor.device())
            };
            Ok((read("exp_avg")?, read("exp_avg_sq")?))
        })
    }

    fn build(
        train: &Train,
        weights: &Weights,
        share: &Share,
        make: impl Fn(&str, &Tensor) -> Result<(Tensor, Tensor), TrainerError>,
    ) -> Result<Self, TrainerError> {
        let parameters: Vec<(&str, &Tensor)> = weights.trained().collect();
        let moments = parameters
            .iter()
            .enumerate()
            .map(|(index, (name, parameter))| {
                if !share.has(index) {
                    return Ok(None);
                }
                let (average, square) = make(name, parameter)?;
                Ok(Some(Moments { name: (*name).to_owned(), average, square }))
            })
            .collect::<Result<_, TrainerError>>()?;
        let groups = grouped(&parameters, train.optimizer.decay, share);
        Ok(Self { settings: train.optimizer.clone(), seed: train.seed, moments, groups })
    }

    pub fn tensors(&self) -> Vec<(String, &Tensor)> {
        let both = |moments: &'_ Moments| [format!("exp_avg.{}", moments.name), format!("exp_avg_sq.{}", moments.name)];
        self.moments
            .iter()
            .flatten()
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
        let Optimizer { betas, eps, weight_decay, .. } = self.settings;
        let parameters: Vec<&Tensor> = weights.trained().map(|(_, parameter)| parameter).collect();
        for group in &self.groups {
            let weight_decay = if group.decays { weight_decay } else { 0.0 };
            let numbers = AdamWStep { lr, betas, eps, weight_decay, step };
            let moments = || group.members.iter().filter_map(|index| self.moments[*index].as_ref());
            let group = AdamWGroup {
                parameters: group.members.iter().map(|index| parameters[*index]).collect(),
                gradients: group.members.iter().map(|index| &gradients[*index]).collect(),
                averages: moments().map(|moments| &moments.average).collect(),
                squares: moments().map(|moments| &moments.square).collect(),
            };
            if group.parameters[0].kind() == Kind::BFloat16 {
                torch::adamw_bf16(&group, scale, &numbers, self.seed)?;
            } else {
                torch::adamw(&group, scale, &numbers)?;
            }
        }
        Ok(())
    }
}

/// The parameters of a share that decay, and those that do not.
fn grouped(parameters: &[(&str, &Tensor)], decay: Decay, share: &Share) -> Vec<Group> {
    let group = |decays: bool| {
        let belongs = |(index, (name, parameter)): &(usize, &(&str, &Tensor))| {
            share.has(*index) && super::decays(decay, name, parameter) == decays
        };
        let members = parameters.iter().enumerate().filter(belongs).map(|(index, _)| index).collect();
        Group { members, decays }
    };
    [true, false].into_iter().map(group).filter(|group| !group.members.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use tch::Device;

    use super::*;

    const NUMBERS: AdamWStep = AdamWStep { lr: 1e-4, betas: [0.9, 0.999], eps: 1e-8, weight_decay: 0.0, step: 1 };

    /// How far weights of 1 are from 1.05 after 600 updates of about 1e-4, each far below what bf16 can resolve there.
    fn distance_after(kind: Kind, mut update: impl FnMut(&[&Tensor; 4], &AdamWStep)) -> f64 {
        let _guard = tch::no_grad_guard();
        let weight = Tensor::ones([4096], (kind, Device::Cpu));
        let target = Tensor::full([4096], 1.05, (Kind::Float, Device::Cpu));
        let (average, square) = (weight.zeros_like(), weight.zeros_like());
        for step in 1..=600 {
            let gradient = (weight.to_kind(Kind::Float) - &target).to_kind(kind);
            update(&[&weight, &gradient, &average, &square], &AdamWStep { step, ..NUMBERS });
        }
        (weight.to_kind(Kind::Float) - target).abs().mean(Kind::Float).double_value(&[])
    }

    #[test]
    fn stochastic_rounding_learns_where_plain_rounding_stands_still() {
        let one = Tensor::ones([], (Kind::Float, Device::Cpu));
        let wide = distance_after(Kind::Float, |[p, g, m, v], step| {
            let group = AdamWGroup { parameters: vec![p], gradients: vec![g], averages: vec![m], squares: vec![v] };
            torch::adamw(&group, &one, step).unwrap();
        });
        let stochastic = distance_after(Kind::BFloat16, |[p, g, m, v], step| {
            let group = AdamWGroup { parameters: vec![p], gradients: vec![g], averages: vec![m], squares: vec![v] };
            torch::adamw_bf16(&group, &one, step, 3).unwrap();
        });
        // The same step rounded to the nearest: Adam's step is about the rate, whatever the gradient.
        let plain = distance_after(Kind::BFloat16, |[p, g, ..], step| {
            let change = g.to_kind(Kind::Float).sign() * step.lr;
            p.shallow_clone().copy_(&(p.to_kind(Kind::Float) - change).to_kind(Kind::BFloat16));
        });
        assert!(wide < 0.015, "fp32 is {wide} away");
        assert!((plain - 0.05).abs() < 0.005, "plain rounding was to stand still: {plain}");
        assert!(stochastic < 0.015, "stochastic rounding is {stochastic} away");
    }
}

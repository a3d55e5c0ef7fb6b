//! AdamW (Loshchilov and Hutter, 2019) with the arithmetic of `torch.optim.AdamW`.

use pipe_spec::pipeline::{Decay, Optimizer};
use tch::{TchError, Tensor};

use crate::error::TrainerError;
use crate::tensor_files::TensorFiles;
use crate::weights::Weights;

pub struct AdamW {
    settings: Optimizer,
    moments: Vec<Moments>,
}

struct Moments {
    name: String,
    average: Tensor,
    square: Tensor,
}

impl AdamW {
    pub fn new(settings: &Optimizer, weights: &Weights) -> Result<Self, TrainerError> {
        Self::build(settings, weights, |_, tensor| {
            let zeros = || tensor.f_detach()?.f_zeros_like();
            Ok((zeros()?, zeros()?))
        })
    }

    /// What `tensors` wrote.
    pub fn load(settings: &Optimizer, weights: &Weights, files: &TensorFiles) -> Result<Self, TrainerError> {
        Self::build(settings, weights, |name, tensor| {
            let read = |kind: &str| files.read_shaped(&format!("{kind}.{name}"), &tensor.size(), tensor.device());
            Ok((read("exp_avg")?, read("exp_avg_sq")?))
        })
    }

    fn build(
        settings: &Optimizer,
        weights: &Weights,
        make: impl Fn(&str, &Tensor) -> Result<(Tensor, Tensor), TrainerError>,
    ) -> Result<Self, TrainerError> {
        let moments = |(name, tensor): (&str, &Tensor)| {
            let (average, square) = make(name, tensor)?;
            Ok(Moments { name: name.to_owned(), average, square })
        };
        let moments = weights.iter().map(moments).collect::<Result<_, TrainerError>>()?;
        Ok(Self { settings: settings.clone(), moments })
    }

    pub fn tensors(&self) -> Vec<(String, &Tensor)> {
        let both = |moments: &'_ Moments| [format!("exp_avg.{}", moments.name), format!("exp_avg_sq.{}", moments.name)];
        self.moments
            .iter()
            .flat_map(|moments| both(moments).into_iter().zip([&moments.average, &moments.square]))
            .collect()
    }

    /// One update, the `step`th, counted from 1. An error leaves some parameters updated and others not.
    pub fn update(&mut self, weights: &Weights, gradients: &[Tensor], lr: f64, step: u64) -> Result<(), TchError> {
        let _guard = tch::no_grad_guard();
        for ((moments, (_, parameter)), gradient) in self.moments.iter_mut().zip(weights.iter()).zip(gradients) {
            moments.update(&self.settings, parameter, gradient, lr, step)?;
        }
        Ok(())
    }
}

impl Moments {
    fn update(
        &mut self,
        settings: &Optimizer,
        parameter: &Tensor,
        gradient: &Tensor,
        lr: f64,
        step: u64,
    ) -> Result<(), TchError> {
        let [beta1, beta2] = settings.betas;
        let correction = |beta: f64| 1.0 - beta.powf(step as f64);
        let mut parameter = parameter.shallow_clone();

        let decays = settings.decay == Decay::All || parameter.dim() >= 2;
        if decays && settings.weight_decay != 0.0 {
            let _ = parameter.f_mul_scalar_(1.0 - lr * settings.weight_decay)?;
        }
        let _ = self.average.f_lerp_(gradient, 1.0 - beta1)?;
        let _ = self.square.f_mul_scalar_(beta2)?;
        let _ = self.square.f_add_(&gradient.f_square()?.f_mul_scalar_(1.0 - beta2)?)?;

        let mut denominator = self.square.f_sqrt()?;
        let _ = denominator.f_div_scalar_(correction(beta2).sqrt())?;
        let _ = denominator.f_add_scalar_(settings.eps)?;
        let mut change = denominator.f_reciprocal_()?;
        let _ = change.f_mul_(&self.average)?;
        let _ = change.f_mul_scalar_(-lr / correction(beta1))?;
        let _ = parameter.f_add_(&change)?;
        Ok(())
    }
}

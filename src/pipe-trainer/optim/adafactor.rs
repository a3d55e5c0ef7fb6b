//! Adafactor (Shazeer and Stern, 2018) with the arithmetic of `transformers.Adafactor` at a given learning rate:
//! `relative_step` and `scale_parameter` off, no first moment. Its state is a row and a column for each matrix.

use pipe_spec::pipeline::{Optimizer, Train};
use tch::{Kind, TchError, Tensor};

use super::Share;
use crate::error::TrainerError;
use crate::model::Weights;
use crate::random::{self, Purpose};
use crate::storage::TensorFiles;
use crate::{optim, torch};

/// Added to squared gradients: epsilon 1 of the paper.
const EPSILON: f64 = 1e-30;
/// The largest root mean square of an update: d of the paper.
const CLIP_THRESHOLD: f64 = 1.0;
/// The average of squares forgets by 1 - step^this.
const DECAY_RATE: f64 = -0.8;

pub struct Adafactor {
    settings: Optimizer,
    seed: u64,
    /// By parameter; absent where another rank has it.
    moments: Vec<(String, Option<Moment>)>,
}

/// The average of a parameter's squared gradients, in fp32 whatever the parameter is kept in.
enum Moment {
    /// Means over the last dimension and over the one before it.
    Factored {
        row: Tensor,
        column: Tensor,
    },
    Whole {
        square: Tensor,
    },
}

impl Adafactor {
    pub fn new(train: &Train, weights: &Weights, share: &Share) -> Result<Self, TrainerError> {
        Self::build(train, weights, share, |_, shape, parameter| {
            Ok(Tensor::f_zeros(shape, (Kind::Float, parameter.device()))?)
        })
    }

    /// Restores the tensors that `tensors` gave.
    pub fn load(train: &Train, weights: &Weights, share: &Share, files: &TensorFiles) -> Result<Self, TrainerError> {
        Self::build(train, weights, share, |name, shape, parameter| {
            files.read_shaped(name, shape, Kind::Float, parameter.device())
        })
    }

    fn build(
        train: &Train,
        weights: &Weights,
        share: &Share,
        make: impl Fn(&str, &[i64], &Tensor) -> Result<Tensor, TrainerError>,
    ) -> Result<Self, TrainerError> {
        let moment = |name: &str, parameter: &Tensor| {
            let make = |part: &str, shape: &[i64]| make(&format!("{part}.{name}"), shape, parameter);
            Ok::<_, TrainerError>(match parameter.size().as_slice() {
                [outer @ .., rows, columns] => Moment::Factored {
                    row: make("row", &[outer, &[*rows]].concat())?,
                    column: make("column", &[outer, &[*columns]].concat())?,
                },
                shape => Moment::Whole { square: make("square", shape)? },
            })
        };
        let moments = weights.trained().enumerate().map(|(index, (name, parameter))| {
            let moment = share.has(index).then(|| moment(name, parameter)).transpose()?;
            Ok((name.to_owned(), moment))
        });
        let moments = moments.collect::<Result<_, TrainerError>>()?;
        Ok(Self { settings: train.optimizer.clone(), seed: train.seed, moments })
    }

    pub fn tensors(&self) -> Vec<(String, &Tensor)> {
        let named = |name: &str, moment: &Moment| match moment {
            Moment::Factored { .. } => vec![format!("row.{name}"), format!("column.{name}")],
            Moment::Whole { .. } => vec![format!("square.{name}")],
        };
        let kept = self.moments.iter().filter_map(|(name, moment)| Some((name, moment.as_ref()?)));
        kept.flat_map(|(name, moment)| named(name, moment).into_iter().zip(moment.tensors())).collect()
    }

    /// The gradient of the largest parameter in fp32, its square and its change.
    pub fn rehearse(weights: &Weights) -> Result<(), TchError> {
        let Some((_, largest)) = weights.trained().max_by_key(|(_, parameter)| parameter.numel()) else {
            return Ok(());
        };
        let one = || Tensor::f_empty([largest.numel() as i64], (Kind::Float, largest.device()));
        let _held = [one()?, one()?, one()?];
        Ok(())
    }

    /// One update, the `step`th, counted from 1, with the gradients times `scale`, which it may change. An error leaves some
    /// parameters updated and others not.
    pub fn update(
        &mut self,
        weights: &Weights,
        gradients: &[Tensor],
        scale: &Tensor,
        lr: f64,
        step: u64,
    ) -> Result<(), TchError> {
        let _guard = tch::no_grad_guard();
        let forget = (step as f64).powf(DECAY_RATE);
        let Optimizer { weight_decay, decay, .. } = self.settings;
        for (index, ((name, parameter), (_, moment))) in weights.trained().zip(&mut self.moments).enumerate() {
            let Some(moment) = moment else { continue };
            let gradient = gradients[index].f_to_kind(Kind::Float)?.f_mul_(scale)?;
            let mut change = moment.normalise(&gradient, forget)?;
            drop(gradient);
            let rms = change.f_norm()?.f_div_scalar((change.numel() as f64).sqrt())?;
            let factor = rms.f_div_scalar(CLIP_THRESHOLD)?.f_clamp_min(1.0)?.f_reciprocal()?.f_mul_scalar(lr)?;
            let _ = change.f_mul_(&factor)?;
            let kept = if optim::decays(decay, name, parameter) { 1.0 - lr * weight_decay } else { 1.0 };
            // In fp32 this is the parameter itself, otherwise a copy of it.
            let wide = parameter.f_to_kind(Kind::Float)?.f_mul_scalar_(kept)?.f_sub_(&change)?;
            if parameter.kind() == Kind::BFloat16 {
                let seed = random::derived(Purpose::Rounding, self.seed, &[step, index as u64]);
                torch::round_to_bf16(parameter, &wide, seed)?;
            }
        }
        Ok(())
    }
}

impl Moment {
    fn tensors(&self) -> Vec<&Tensor> {
        match self {
            Self::Factored { row, column } => vec![row, column],
            Self::Whole { square } => vec![square],
        }
    }

    /// Takes the gradient into the average, by the share `forget`, and returns it divided by the root of that.
    fn normalise(&mut self, gradient: &Tensor, forget: f64) -> Result<Tensor, TchError> {
        let squared = gradient.f_square()?.f_add_scalar_(EPSILON)?;
        match self {
            Self::Factored { row, column } => {
                let _ = row.f_lerp_(&squared.f_mean_dim(-1, false, None)?, forget)?;
                let _ = column.f_lerp_(&squared.f_mean_dim(-2, false, None)?, forget)?;
                drop(squared);
                let by_row = row.f_div(&row.f_mean_dim(-1, true, None)?)?.f_rsqrt_()?.f_unsqueeze(-1)?;
                gradient.f_mul(&by_row)?.f_mul_(&column.f_rsqrt()?.f_unsqueeze(-2)?)
            }
            Self::Whole { square } => {
                let _ = square.f_lerp_(&squared, forget)?;
                square.f_rsqrt()?.f_mul_(gradient)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use pipe_model::{Init, Parameter};
    use serde_json::json;
    use tch::Device;

    use super::*;
    use crate::model::pass::Kinds;
    use crate::model::{Setup, Start};

    fn train(weight_decay: f64) -> Train {
        let train = json!({
            "steps": 1, "batch": 1, "effective_batch": 1, "precision": "fp32", "schedule": {}, "clip": 0.0,
            "optimizer": { "kind": "adafactor", "weight_decay": weight_decay }, "checkpointing": false, "seed": 3,
            "deterministic": false,
        });
        serde_json::from_value(train).unwrap()
    }

    fn weights(shapes: &[(&str, &[i64])], kind: Kind) -> Weights {
        let parameter = |(name, shape): &(&str, &[i64])| Parameter::new(*name, shape, Init::Constant(1.0));
        let setup = Setup { kinds: Kinds { weights: kind, compute: kind }, ..Setup::plain() };
        let parameters: Vec<Parameter> = shapes.iter().map(parameter).collect();
        Weights::start(&parameters, &Start::Random { seed: 1 }, &setup).unwrap()
    }

    fn numbers(tensor: &Tensor) -> Vec<f32> {
        Vec::try_from(tensor.detach().to_kind(Kind::Float).reshape([-1])).unwrap()
    }

    #[track_caller]
    fn assert_near(tensor: &Tensor, want: &[f32]) {
        let got = numbers(tensor);
        assert_eq!(got.len(), want.len());
        let near = got.iter().zip(want).all(|(got, want)| (got - want).abs() <= 1e-6 * want.abs());
        assert!(near, "{got:?} is not {want:?}");
    }

    /// The expected values were computed apart from this, in double precision, from the formulas of `transformers.Adafactor`.
    #[test]
    fn two_updates_give_the_numbers_of_the_formula() {
        let weights = weights(&[("matrix", &[2, 3]), ("vector", &[3])], Kind::Float);
        let (matrix, vector) = (weights.get("matrix"), weights.get("vector"));
        tch::no_grad(|| {
            matrix.shallow_clone().copy_(&Tensor::from_slice2(&[[0.5f32, -1.0, 2.0], [1.5, 0.25, -0.75]]));
            vector.shallow_clone().copy_(&Tensor::from_slice(&[1.0f32, -2.0, 0.5]));
        });
        let mut adafactor = Adafactor::new(&train(0.1), &weights, &Share::whole()).unwrap();
        let half = Tensor::from(0.5f32);
        let mut update = |matrix: [[f32; 3]; 2], vector: [f32; 3], step| {
            let gradients = [Tensor::from_slice2(&matrix), Tensor::from_slice(&vector)];
            adafactor.update(&weights, &gradients, &half, 0.01, step).unwrap();
        };
        update([[0.1, -0.2, 0.3], [0.05, 0.4, -0.6]], [0.2, -0.1, 0.05], 1);
        assert_near(&matrix, &[0.482_608_5, -0.990_554_2, 1.989_554_2, 1.494_128_2, 0.241_006_4, -0.740_506_4]);
        assert_near(&vector, &[0.99, -1.99, 0.49]);
        update([[-0.3, 0.1, 0.02], [0.2, -0.1, 0.5]], [-0.4, 0.3, 0.1], 2);
        assert_near(&matrix, &[0.502_473_2, -0.995_734_8, 1.986_902_2, 1.485_240_6, 0.244_128_9, -0.748_792_8]);
        assert_near(&vector, &[0.999_845_2, -2.000_302_7, 0.480_154_8]);
        let [row, column, square] = adafactor.tensors().try_into().unwrap();
        assert_eq!([&row.0, &column.0, &square.0], ["row.matrix", "column.matrix", "square.vector"]);
        assert_near(row.1, &[0.009_771_314, 0.032_892_276]);
        assert_near(column.1, &[0.009_998_254, 0.012_077_144, 0.041_919_988]);
        assert_near(square.1, &[0.027_230_475, 0.013_986_984, 0.001_701_904_7]);
    }

    /// How far weights of 1 are from 1.05 after 600 updates of about 1e-4, each far below what bf16 can resolve there.
    fn distance_after(kind: Kind) -> f64 {
        let weights = weights(&[("matrix", &[64, 64]), ("vector", &[4096])], kind);
        let mut adafactor = Adafactor::new(&train(0.0), &weights, &Share::whole()).unwrap();
        let one = Tensor::from(1.0f32);
        let missing = |tensor: &Tensor| tensor.detach().to_kind(Kind::Float) - 1.05;
        for step in 1..=600 {
            let gradients: Vec<Tensor> = weights.trained().map(|(_, tensor)| missing(tensor).to_kind(kind)).collect();
            adafactor.update(&weights, &gradients, &one, 1e-4, step).unwrap();
        }
        let distance = |(_, tensor): (&str, &Tensor)| missing(tensor).abs().mean(Kind::Float).double_value(&[]);
        weights.trained().map(distance).fold(0.0, f64::max)
    }

    #[test]
    fn small_steps_are_not_lost_in_bf16() {
        let (wide, narrow) = (distance_after(Kind::Float), distance_after(Kind::BFloat16));
        assert!(wide < 0.025, "fp32 is {wide} away");
        assert!((narrow - wide).abs() < 0.01, "bf16 is {narrow} away, fp32 {wide}");
    }

    #[test]
    fn rounding_gives_neighbours_and_keeps_the_mean() {
        let wide = Tensor::linspace(1.0, 2.0, 1 << 16, (Kind::Float, Device::Cpu));
        let rounded = wide.to_kind(Kind::BFloat16);
        torch::round_to_bf16(&rounded, &wide, 5).unwrap();
        let apart = rounded.to_kind(Kind::Float) - &wide;
        assert!(apart.abs().max().double_value(&[]) < 1.0 / 128.0);
        assert!(apart.mean(Kind::Double).double_value(&[]).abs() < 1e-4);
        let again = wide.to_kind(Kind::BFloat16);
        torch::round_to_bf16(&again, &wide, 5).unwrap();
        assert!(again.equal(&rounded), "the same seed rounds the same");
        torch::round_to_bf16(&again, &wide, 6).unwrap();
        assert!(!again.equal(&rounded), "another seed rounds otherwise");
    }
}

//! AdamW with moments of 8 bits in blocks that share a scale (Dettmers et al., 2022), with the numbers of `bitsandbytes.optim.AdamW8bit`.
//! Small parameters have moments in fp32. Parameters in bf16 are rounded stochastically, as AdamW does.

use pipe_model::memory::{MOMENT_BLOCK, SMALLEST_OF_8_BITS};
use pipe_spec::pipeline::{Optimizer, Train};
use tch::{Device, Kind, TchError, Tensor};

use super::Share;
use crate::dynamic_map::{self, Sign};
use crate::error::TrainerError;
use crate::model::Weights;
use crate::random::{self, Purpose};
use crate::storage::TensorFiles;
use crate::torch::{self, AdamWGroup, AdamWStep, NarrowGroup};

/// The names of a parameter's tensors, before its own.
const NAMES: [&str; 4] = ["exp_avg", "exp_avg_sq", "exp_avg_scales", "exp_avg_sq_scales"];

pub struct AdamW8Bit {
    settings: Optimizer,
    seed: u64,
    /// By parameter; absent where another rank has them.
    moments: Vec<(String, Option<Moments>)>,
    /// The numbers that the codes of an average and of a square stand for: [2, 256].
    maps: Tensor,
}

enum Moments {
    /// Codes of the average and of the square, and the scales of either.
    Narrow([Tensor; 4]),
    Wide([Tensor; 2]),
}

impl Moments {
    fn tensors(&self) -> &[Tensor] {
        match self {
            Self::Narrow(tensors) => tensors,
            Self::Wide(tensors) => tensors,
        }
    }
}

impl AdamW8Bit {
    pub fn new(train: &Train, weights: &Weights, share: &Share) -> Result<Self, TrainerError> {
        // Whatever a code stands for, by a scale of 0 it is 0.
        Self::build(train, weights, share, |_, shape, options| Ok(Tensor::f_zeros(shape, options)?))
    }

    /// Restores the tensors that `tensors` gave.
    pub fn load(train: &Train, weights: &Weights, share: &Share, files: &TensorFiles) -> Result<Self, TrainerError> {
        Self::build(train, weights, share, |name, shape, (kind, device)| files.read_shaped(name, shape, kind, device))
    }

    fn build(
        train: &Train,
        weights: &Weights,
        share: &Share,
        make: impl Fn(&str, &[i64], (Kind, Device)) -> Result<Tensor, TrainerError>,
    ) -> Result<Self, TrainerError> {
        let moments = |name: &str, parameter: &Tensor| {
            let (count, device) = (parameter.numel() as u64, parameter.device());
            let of = |what: usize, shape: &[i64], kind| make(&format!("{}.{name}", NAMES[what]), shape, (kind, device));
            let shape = parameter.size();
            if count < SMALLEST_OF_8_BITS {
                return Ok(Moments::Wide([of(0, &shape, Kind::Float)?, of(1, &shape, Kind::Float)?]));
            }
            let codes = |what| of(what, &shape, Kind::Uint8);
            let scales = |what| of(what, &[count.div_ceil(MOMENT_BLOCK) as i64], Kind::Float);
            Ok::<_, TrainerError>(Moments::Narrow([codes(0)?, codes(1)?, scales(2)?, scales(3)?]))
        };
        let all = weights.trained().enumerate().map(|(index, (name, parameter))| {
            Ok((name.to_owned(), share.has(index).then(|| moments(name, parameter)).transpose()?))
        });
        let moments = all.collect::<Result<_, TrainerError>>()?;
        let device = weights.trained().next().map_or(Device::Cpu, |(_, parameter)| parameter.device());
        let maps = [Sign::Either, Sign::Positive].map(dynamic_map::numbers);
        let maps = Tensor::f_from_slice(maps.as_flattened())?.f_view([2, -1])?.f_to_device(device)?;
        Ok(Self { settings: train.optimizer.clone(), seed: train.seed, moments, maps })
    }

    pub fn tensors(&self) -> Vec<(String, &Tensor)> {
        let kept = self.moments.iter().filter_map(|(name, moments)| Some((name, moments.as_ref()?.tensors())));
        kept.flat_map(|(name, tensors)| NAMES.iter().map(move |what| format!("{what}.{name}")).zip(tensors)).collect()
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
            let weight_decay = if decays { weight_decay } else { 0.0 };
            let numbers = AdamWStep { lr, betas, eps, weight_decay, step };
            let (mut narrow, mut wide) = (NarrowGroup::default(), WideGroup::default());
            for (index, ((name, parameter), (_, moments))) in weights.trained().zip(&self.moments).enumerate() {
                if super::decays(decay, name, parameter) != decays {
                    continue;
                }
                match moments {
                    Some(Moments::Narrow(moments)) => add(&mut narrow, parameter, &gradients[index], moments),
                    Some(Moments::Wide(moments)) => wide.members.push((index, parameter, &gradients[index], moments)),
                    None => {}
                }
            }
            torch::adamw_8bit(&narrow, &self.maps, scale, &numbers, self.seed)?;
            wide.update(scale, &numbers, self.seed)?;
        }
        Ok(())
    }
}

fn add<'a>(group: &mut NarrowGroup<'a>, parameter: &'a Tensor, gradient: &'a Tensor, moments: &'a [Tensor; 4]) {
    let [average, square, average_scale, square_scale] = moments;
    group.parameters.push(parameter);
    group.gradients.push(gradient);
    group.averages.push(average);
    group.squares.push(square);
    group.average_scales.push(average_scale);
    group.square_scales.push(square_scale);
}

/// Small parameters, by their order: they are updated in fp32.
#[derive(Default)]
struct WideGroup<'a> {
    members: Vec<(usize, &'a Tensor, &'a Tensor, &'a [Tensor; 2])>,
}

impl WideGroup<'_> {
    fn update(&self, scale: &Tensor, numbers: &AdamWStep, seed: u64) -> Result<(), TchError> {
        let _guard = tch::no_grad_guard();
        if self.members.is_empty() {
            return Ok(());
        }
        // In fp32 these are the parameters themselves.
        let wide = |tensor: &Tensor| tensor.f_detach()?.f_to_kind(Kind::Float);
        let copies =
            self.members.iter().map(|(_, p, g, _)| Ok((wide(p)?, wide(g)?))).collect::<Result<Vec<_>, TchError>>()?;
        let group = AdamWGroup {
            parameters: copies.iter().map(|(p, _)| p).collect(),
            gradients: copies.iter().map(|(_, g)| g).collect(),
            averages: self.members.iter().map(|(.., moments)| &moments[0]).collect(),
            squares: self.members.iter().map(|(.., moments)| &moments[1]).collect(),
        };
        torch::adamw(&group, scale, numbers)?;
        for ((index, parameter, ..), (wide, _)) in self.members.iter().zip(&copies) {
            if parameter.kind() == Kind::BFloat16 {
                let seed = random::derived(Purpose::Rounding, seed, &[numbers.step, *index as u64]);
                torch::round_to_bf16(parameter, wide, seed)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use pipe_model::memory::{Estimate, Work};
    use pipe_model::{Init, Parameter};
    use pipe_spec::pipeline::{OptimizerKind, Precision};
    use serde_json::json;

    use super::*;
    use crate::model::pass::Kinds;
    use crate::model::{Setup, Start};

    fn fixture() -> TensorFiles {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/quantized/adamw8bit.safetensors");
        TensorFiles::open_file(path.as_ref()).unwrap()
    }

    fn train(weight_decay: f64) -> Train {
        let train = json!({
            "steps": 1, "batch": 1, "effective_batch": 1, "precision": "fp32", "schedule": {}, "clip": 0.0,
            "optimizer": { "kind": "adamw8bit", "weight_decay": weight_decay, "betas": [0.9, 0.99], "decay": "all" },
            "checkpointing": false, "seed": 3, "deterministic": false,
        });
        serde_json::from_value(train).unwrap()
    }

    fn weights(shapes: &[(&str, i64)], kind: Kind) -> Weights {
        let parameters: Vec<Parameter> =
            shapes.iter().map(|(name, count)| Parameter::new(*name, &[*count], Init::Constant(1.0))).collect();
        let setup = Setup { kinds: Kinds { weights: kind, compute: kind }, ..Setup::plain() };
        Weights::start(&parameters, &Start::Random { seed: 1 }, &setup).unwrap()
    }

    /// Twelve updates of bitsandbytes: make_quantized.py.
    #[test]
    fn twelve_updates_give_the_numbers_of_bitsandbytes() {
        let files = fixture();
        let weights = weights(&[("large", 4200), ("small", 50)], Kind::Float);
        let of = |name: &str, what: &str| files.read(&format!("{name}.{what}")).unwrap();
        for (name, parameter) in weights.trained() {
            tch::no_grad(|| parameter.shallow_clone().copy_(&of(name, "start")));
        }
        let mut adamw = AdamW8Bit::new(&train(0.1), &weights, &Share::whole()).unwrap();
        // Gradients twice as large, halved.
        let half = Tensor::from(0.5f32);
        for step in 1..=12 {
            let gradient = |name: &str| of(name, "gradient").roll([37 * step as i64], [0]) * 2.0;
            adamw.update(&weights, &[gradient("large"), gradient("small")], &half, 1e-2, step).unwrap();
        }
        let apart = |name: &str, got: &Tensor, want: &Tensor, most: f64| {
            let apart = (got.to_kind(Kind::Double) - want.to_kind(Kind::Double)).abs().max().double_value(&[]);
            assert!(apart <= most, "{name} is {apart} apart");
        };
        for (name, parameter) in weights.trained() {
            apart(name, &parameter.detach(), &of(name, "end"), 2e-5);
        }
        let got = adamw.tensors();
        let names: Vec<&str> = got.iter().map(|(name, _)| name.as_str()).collect();
        let want = ["exp_avg.large", "exp_avg_sq.large", "exp_avg_scales.large", "exp_avg_sq_scales.large"];
        assert_eq!(names[..4], want);
        assert_eq!(names[4..], ["exp_avg.small", "exp_avg_sq.small"]);
        for (what, (name, tensor)) in ["state1", "state2", "absmax1", "absmax2"].into_iter().zip(&got) {
            let want = of("large", what);
            // A number between two codes may go to either.
            apart(name, tensor, &want, if what.starts_with("state") { 1.0 } else { 1e-5 });
            let same = tensor.eq_tensor(&want).to_kind(Kind::Float).mean(Kind::Float).double_value(&[]);
            assert!(!what.starts_with("state") || same > 0.999, "{name}: {same} of the codes");
        }
        apart("exp_avg.small", got[4].1, &of("small", "state1"), 1e-6);
        apart("exp_avg_sq.small", got[5].1, &of("small", "state2"), 1e-6);
    }

    /// As in adamw.rs and adafactor.rs: small steps are not lost in bf16, neither with moments of 8 bits nor with wide ones.
    #[test]
    fn small_steps_are_not_lost_in_bf16() {
        for count in [8192, 1024] {
            let weights = weights(&[("matrix", count)], Kind::BFloat16);
            let mut adamw = AdamW8Bit::new(&train(0.0), &weights, &Share::whole()).unwrap();
            let one = Tensor::from(1.0f32);
            let missing = |tensor: &Tensor| tensor.detach().to_kind(Kind::Float) - 1.05;
            for step in 1..=600 {
                let gradients: Vec<Tensor> =
                    weights.trained().map(|(_, tensor)| missing(tensor).to_kind(Kind::BFloat16)).collect();
                adamw.update(&weights, &gradients, &one, 1e-4, step).unwrap();
            }
            let distance = missing(weights.trained().next().unwrap().1).abs().mean(Kind::Float).double_value(&[]);
            assert!(distance < 0.015, "{count} weights are {distance} away");
        }
    }

    /// `pipe plan` counts the bytes that are kept.
    #[test]
    fn the_estimate_counts_every_byte() {
        let shapes = [("large", 1 << 16), ("odd", 4097), ("least", 4096), ("small", 4095)];
        let parameters: Vec<Parameter> =
            shapes.iter().map(|(name, count)| Parameter::new(*name, &[*count], Init::Constant(1.0))).collect();
        for precision in [Precision::Fp32, Precision::Bf16] {
            let weights = weights(&shapes, Kinds::of(precision).weights);
            let adamw = AdamW8Bit::new(&train(0.0), &weights, &Share::whole()).unwrap();
            let bytes = |tensor: &Tensor| (tensor.numel() * tensor.kind().elt_size_in_bytes()) as u64;
            let kept: u64 = adamw.tensors().iter().map(|(_, tensor)| bytes(tensor)).sum();
            let work = Work {
                precision,
                optimizer: OptimizerKind::Adamw8bit,
                checkpointing: false,
                batch: 1,
                accum: 1,
                ranks: 1,
                sharded: false,
                source: 1,
                target: 1,
                padded: false,
                drops: false,
                adapter: None,
            };
            assert_eq!(Estimate::of(&parameters, &[], &work).optimizer, kept, "{precision:?}");
        }
    }
}

//! The gradient of a loss over all samples of a step, with the memory of one part.

use tch::Tensor;

use crate::data::Part;
use crate::error::TrainerError;
use crate::model::{Contrastive, Embeddings, Mode};

/// The parts of a step. Each is loaded twice and must be the same both times, its dropout included.
pub trait Parts {
    fn count(&self) -> usize;

    /// A part for a forward pass.
    fn load(&self, index: usize) -> Result<(Part, Mode), TrainerError>;

    /// Called before the backward pass of a part.
    fn before_backward(&self, index: usize) -> Result<(), TrainerError>;

    /// Whether these are all parts of the step, and not those of one rank.
    fn are_all(&self) -> bool {
        true
    }

    /// Where the first sample of a part stands among all embeddings.
    fn first_sample(&self, index: usize) -> i64;

    /// The embeddings of all samples of the step, from those of the parts.
    fn of_all_ranks(&self, own: &[Embeddings]) -> Result<Embeddings, TrainerError> {
        concatenated(own)
    }

    /// Gradients from the loss itself count once, however many ranks have computed it.
    fn forget_gradients_of_the_loss(&self) -> Result<(), TrainerError> {
        Ok(())
    }
}

/// Adds the gradient of `scale` times the mean loss to the weights' gradients, and returns the loss.
///
/// Gradient caching (Gao et al., 2021): embeddings of all parts without a graph, the loss over all of them and its gradient
/// by embedding, and then each part again, to send its share of that gradient back. The only part of a rank is computed once.
pub fn backward(contrastive: &dyn Contrastive, parts: &dyn Parts, scale: f64) -> Result<Tensor, TrainerError> {
    if parts.count() == 1 && parts.are_all() {
        let loss = contrastive.loss(&embed(contrastive, parts, 0)?)?;
        parts.before_backward(0)?;
        loss.f_mul_scalar(scale)?.f_backward()?;
        return Ok(loss.f_detach()?);
    }
    let mut held = if parts.count() == 1 { Some(embed(contrastive, parts, 0)?) } else { None };
    let own = match &held {
        Some(part) => vec![detached(part)?],
        None => tch::no_grad(|| embed_all(contrastive, parts))?,
    };
    let all = parts.of_all_ranks(&own)?;
    drop(own);
    let (loss, gradient) = loss_and_gradient(contrastive, all, scale)?;
    parts.forget_gradients_of_the_loss()?;
    for index in 0..parts.count() {
        let part = match held.take() {
            Some(part) => part,
            None => embed(contrastive, parts, index)?,
        };
        parts.before_backward(index)?;
        let (start, size) = (parts.first_sample(index), part.images.size()[0]);
        // A sum whose gradient by each embedding is the one that was kept.
        let share = |of: &Tensor, gradient: &Tensor| of.f_mul(&gradient.f_narrow(0, start, size)?)?.f_sum(of.kind());
        let sum = share(&part.images, &gradient.images)?.f_add(&share(&part.texts, &gradient.texts)?)?;
        sum.f_backward()?;
    }
    Ok(loss)
}

/// One after the other.
pub fn concatenated(parts: &[Embeddings]) -> Result<Embeddings, TrainerError> {
    let cat = |side: fn(&Embeddings) -> &Tensor| Tensor::f_cat(&parts.iter().map(side).collect::<Vec<_>>(), 0);
    Ok(Embeddings { images: cat(|part| &part.images)?, texts: cat(|part| &part.texts)? })
}

fn detached(part: &Embeddings) -> Result<Embeddings, TrainerError> {
    Ok(Embeddings { images: part.images.f_detach()?, texts: part.texts.f_detach()? })
}

fn embed(contrastive: &dyn Contrastive, parts: &dyn Parts, index: usize) -> Result<Embeddings, TrainerError> {
    let (part, mode) = parts.load(index)?;
    contrastive.embed(&part, mode)
}

fn embed_all(contrastive: &dyn Contrastive, parts: &dyn Parts) -> Result<Vec<Embeddings>, TrainerError> {
    (0..parts.count()).map(|index| embed(contrastive, parts, index)).collect()
}

/// The gradient by embedding. What else the loss depends on gets its gradient here too.
fn loss_and_gradient(
    contrastive: &dyn Contrastive,
    all: Embeddings,
    scale: f64,
) -> Result<(Tensor, Embeddings), TrainerError> {
    let all = Embeddings { images: all.images.f_set_requires_grad(true)?, texts: all.texts.f_set_requires_grad(true)? };
    let loss = contrastive.loss(&all)?;
    loss.f_mul_scalar(scale)?.f_backward()?;
    Ok((loss.f_detach()?, Embeddings { images: all.images.f_grad()?, texts: all.texts.f_grad()? }))
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};

    use pipe_spec::pipeline::{self, Arch};
    use serde_json::json;
    use tch::{Device, Kind};

    use super::*;
    use crate::model::pass::Kinds;
    use crate::model::{Definition, Drawn, Model, Setup, Start};

    /// Random samples, in parts.
    struct RandomParts {
        pixels: Tensor,
        ids: Tensor,
        part: i64,
    }

    impl RandomParts {
        fn new(samples: i64, part: i64) -> Self {
            let pixels = Tensor::randn([samples, 3, 8, 8], (Kind::Float, Device::Cpu));
            let ids = Tensor::randint(30, [samples, 7], (Kind::Int64, Device::Cpu)).narrow(1, 0, 6) + 2;
            let ends = Tensor::ones([samples, 1], (Kind::Int64, Device::Cpu));
            Self { pixels, ids: Tensor::cat(&[ids, ends], 1), part }
        }

        fn split(&self, part: i64) -> Self {
            Self { pixels: self.pixels.shallow_clone(), ids: self.ids.shallow_clone(), part }
        }
    }

    impl Parts for RandomParts {
        fn count(&self) -> usize {
            (self.ids.size()[0] as usize).div_ceil(self.part as usize)
        }

        fn load(&self, index: usize) -> Result<(Part, Mode), TrainerError> {
            let start = index as i64 * self.part;
            let size = self.part.min(self.ids.size()[0] - start);
            let part = Part::default()
                .with("pixel_values", self.pixels.narrow(0, start, size))
                .with("input_ids", self.ids.narrow(0, start, size));
            Ok((part, Mode::Train(Drawn::new(100, start as u32))))
        }

        fn before_backward(&self, _: usize) -> Result<(), TrainerError> {
            Ok(())
        }

        fn first_sample(&self, index: usize) -> i64 {
            index as i64 * self.part
        }
    }

    fn model(dropout: f64, setup: Setup) -> Box<dyn Model> {
        let tower = json!({
            "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2,
            "vocab_size": 40, "max_position_embeddings": 9, "eos_token_id": 1, "image_size": 8, "patch_size": 4,
        });
        let config = json!({ "projection_dim": 12, "text_config": tower, "vision_config": tower });
        let (config, quantize) = (config.as_object().cloned(), pipeline::Quantize::None);
        let model = pipeline::Model { arch: Arch::Clip, task: None, from: None, config, quantize };
        let setup = Setup { dropout: Some(dropout), ..setup };
        Definition::from_spec(&model).unwrap().build(&Start::Random { seed: 3 }, &setup).unwrap()
    }

    /// The gradient of all weights that `work` leaves, and the loss.
    fn gradient(model: &dyn Model, work: impl FnOnce(&dyn Contrastive) -> Tensor) -> (Tensor, f64) {
        model.weights().forget_gradients().unwrap();
        let loss = work(model.contrastive().unwrap()).double_value(&[]);
        let all: Vec<Tensor> = model.weights().gradients().unwrap().iter().map(|part| part.reshape([-1])).collect();
        (Tensor::cat(&all, 0), loss)
    }

    fn cached(model: &dyn Model, parts: &RandomParts, scale: f64) -> (Tensor, f64) {
        gradient(model, |contrastive| backward(contrastive, parts, scale).unwrap())
    }

    /// The graphs of all parts held at once.
    fn held(model: &dyn Model, parts: &RandomParts) -> (Tensor, f64) {
        gradient(model, |contrastive| {
            let all = parts.of_all_ranks(&embed_all(contrastive, parts).unwrap()).unwrap();
            let loss = contrastive.loss(&all).unwrap();
            loss.backward();
            loss.detach()
        })
    }

    fn apart(a: &Tensor, b: &Tensor) -> f64 {
        ((a - b).norm() / b.norm()).double_value(&[])
    }

    #[test]
    fn parts_give_the_gradient_of_the_whole() {
        let (model, whole) = (model(0.0, Setup::plain()), RandomParts::new(128, 128));
        let (want, loss) = cached(model.as_ref(), &whole, 1.0);
        for part in [16, 50, 1] {
            let (got, other) = cached(model.as_ref(), &whole.split(part), 1.0);
            assert!(apart(&got, &want) < 1e-5, "parts of {part}: {}", apart(&got, &want));
            assert!((loss - other).abs() < 1e-5 * loss, "parts of {part}: {loss} and {other}");
        }
    }

    #[test]
    fn adding_up_the_losses_of_parts_would_be_another_training() {
        let (model, whole) = (model(0.0, Setup::plain()), RandomParts::new(128, 128));
        let (want, loss) = cached(model.as_ref(), &whole, 1.0);
        let parts = whole.split(16);
        let (got, other) = gradient(model.as_ref(), |contrastive| {
            let losses: Vec<Tensor> = (0..parts.count())
                .map(|index| contrastive.loss(&embed(contrastive, &parts, index).unwrap()).unwrap())
                .collect();
            let loss = Tensor::stack(&losses, 0).mean(Kind::Float);
            loss.backward();
            loss.detach()
        });
        assert!(apart(&got, &want) > 0.1 && other < loss - 1.0, "{} apart, {other} and {loss}", apart(&got, &want));
    }

    #[test]
    fn the_scale_of_fp16_is_in_every_gradient_once() {
        let kinds = Kinds { weights: Kind::Float, compute: Kind::Half };
        for setup in [Setup::plain(), Setup { kinds, ..Setup::plain() }] {
            let (model, whole) = (model(0.0, setup), RandomParts::new(24, 24));
            for part in [24, 7] {
                let ((plain, loss), (scaled, other)) = (
                    cached(model.as_ref(), &whole.split(part), 1.0),
                    cached(model.as_ref(), &whole.split(part), 1024.0),
                );
                assert!(apart(&scaled, &(&plain * 1024.0)) < 1e-2, "parts of {part}");
                assert_eq!(loss, other);
            }
        }
    }

    /// Torch's random numbers belong to the whole process, so this one has a process of its own.
    #[test]
    fn both_passes_drop_the_same() {
        const ALONE: &str = "PIPE_TEST_ALONE";
        if std::env::var_os(ALONE).is_none() {
            let name = "train::gradient_cache::tests::both_passes_drop_the_same";
            let program = std::env::current_exe().unwrap();
            let ended = std::process::Command::new(program).args(["--exact", name]).env(ALONE, "1").output().unwrap();
            assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stdout));
            assert!(String::from_utf8_lossy(&ended.stdout).contains("1 passed"));
            return;
        }
        for checkpointing in [false, true] {
            let model = model(0.3, Setup { checkpointing, ..Setup::plain() });
            let parts = RandomParts::new(30, 8);
            let (want, loss) = held(model.as_ref(), &parts);
            let (got, other) = cached(model.as_ref(), &parts, 1.0);
            assert!(apart(&got, &want) < 1e-5 && loss == other, "{} {loss} {other}", apart(&got, &want));
            let (without, _) = cached(self::model(0.0, Setup::plain()).as_ref(), &parts, 1.0);
            assert!(apart(&without, &want) > 0.01, "nothing was dropped");
        }
    }

    /// Returns one number for everything and records the calls.
    struct Recorder {
        weight: Tensor,
        asked: RefCell<Vec<(Mode, bool)>>,
        losses: Cell<u32>,
    }

    impl Contrastive for Recorder {
        fn embed_images(&self, part: &Part, mode: Mode) -> Result<Tensor, TrainerError> {
            let images = part.get("pixel_values")?.f_flatten(1, 3)?.f_mul(&self.weight)?;
            self.asked.borrow_mut().push((mode, images.requires_grad()));
            Ok(images)
        }

        fn embed_texts(&self, part: &Part, _: Mode) -> Result<Tensor, TrainerError> {
            Ok(part.get("pixel_values")?.f_flatten(1, 3)?.f_mul(&self.weight)?.f_neg()?)
        }

        fn loss(&self, all: &Embeddings) -> Result<Tensor, TrainerError> {
            self.losses.set(self.losses.get() + 1);
            assert!(all.images.is_leaf() && all.images.size()[0] == 5, "the loss holds on to the graphs of parts");
            Ok(all.images.f_sub(&all.texts)?.f_square()?.f_mean(Kind::Float)?)
        }
    }

    #[test]
    fn no_graph_is_held_until_a_parts_turn_comes() {
        let weight = Tensor::from(2.0f32).set_requires_grad(true);
        let recorder = Recorder { weight, asked: RefCell::default(), losses: Cell::new(0) };
        let _ = backward(&recorder, &RandomParts::new(5, 2), 1.0).unwrap();
        let mode = |part: u32| Mode::Train(Drawn::new(100, part * 2));
        let want: Vec<(Mode, bool)> =
            [false, true].into_iter().flat_map(|graph| [0, 1, 2].map(|part| (mode(part), graph))).collect();
        assert_eq!((recorder.asked.into_inner(), recorder.losses.get()), (want, 1));
        assert!(recorder.weight.grad().defined());
    }
}

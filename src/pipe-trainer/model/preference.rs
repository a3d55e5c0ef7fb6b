//! A model that learns which of two answers is the better one, by direct preference optimization (DPO; Rafailov et al., 2023).
//!
//! A reward is how much more probable an answer is than it was for the reference: the model without its adapter, or a copy of the weights that
//! the training began with. The tokens that both answers begin with have no labels: what they would add to either cancels.

use pipe_spec::pipeline::{Preference, PreferenceLoss};
use serde_json::{Map, Value};
use tch::{Kind, Reduction, Tensor};

use super::interface::{Model, PairFigures, Pairs, Scorer, TextGenerator};
use super::pass::Mode;
use super::weights::Weights;
use crate::data::{IGNORED, Part, REJECTED_PREFIX};
use crate::error::TrainerError;
use crate::torch;

pub struct PreferenceModel {
    model: Box<dyn Model>,
    /// Absent where the model without its adapter is one.
    reference: Option<Box<dyn Model>>,
    preference: Preference,
}

/// One number for each pair, [pairs] in fp32.
struct Compared {
    loss: Tensor,
    /// The reward of the better answer less that of the other.
    margin: Tensor,
    /// 1 for each pair, and 0 for those that only round a part up.
    is_pair: Tensor,
}

impl PreferenceModel {
    pub fn new(
        model: Box<dyn Model>,
        reference: Option<Box<dyn Model>>,
        preference: Preference,
    ) -> Result<Self, TrainerError> {
        if model.scorer().is_none() {
            return Err(TrainerError::NotAvailable { what: "preferences of a model that is no decoder".to_owned() });
        }
        Ok(Self { model, reference, preference })
    }

    fn scorer(model: &dyn Model) -> Result<&dyn Scorer, TrainerError> {
        model.scorer().ok_or_else(|| TrainerError::Panic { message: "a model without probabilities".to_owned() })
    }

    fn compare(&self, part: &Part, mode: Mode) -> Result<Compared, TrainerError> {
        let (better, worse) = sides(part);
        let (model, reference) = (self.model.as_ref(), self.reference.as_deref());
        let before = tch::no_grad(|| -> Result<Tensor, TrainerError> {
            let reference = Self::scorer(reference.unwrap_or(model))?;
            difference(reference, [&better, &worse], Mode::Reference)
        })?;
        let now = difference(Self::scorer(model)?, [&better, &worse], mode)?;
        let margin = now.f_sub(&before)?.f_mul_scalar(self.preference.beta)?;
        let loss = match self.preference.loss {
            PreferenceLoss::Sigmoid => margin.f_log_sigmoid()?.f_neg()?,
            PreferenceLoss::Hinge => margin.f_neg()?.f_add_scalar(1.0)?.f_relu()?,
        };
        Ok(Compared { loss, is_pair: is_pair(part, &margin)?, margin })
    }
}

/// How much more probable the first answer is.
fn difference(scorer: &dyn Scorer, [better, worse]: [&Part; 2], mode: Mode) -> Result<Tensor, TrainerError> {
    Ok(scorer.log_probabilities(better, mode)?.f_sub(&scorer.log_probabilities(worse, mode)?)?)
}

/// The part of the better answers and that of the others, each as a language model knows its columns.
fn sides(part: &Part) -> (Part, Part) {
    part.tensors().fold(Default::default(), |(better, worse), (name, tensor)| {
        match name.strip_prefix(REJECTED_PREFIX) {
            Some(name) => (better, worse.with(name, tensor.shallow_clone())),
            None => (better.with(name, tensor.shallow_clone()), worse),
        }
    })
}

/// A packed part may be rounded up by samples without tokens.
fn is_pair(part: &Part, like: &Tensor) -> Result<Tensor, TrainerError> {
    match part.packed("ids") {
        Some(packed) => Ok(packed.lengths()?.f_gt(0)?.f_to_kind(like.kind())?),
        None => Ok(like.f_detach()?.f_ones_like()?),
    }
}

impl Model for PreferenceModel {
    fn weights(&self) -> &Weights {
        self.model.weights()
    }

    fn logits(&self, part: &Part, mode: Mode) -> Result<Tensor, TrainerError> {
        self.model.logits(part, mode)
    }

    fn loss_sum(&self, part: &Part, mode: Mode) -> Result<Tensor, TrainerError> {
        let Compared { loss, is_pair, .. } = self.compare(part, mode)?;
        Ok(loss.f_mul(&is_pair)?.f_sum(Kind::Float)?)
    }

    fn targets(&self, part: &Part) -> Result<i64, TrainerError> {
        match part.packed("ids") {
            Some(packed) => Ok(packed.lengths()?.f_gt(0)?.f_sum(Kind::Int64)?.f_int64_value(&[])?),
            None => Ok(part.get("ids")?.size()[0]),
        }
    }

    fn config(&self) -> Map<String, Value> {
        self.model.config()
    }

    fn text_generator(&self) -> Option<&dyn TextGenerator> {
        self.model.text_generator()
    }

    fn pairs(&self) -> Option<&dyn Pairs> {
        Some(self)
    }

    fn packs(&self) -> bool {
        self.model.packs()
    }

    fn row_multiple(&self) -> usize {
        self.model.row_multiple()
    }
}

impl Pairs for PreferenceModel {
    fn figures(&self, part: &Part) -> Result<PairFigures, TrainerError> {
        let Compared { loss, margin, is_pair } = self.compare(part, Mode::Eval)?;
        let sum = |values: &Tensor| values.f_mul(&is_pair)?.f_sum(Kind::Double)?.f_double_value(&[]);
        Ok(PairFigures {
            pairs: is_pair.f_sum(Kind::Double)?.f_double_value(&[])?,
            loss: sum(&loss)?,
            right: sum(&margin.f_gt(0.0)?)?,
            margin: sum(&margin)?,
        })
    }
}

/// The log probability of each of `labels` [n], 0 where it is ignored, for `hidden` [n, d] through the head `weight` [words, d]. The logits of only
/// `rows` rows exist at a time; they are computed again for the gradient.
pub fn log_probabilities(hidden: &Tensor, weight: &Tensor, labels: &Tensor, rows: i64) -> Result<Tensor, TrainerError> {
    let of_chunk = |inputs: &[&Tensor]| -> Result<Tensor, TrainerError> {
        let logits = inputs[0].f_linear(inputs[1], None::<&Tensor>)?.f_to_kind(Kind::Float)?;
        let losses = logits.f_cross_entropy_loss(inputs[2], None::<&Tensor>, Reduction::None, IGNORED, 0.0)?;
        Ok(losses.f_neg()?)
    };
    let count = hidden.size()[0];
    let mut all = Vec::new();
    for start in (0..count).step_by(rows.max(1) as usize) {
        let length = rows.max(1).min(count - start);
        let (hidden, labels) = (hidden.f_narrow(0, start, length)?, labels.f_narrow(0, start, length)?);
        all.push(match hidden.requires_grad() || weight.requires_grad() {
            true => torch::checkpoint(&[&hidden, weight, &labels], of_chunk)?,
            false => of_chunk(&[&hidden, weight, &labels])?,
        });
    }
    Ok(Tensor::f_cat(&all, 0)?)
}

#[cfg(test)]
mod tests {
    use tch::Device;

    use super::*;

    #[test]
    fn chunks_give_the_values_and_gradients_of_the_whole() {
        tch::manual_seed(3);
        let random = |shape: &[i64]| Tensor::randn(shape, (Kind::Float, Device::Cpu));
        let (hidden, weight) = (random(&[7, 5]), random(&[11, 5]));
        let labels = Tensor::from_slice(&[3i64, IGNORED, 0, 10, 7, IGNORED, 2]);
        let factors = random(&[7]);
        let gradients = |rows: i64| {
            let (hidden, weight) = (hidden.copy().set_requires_grad(true), weight.copy().set_requires_grad(true));
            let all = log_probabilities(&hidden, &weight, &labels, rows).unwrap();
            (&all * &factors).sum(Kind::Float).backward();
            [all.detach(), hidden.grad(), weight.grad()]
        };
        let want = hidden.matmul(&weight.tr()).log_softmax(-1, Kind::Float);
        let [all, ..] = gradients(3);
        assert_eq!((all.double_value(&[1]), all.double_value(&[5])), (0.0, 0.0));
        assert!((all.double_value(&[3]) - want.double_value(&[3, 10])).abs() < 1e-6);
        for (whole, chunks) in gradients(7).iter().zip(gradients(3)) {
            assert!(whole.allclose(&chunks, 1e-5, 1e-6, false), "{whole:?} and {chunks:?}");
        }
    }
}

//! The loss of models that predict labels of a text or of its tokens, or a number.

use pipe_model::LabelUnit;
use tch::{Kind, Reduction, Tensor};

use crate::data::{IGNORED, LOSS_WEIGHTS, Part};
use crate::error::TrainerError;

/// The training loss of a part, summed over its samples: of each times its weight, where samples have weights.
pub fn part_loss_sum(logits: &Tensor, part: &Part) -> Result<Tensor, TrainerError> {
    let labels = part.get("labels")?;
    let Some(weights) = part.find(LOSS_WEIGHTS) else { return loss_sum(logits, labels) };
    let logits = logits.f_to_kind(Kind::Float)?;
    let losses = logits.f_cross_entropy_loss(labels, None::<&Tensor>, Reduction::None, IGNORED, 0.0)?;
    Ok(losses.f_mul(weights)?.f_sum(Kind::Float)?)
}

/// The output of a model with a row for each sample, where there is one for each token.
pub fn unpacked(part: &Part, output: Tensor, is_by_token: bool) -> Result<Tensor, TrainerError> {
    match part.packed("input_ids").filter(|_| is_by_token) {
        Some(packed) => Ok(packed.unpacked(&output)?),
        None => Ok(output),
    }
}

/// Labels in the unit of a model's logits: numbers standardised, classes as they are.
pub fn standardised(labels: &Tensor, unit: LabelUnit) -> Result<Tensor, TrainerError> {
    if !labels.is_floating_point() || unit == LabelUnit::default() {
        return Ok(labels.shallow_clone());
    }
    Ok(labels.f_sub_scalar(unit.mean)?.f_div_scalar(unit.std)?)
}

/// Summed over the samples, in fp32: the cross-entropy of `logits` [samples, classes] where `labels` [samples] are classes,
/// their squared error where labels are numbers or there is one logit alone. Where `labels` [samples, labels] are 1 for each that
/// applies, the mean of the binary cross-entropies of a sample. Where tokens have labels, `logits` [samples, length, classes], the
/// sum is over the tokens.
pub fn loss_sum(logits: &Tensor, labels: &Tensor) -> Result<Tensor, TrainerError> {
    let logits = logits.f_to_kind(Kind::Float)?;
    if logits.dim() == 3 {
        let (logits, labels) = (logits.f_flatten(0, 1)?, labels.f_flatten(0, 1)?);
        return Ok(logits.f_cross_entropy_loss(&labels, None::<&Tensor>, Reduction::Sum, IGNORED, 0.0)?);
    }
    if is_several(labels) {
        let none = None::<&Tensor>;
        let sum = logits.f_binary_cross_entropy_with_logits(labels, none, none, Reduction::Sum)?;
        return Ok(sum.f_div_scalar(labels.size2()?.1)?);
    }
    if labels.is_floating_point() || logits.size2()?.1 == 1 {
        let apart = logits.f_select(1, 0)?.f_sub(&labels.f_to_kind(Kind::Float)?)?;
        return Ok(apart.f_square()?.f_sum(Kind::Float)?);
    }
    Ok(logits.f_cross_entropy_loss(labels, None::<&Tensor>, Reduction::Sum, IGNORED, 0.0)?)
}

/// Whether `labels` say of each of several labels whether it applies.
pub fn is_several(labels: &Tensor) -> bool {
    labels.dim() == 2 && labels.is_floating_point()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(logits: &[[f32; 2]], labels: &Tensor) -> f64 {
        let logits = Tensor::from_slice2(logits);
        loss_sum(&logits, labels).unwrap().double_value(&[])
    }

    #[test]
    fn classes_give_cross_entropy_and_numbers_a_squared_error() {
        let logits = [[0.0, 0.0], [0.0, 3f32.ln()]];
        let classes = value(&logits, &Tensor::from_slice(&[0i64, 1]));
        assert!((classes - (2f64.ln() - 0.75f64.ln())).abs() < 1e-6, "{classes}");
        let numbers = value(&[[1.0, 9.0], [-2.0, 9.0]], &Tensor::from_slice(&[3.0f32, 0.0]));
        assert!((numbers - 8.0).abs() < 1e-6, "{numbers}");
    }

    #[test]
    fn several_labels_give_the_mean_of_their_binary_cross_entropies() {
        let labels = Tensor::from_slice2(&[[1.0f32, 0.0], [0.0, 0.0]]);
        let loss = value(&[[3f32.ln(), 0.0], [0.0, 0.0]], &labels);
        let want = (-(0.75f64.ln()) + 3.0 * 2f64.ln()) / 2.0;
        assert!((loss - want).abs() < 1e-6, "{loss}");
    }

    #[test]
    fn labels_of_tokens_are_summed_over_those_that_have_one() {
        let logits = Tensor::zeros([2, 3, 4], (Kind::Float, tch::Device::Cpu));
        let labels = Tensor::from_slice2(&[[1i64, IGNORED, IGNORED], [0, 3, IGNORED]]);
        let loss = loss_sum(&logits, &labels).unwrap().double_value(&[]);
        assert!((loss - 3.0 * 4f64.ln()).abs() < 1e-6, "{loss}");
    }

    #[test]
    fn a_weight_multiplies_the_loss_of_its_sample() {
        let logits = Tensor::from_slice2(&[[0.0f32, 0.0], [0.0, 3f32.ln()]]);
        let labels = Tensor::from_slice(&[0i64, 1]);
        let part = |weights: [f32; 2]| {
            let part = Part::default().with("labels", labels.shallow_clone());
            part.with(LOSS_WEIGHTS, Tensor::from_slice(&weights))
        };
        let sum = |weights| part_loss_sum(&logits, &part(weights)).unwrap().double_value(&[]);
        assert!((sum([0.5, 2.0]) - (0.5 * 2f64.ln() - 2.0 * 0.75f64.ln())).abs() < 1e-6);
        assert!((sum([1.0, 1.0]) - loss_sum(&logits, &labels).unwrap().double_value(&[])).abs() < 1e-6);
    }

    #[test]
    fn narrow_logits_are_summed_wide() {
        let logits = Tensor::zeros([1000, 2], (Kind::BFloat16, tch::Device::Cpu));
        let sum = loss_sum(&logits, &Tensor::zeros([1000], (Kind::Int64, tch::Device::Cpu))).unwrap();
        assert_eq!(sum.kind(), Kind::Float);
        assert!((sum.double_value(&[]) - 1000.0 * 2f64.ln()).abs() < 1e-3);
    }
}

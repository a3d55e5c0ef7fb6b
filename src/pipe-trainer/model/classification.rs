//! The loss of models that predict classes or a number.

use tch::{Kind, Reduction, Tensor};

use crate::data::IGNORED;
use crate::error::TrainerError;

/// Summed over the samples, in fp32: the cross-entropy of `logits` [samples, classes] where `labels` [samples] are classes,
/// their squared error where labels are numbers or there is one logit alone.
pub fn loss_sum(logits: &Tensor, labels: &Tensor) -> Result<Tensor, TrainerError> {
    let logits = logits.f_to_kind(Kind::Float)?;
    if labels.is_floating_point() || logits.size2()?.1 == 1 {
        let apart = logits.f_select(1, 0)?.f_sub(&labels.f_to_kind(Kind::Float)?)?;
        return Ok(apart.f_square()?.f_sum(Kind::Float)?);
    }
    Ok(logits.f_cross_entropy_loss(labels, None::<&Tensor>, Reduction::Sum, IGNORED, 0.0)?)
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
    fn narrow_logits_are_summed_wide() {
        let logits = Tensor::zeros([1000, 2], (Kind::BFloat16, tch::Device::Cpu));
        let sum = loss_sum(&logits, &Tensor::zeros([1000], (Kind::Int64, tch::Device::Cpu))).unwrap();
        assert_eq!(sum.kind(), Kind::Float);
        assert!((sum.double_value(&[]) - 1000.0 * 2f64.ln()).abs() < 1e-3);
    }
}

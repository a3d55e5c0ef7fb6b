//! Whether tensors hold numbers only: no infinity, and nothing that is not a number.

use tch::{Device, Kind, TchError, Tensor};

/// The name of the first tensor with a value that is not finite. Each tensor is read once where it lies, without a copy; the
/// device is waited for once, at the end.
pub fn first_not_finite<'a>(tensors: &'a [(String, &Tensor)]) -> Result<Option<&'a str>, TchError> {
    let mut names = Vec::new();
    let mut extremes = Vec::new();
    for (name, tensor) in tensors {
        if !matches!(tensor.kind(), Kind::Float | Kind::Double | Kind::Half | Kind::BFloat16) || tensor.numel() == 0 {
            continue;
        }
        // Both are not a number where any value is none.
        let (least, most) = tensor.f_detach()?.f_aminmax(None, false)?;
        names.push(name.as_str());
        extremes.push(least.f_to_kind(Kind::Float)?);
        extremes.push(most.f_to_kind(Kind::Float)?);
    }
    if extremes.is_empty() {
        return Ok(None);
    }
    let extremes: Vec<f32> = Vec::try_from(Tensor::f_stack(&extremes, 0)?.f_to_device(Device::Cpu)?)?;
    let bad = extremes.chunks_exact(2).position(|pair| !pair.iter().all(|value| value.is_finite()));
    Ok(bad.map(|index| names[index]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_bad_tensor_is_named() {
        let good = Tensor::from_slice(&[1.0f32, -f32::MAX, f32::MAX]);
        let count = Tensor::from_slice(&[i64::MAX]);
        let empty = Tensor::zeros([0], (Kind::Float, Device::Cpu));
        let named = |tensors: &[&Tensor]| -> Vec<(String, Tensor)> {
            tensors.iter().enumerate().map(|(index, tensor)| (format!("t{index}"), tensor.shallow_clone())).collect()
        };
        let first = |tensors: &[&Tensor]| {
            let all = named(tensors);
            let all: Vec<(String, &Tensor)> = all.iter().map(|(name, tensor)| (name.clone(), tensor)).collect();
            first_not_finite(&all).unwrap().map(str::to_owned)
        };
        assert_eq!(first(&[]), None);
        assert_eq!(first(&[&good, &count, &empty]), None);
        for value in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            // Far behind what is read at once, and in every kind that is saved.
            let mut values = vec![0.5f32; 100_003];
            values[77_777] = value;
            let bad = Tensor::from_slice(&values);
            for kind in [Kind::Float, Kind::Half, Kind::BFloat16] {
                let bad = bad.to_kind(kind);
                assert_eq!(first(&[&good, &bad, &bad]).as_deref(), Some("t1"), "{value} {kind:?}");
            }
        }
    }
}

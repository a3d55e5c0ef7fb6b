//! How near predicted numbers are to those that were wanted.

pub fn mean_squared_error(wanted: &[f64], predicted: &[f64]) -> f64 {
    mean(&wanted.iter().zip(predicted).map(|(wanted, predicted)| (wanted - predicted).powi(2)).collect::<Vec<_>>())
}

/// Pearson's correlation coefficient; there is none where one of the two is always the same.
pub fn pearson(wanted: &[f64], predicted: &[f64]) -> Option<f64> {
    let centred = |values: &[f64]| -> Vec<f64> {
        let mean = mean(values);
        values.iter().map(|value| value - mean).collect()
    };
    let (wanted, predicted) = (centred(wanted), centred(predicted));
    let product = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
    let scale = (product(&wanted, &wanted) * product(&predicted, &predicted)).sqrt();
    (scale > 0.0).then(|| product(&wanted, &predicted) / scale)
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_pairs() {
        type Case = (&'static [f64], &'static [f64], f64, Option<f64>);
        let cases: [Case; 5] = [
            // The example of scikit-learn's mean_squared_error; its correlation from the sums of products of centred values.
            (&[3.0, -0.5, 2.0, 7.0], &[2.5, 0.0, 2.0, 8.0], 0.375, Some(31.5625 / (29.1875f64 * 35.1875).sqrt())),
            (&[1.0, 2.0, 3.0], &[2.0, 4.0, 6.0], 14.0 / 3.0, Some(1.0)),
            (&[1.0, 2.0, 3.0], &[3.0, 2.0, 1.0], 8.0 / 3.0, Some(-1.0)),
            (&[1.0, 2.0], &[5.0, 5.0], 12.5, None),
            (&[], &[], 0.0, None),
        ];
        for (wanted, predicted, error, correlation) in cases {
            let got = (mean_squared_error(wanted, predicted), pearson(wanted, predicted));
            assert!((got.0 - error).abs() < 1e-12, "{got:?}");
            match (got.1, correlation) {
                (Some(got), Some(want)) => assert!((got - want).abs() < 1e-12, "{got} {want}"),
                (got, want) => assert_eq!(got, want),
            }
        }
    }
}

//! Features brought to mean 0 and standard deviation 1.

#[derive(Clone, Debug, PartialEq)]
pub struct Standard {
    pub mean: Vec<f64>,
    /// 1 for a feature that never changes.
    pub std: Vec<f64>,
}

impl Standard {
    /// Of rows of `width` features, in several stretches.
    pub fn of(stretches: &[&[f64]], width: usize) -> Self {
        let rows = || stretches.iter().flat_map(|stretch| stretch.chunks_exact(width));
        let count = rows().count().max(1) as f64;
        let mut mean = vec![0.0; width];
        for row in rows() {
            mean.iter_mut().zip(row).for_each(|(sum, value)| *sum += value);
        }
        mean.iter_mut().for_each(|sum| *sum /= count);
        let mut std = vec![0.0; width];
        let mut changes = vec![false; width];
        let first: Vec<f64> = rows().next().map(<[f64]>::to_vec).unwrap_or_default();
        for row in rows() {
            for (index, value) in row.iter().enumerate() {
                std[index] += (value - mean[index]).powi(2);
                changes[index] |= *value != first[index];
            }
        }
        for (sum, changes) in std.iter_mut().zip(changes) {
            *sum = if changes { (*sum / count).sqrt() } else { 1.0 };
        }
        Self { mean, std }
    }

    pub fn apply(&self, values: &[f64]) -> Vec<f32> {
        let width = self.mean.len();
        let scaled = |(index, value): (usize, &f64)| {
            let feature = index % width;
            ((value - self.mean[feature]) / self.std[feature]) as f32
        };
        values.iter().enumerate().map(scaled).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_feature_gets_mean_0_and_deviation_1() {
        let (one, two) = ([1.0, 1e9, 0.1], [3.0, 1e9 + 2.0, 0.1, 8.0, 1e9 + 4.0, 0.1]);
        let standard = Standard::of(&[&one, &two], 3);
        assert_eq!((standard.mean[0], standard.mean[1]), (4.0, 1e9 + 2.0));
        assert!((standard.std[0] - (26f64 / 3.0).sqrt()).abs() < 1e-12, "{standard:?}");
        assert_eq!(standard.std[2], 1.0);
        let all: Vec<f32> = [standard.apply(&one), standard.apply(&two)].concat();
        for feature in 0..2 {
            let values: Vec<f32> = all.iter().skip(feature).step_by(3).copied().collect();
            let mean = values.iter().sum::<f32>() / 3.0;
            let var = values.iter().map(|value| (value - mean).powi(2)).sum::<f32>() / 3.0;
            assert!(mean.abs() < 1e-6 && (var - 1.0).abs() < 1e-6, "{values:?}");
        }
        // It never changes, and rounding of its mean is not taken for a change.
        assert!(all.iter().skip(2).step_by(3).all(|value| value.abs() < 1e-6), "{all:?}");
    }
}

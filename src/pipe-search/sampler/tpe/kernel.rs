//! The densities of one parameter: one around each observed value, and a wide one that is there before any.

use crate::axis::{Axis, Scale};
use crate::normal;
use crate::sampler::Stream;

#[derive(Clone, Debug)]
pub(super) enum Kernel {
    /// There is nothing to choose.
    Certain,
    /// Every category has `base`, the observed one 1 more; then all are divided by their sum.
    Category { observed: Option<usize>, base: f64, count: usize },
    /// A normal distribution between `low` and `high`. `log_norm` is what its density, or the mass of a cell, is divided by.
    Normal { mean: f64, deviation: f64, low: f64, high: f64, log_norm: f64 },
}

/// The kernels of the observed coordinates, in their order, and the wide one at the end.
pub(super) fn kernels(scale: Scale, observed: &[f64]) -> Vec<Kernel> {
    let count = observed.len() + 1;
    match scale {
        Scale::Fixed => vec![Kernel::Certain; count],
        Scale::Categories(categories) => {
            let base = 1.0 / count as f64;
            let kernel = |observed| Kernel::Category { observed, base, count: categories };
            observed.iter().map(|index| kernel(Some(*index as usize))).chain([kernel(None)]).collect()
        }
        Scale::Line { low, high, stepped, .. } => {
            let range = high - low;
            let narrowest = range / (1.0 + count as f64).min(100.0);
            let kernel = |mean: f64, deviation: f64| {
                let log_mass = normal::log_mass((low - mean) / deviation, (high - mean) / deviation);
                let log_norm = if stepped { log_mass } else { log_mass + libm::log(deviation) };
                Kernel::Normal { mean, deviation, low, high, log_norm }
            };
            let around = deviations(observed, low, high);
            let around = observed.iter().zip(around).map(|(mean, gap)| kernel(*mean, gap.clamp(narrowest, range)));
            around.chain([kernel((low + high) / 2.0, range)]).collect()
        }
    }
}

/// The larger of the distances to both neighbours. The ends of the line are not neighbours, unless there is no other.
fn deviations(observed: &[f64], low: f64, high: f64) -> Vec<f64> {
    let mut order: Vec<usize> = (0..observed.len()).collect();
    order.sort_by(|left, right| observed[*left].total_cmp(&observed[*right]));
    let mut deviations = vec![0.0; observed.len()];
    for (place, index) in order.iter().enumerate() {
        let here = observed[*index];
        let before = place.checked_sub(1).map(|place| here - observed[order[place]]);
        let after = order.get(place + 1).map(|index| observed[*index] - here);
        deviations[*index] = match (before, after) {
            (Some(before), Some(after)) => before.max(after),
            (Some(only), None) | (None, Some(only)) => only,
            (None, None) => (here - low).max(high - here),
        };
    }
    deviations
}

impl Kernel {
    pub(super) fn draw(&self, stream: &mut Stream) -> f64 {
        match *self {
            Self::Certain => 0.0,
            Self::Category { observed, base, count } => {
                // Of the sum `count * base + 1` the observed one has 1 for itself.
                match observed {
                    Some(index) if stream.uniform() * (count as f64 * base + 1.0) < 1.0 => index as f64,
                    _ => stream.index(count) as f64,
                }
            }
            Self::Normal { mean, deviation, low, high, .. } => {
                // The mean is inside and the deviation at most the range, so that a third of all draws is inside at least.
                for _ in 0..1000 {
                    let position = mean + deviation * stream.normal();
                    if (low..=high).contains(&position) {
                        return position;
                    }
                }
                mean
            }
        }
    }

    /// The logarithm of the density, or of the probability where the domain has steps.
    pub(super) fn log_density(&self, axis: &Axis, coordinate: f64) -> f64 {
        match *self {
            Self::Certain => 0.0,
            Self::Category { observed, base, count } => {
                let own = if observed == Some(coordinate as usize) { 1.0 } else { 0.0 };
                let sum = count as f64 * base + if observed.is_some() { 1.0 } else { 0.0 };
                libm::log((base + own) / sum)
            }
            Self::Normal { mean, deviation, log_norm, .. } => match axis.cell(coordinate) {
                Some((left, right)) => {
                    normal::log_mass((left - mean) / deviation, (right - mean) / deviation) - log_norm
                }
                None => normal::log_density((coordinate - mean) / deviation) - log_norm,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::space::Domain;

    #[test]
    fn a_kernel_is_as_wide_as_its_larger_gap() {
        let table: [(&[f64], &[f64]); 4] =
            [(&[], &[]), (&[0.2], &[0.8]), (&[0.9, 0.2], &[0.7, 0.7]), (&[0.5, 0.1, 0.6], &[0.4, 0.4, 0.1])];
        for (observed, expected) in table {
            let found = deviations(observed, 0.0, 1.0);
            assert!(found.iter().zip(expected).all(|(one, other)| (one - other).abs() < 1e-12), "{found:?}");
        }
    }

    #[test]
    fn probabilities_sum_to_one() {
        let domains = [
            Domain::Int { low: 1, high: 40, log: true, step: 1 },
            Domain::Int { low: -3, high: 40, log: false, step: 4 },
            Domain::Float { low: 0.0, high: 1.0, log: false, step: Some(0.1) },
            Domain::Choices(vec![json!("a"), json!("b"), json!(3)]),
        ];
        for domain in domains {
            let axis = Axis::new(&domain);
            let count = domain.count().unwrap();
            let coordinates: Vec<f64> = (0..count).map(|number| axis.locate(&axis.nth(number)).unwrap()).collect();
            for kernel in kernels(axis.scale(), &[coordinates[1], coordinates[2], coordinates[1]]) {
                let sum: f64 = coordinates.iter().map(|one| libm::exp(kernel.log_density(&axis, *one))).sum();
                assert!((sum - 1.0).abs() < 1e-9, "{domain:?} {kernel:?}: {sum}");
            }
        }
    }
}

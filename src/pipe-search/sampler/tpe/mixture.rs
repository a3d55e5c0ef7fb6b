//! Densities over a space: a mixture of one kernel for each trial, and the kernels by axis.

use crate::axis::{Axis, Point, Scale, Space, log_density, log_mass as mass, log_sum};
use crate::sampler::Stream;
use crate::trial::Trial;

const PRIOR_WEIGHT: f64 = 1.0;

pub(super) struct Mixture<'a> {
    space: &'a Space,
    axes: &'a [Axis<'a>],
    weights: Vec<f64>,
    columns: Vec<Column>,
}

/// One parameter.
struct Column {
    kernels: Vec<Kernel>,
    /// The weights of the components that these kernels are of.
    weights: Vec<f64>,
    /// The kernel of each component.
    kernel_of: Vec<Option<usize>>,
}

pub(super) struct Candidate {
    pub(super) point: Point,
    /// The coordinate of each parameter that the point has.
    coordinates: Vec<Option<f64>>,
}

impl<'a> Mixture<'a> {
    pub(super) fn of(space: &'a Space, axes: &'a [Axis<'a>], trials: &[&Trial], weights: &[f64]) -> Self {
        let weights: Vec<f64> = weights.iter().copied().chain([PRIOR_WEIGHT]).collect();
        let columns = space
            .parameters
            .iter()
            .zip(axes)
            .map(|(parameter, axis)| {
                let value = |trial: &&Trial| trial.point.get(&parameter.name).and_then(|value| axis.locate(value));
                Column::of(axis, &trials.iter().map(value).collect::<Vec<_>>(), &weights)
            })
            .collect();
        Self { space, axes, weights, columns }
    }

    pub(super) fn draw(&self, stream: &mut Stream) -> Candidate {
        let component = stream.weighted(&self.weights);
        let mut point = Point::new();
        let mut coordinates = Vec::with_capacity(self.axes.len());
        for ((parameter, axis), column) in self.space.parameters.iter().zip(self.axes).zip(&self.columns) {
            if !parameter.applies(&point) {
                coordinates.push(None);
                continue;
            }
            let kernel = column.kernel_of[component].unwrap_or_else(|| stream.weighted(&column.weights));
            let value = axis.value(column.kernels[kernel].draw(stream));
            coordinates.push(axis.locate(&value));
            point.insert(parameter.name.clone(), value);
        }
        Candidate { point, coordinates }
    }

    pub(super) fn log_density(&self, candidate: &Candidate) -> f64 {
        let mut components: Vec<f64> = self.weights.iter().map(|weight| libm::log(*weight)).collect();
        for ((column, axis), coordinate) in self.columns.iter().zip(self.axes).zip(&candidate.coordinates) {
            if let Some(coordinate) = coordinate {
                column.add_log_densities(axis, *coordinate, &mut components);
            }
        }
        log_sum(&components) - libm::log(self.weights.iter().sum::<f64>())
    }
}

impl Column {
    /// `coordinates` are those of the trials; the component that is there before any comes after them.
    fn of(axis: &Axis, coordinates: &[Option<f64>], component_weights: &[f64]) -> Self {
        let observed: Vec<f64> = coordinates.iter().copied().flatten().collect();
        let kernels = kernels(axis.scale(), &observed);
        let mut kernel_of = Vec::with_capacity(component_weights.len());
        let mut weights = Vec::with_capacity(kernels.len());
        for (has_kernel, weight) in coordinates.iter().map(Option::is_some).chain([true]).zip(component_weights) {
            kernel_of.push(has_kernel.then_some(weights.len()));
            if has_kernel {
                weights.push(*weight);
            }
        }
        Self { kernels, weights, kernel_of }
    }

    fn add_log_densities(&self, axis: &Axis, coordinate: f64, components: &mut [f64]) {
        let densities: Vec<f64> = self.kernels.iter().map(|kernel| kernel.log_density(axis, coordinate)).collect();
        let all = if self.kernel_of.contains(&None) {
            let weighted: Vec<f64> =
                densities.iter().zip(&self.weights).map(|(density, weight)| density + libm::log(*weight)).collect();
            log_sum(&weighted) - libm::log(self.weights.iter().sum::<f64>())
        } else {
            0.0
        };
        for (component, kernel) in components.iter_mut().zip(&self.kernel_of) {
            *component += kernel.map_or(all, |kernel| densities[kernel]);
        }
    }
}

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
                let log_mass = mass((low - mean) / deviation, (high - mean) / deviation);
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
    for (rank, index) in order.iter().enumerate() {
        let here = observed[*index];
        let before = rank.checked_sub(1).map(|rank| here - observed[order[rank]]);
        let after = order.get(rank + 1).map(|index| observed[*index] - here);
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
                // The observed one has 1 of the sum `count * base + 1` for itself.
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
                Some((left, right)) => mass((left - mean) / deviation, (right - mean) / deviation) - log_norm,
                None => log_density((coordinate - mean) / deviation) - log_norm,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::axis::{Condition, Domain, Parameter, Test};
    use crate::sampler::tpe::fading_weights;

    fn parameter(name: &str, domain: Domain) -> Parameter {
        Parameter { name: name.to_owned(), domain, when: vec![] }
    }

    fn space() -> Space {
        let float = |low, high, log, step| Domain::Float { low, high, log, step };
        Space {
            parameters: vec![
                parameter("depth", Domain::Int { low: 1, high: 9, log: false, step: 2 }),
                parameter("drop", float(0.0, 0.5, false, Some(0.1))),
                parameter("kind", Domain::Choices(vec![json!("a"), json!("b"), json!("c")])),
                parameter("rate", float(1e-4, 1.0, true, None)),
                parameter("width", Domain::Int { low: 1, high: 300, log: true, step: 1 }),
                parameter("x", float(-3.0, 3.0, false, None)),
            ],
        }
    }

    fn trial(number: u64) -> Trial {
        let part = |factor: u64, of: u64| ((number * factor) % of) as f64;
        let point = [
            ("depth", json!(1 + 2 * ((number * 13) % 5))),
            ("drop", json!(0.1 * part(17, 6))),
            ("kind", json!(["a", "b", "c"][(number * 7 % 3) as usize])),
            ("rate", json!(libm::pow(10.0, -4.0 + 4.0 * part(37, 101) / 101.0))),
            ("width", json!(1 + number * 71 % 300)),
            ("x", json!(-3.0 + 6.0 * part(53, 97) / 97.0)),
        ];
        Trial::new(number, point.into_iter().map(|(name, value)| (name.to_owned(), value)).collect())
    }

    /// The expected values are those of `_ParzenEstimator.log_pdf` of Optuna 5.0.0, where NumPy keeps equal values in
    /// their order (`argsort` with `kind="stable"`).
    #[test]
    fn densities_are_those_of_optuna() {
        let table = [
            (0, [-15.66657683477574, -16.114588555243728, -14.088671263401297, -15.180804194216435]),
            (1, [-15.953357999869818, -16.2865082205885, -13.679620664829011, -15.602066377810084]),
            (5, [-15.716415408958094, -16.80770592732845, -15.723439662350629, -14.559015834616247]),
            (40, [-18.420626362755552, -19.63171538702677, -17.605798041448736, -18.69449662109019]),
        ];
        let space = space();
        let axes: Vec<Axis> = space.parameters.iter().map(|parameter| Axis::new(&parameter.domain)).collect();
        for (count, expected) in table {
            let trials: Vec<Trial> = (0..count).map(trial).collect();
            let trials: Vec<&Trial> = trials.iter().collect();
            let mixture = Mixture::of(&space, &axes, &trials, &fading_weights(trials.len()));
            for (number, expected) in (100..).zip(expected) {
                let point = trial(number).point;
                let coordinates =
                    space.parameters.iter().zip(&axes).map(|(one, axis)| axis.locate(&point[&one.name])).collect();
                let density = mixture.log_density(&Candidate { point, coordinates });
                assert!((density - expected).abs() < 1e-8, "{count} trials, {number}: {density}, not {expected}");
            }
        }
    }

    /// With conditions and missing values it is still one density: its integral, by drawing, is 1.
    #[test]
    fn conditional_densities_sum_to_one() {
        let mut space = Space {
            parameters: vec![
                parameter("kind", Domain::Choices(vec![json!("a"), json!("b")])),
                parameter("count", Domain::Int { low: 1, high: 4, log: false, step: 1 }),
                parameter("more", Domain::Choices(vec![json!(1), json!(2), json!(3)])),
            ],
        };
        space.parameters[1].when =
            vec![Condition { parameter: "kind".to_owned(), test: Test::OneOf(vec![json!("b")]) }];
        space.parameters[2].when = vec![Condition { parameter: "count".to_owned(), test: Test::Above(2.0) }];
        let axes: Vec<Axis> = space.parameters.iter().map(|parameter| Axis::new(&parameter.domain)).collect();
        let point = |text: &str| serde_json::from_str::<Point>(text).unwrap();
        let trials = [
            Trial::new(0, point(r#"{"kind": "a"}"#)),
            Trial::new(1, point(r#"{"kind": "b", "count": 3, "more": 2}"#)),
            Trial::new(2, point(r#"{"kind": "b", "count": 1}"#)),
            Trial::new(3, point(r#"{"count": 9, "other": 1}"#)),
        ];
        let trials: Vec<&Trial> = trials.iter().collect();
        let mixture = Mixture::of(&space, &axes, &trials, &[1.0, 0.5, 1.0, 1.0]);
        let mut seen: Vec<(Point, f64)> = Vec::new();
        let mut stream = Stream::new(0, 0);
        for _ in 0..5000 {
            let candidate = mixture.draw(&mut stream);
            if seen.iter().all(|(point, _)| *point != candidate.point) {
                let probability = libm::exp(mixture.log_density(&candidate));
                seen.push((candidate.point, probability));
            }
        }
        // a; b with 1 or 2; b with 3 or 4 and one of three.
        assert_eq!(seen.len(), 1 + 2 + 2 * 3);
        let sum: f64 = seen.iter().map(|(_, probability)| probability).sum();
        assert!((sum - 1.0).abs() < 1e-9, "{sum}");
    }

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

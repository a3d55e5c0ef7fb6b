//! The density that some trials make over the whole space.
//!
//! Each trial is a component, with one kernel for each parameter it has a value of; another component is there before any trial.
//! Where a trial has no value of a parameter that a candidate has (its conditions did not hold there, or it is of another space), the
//! mixture of all components that have one takes its place: such a trial still teaches what it can, and all of it is one density.

use super::kernel::{Kernel, kernels};
use crate::axis::Axis;
use crate::normal::log_sum;
use crate::sampler::Stream;
use crate::space::{Point, Space};
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
    /// Of each component which kernel it has.
    kernel_of: Vec<Option<usize>>,
}

pub(super) struct Candidate {
    pub(super) point: Point,
    /// Of each parameter that the point has.
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::sampler::tpe::fading_weights;
    use crate::space::{Condition, Domain, Parameter, Test};

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
}

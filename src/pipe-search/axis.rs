//! The values of one domain as coordinates: what samplers draw, and what densities are over.
//!
//! The space of a study: parameters, the values that each may have, and under which conditions there is one at all.
//!
//! The normal distribution, in logarithms so that its tails do not become 0.

use std::collections::BTreeMap;

use serde_json::Value;

/// A domain with its coordinates: the index of a choice, or a number's position, which is its logarithm where the domain is logarithmic.
#[derive(Clone, Debug)]
pub(crate) struct Axis<'a> {
    domain: &'a Domain,
    scale: Scale,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Scale {
    /// There is one value, or none.
    Fixed,
    Categories(usize),
    /// The positions from `low` to `high`. Those of a domain with steps begin half a step before its first value and end half a step
    /// after its last, so that each value has a cell of its own.
    Line {
        low: f64,
        high: f64,
        log: bool,
        stepped: bool,
    },
}

impl<'a> Axis<'a> {
    pub(crate) fn new(domain: &'a Domain) -> Self {
        Self { domain, scale: Scale::of(domain) }
    }

    pub(crate) fn scale(&self) -> Scale {
        self.scale
    }

    /// The coordinate of a value; absent where the domain has no such value.
    pub(crate) fn locate(&self, value: &Value) -> Option<f64> {
        match (self.domain, self.scale) {
            (Domain::Choices(choices), _) => {
                choices.iter().position(|choice| same(choice, value)).map(|index| index as f64)
            }
            (Domain::Float { low, high, .. }, scale) => scale.position_within(value.as_f64()?, *low, *high),
            (Domain::Int { low, high, .. }, scale) => scale.position_within(value.as_f64()?, *low as f64, *high as f64),
        }
    }

    /// The value whose coordinate is nearest.
    pub(crate) fn value(&self, coordinate: f64) -> Value {
        match self.domain {
            Domain::Choices(choices) => choices.get(coordinate as usize).cloned().unwrap_or(Value::Null),
            Domain::Float { low, high, step, .. } => Value::from(match step {
                None => self.scale.number(coordinate).clamp(*low, high.max(*low)),
                Some(step) => {
                    let index = self.index(coordinate, *low, *step);
                    shortened(low + index * step).clamp(*low, high.max(*low))
                }
            }),
            Domain::Int { low, step, .. } => {
                let index = self.index(coordinate, *low as f64, (*step).max(1) as f64) as i128;
                let value = i128::from(*low) + index * i128::from((*step).max(1));
                Value::from(i64::try_from(value).unwrap_or(*low))
            }
        }
    }

    /// The positions between which a value is the nearest; absent where values are not apart from each other.
    pub(crate) fn cell(&self, coordinate: f64) -> Option<(f64, f64)> {
        let Scale::Line { low, high, stepped: true, .. } = self.scale else { return None };
        let (first, step) = self.steps();
        let index = self.index(coordinate, first, step);
        let edge = |number: f64| if number <= first - step / 2.0 { low } else { self.scale.position(number) };
        let middle = first + index * step;
        Some((edge(middle - step / 2.0), edge(middle + step / 2.0).min(high)))
    }

    /// The coordinate that is this part of the way from the first to the last, from 0 to below 1. All have equal chances where all parts
    /// have.
    pub(crate) fn at(&self, part: f64) -> f64 {
        match self.scale {
            Scale::Fixed => self.only_coordinate(),
            Scale::Categories(count) => (part * count as f64).floor(),
            Scale::Line { low, high, .. } => low + part * (high - low),
        }
    }

    /// The coordinate that is used where there is nothing to choose.
    pub(crate) fn only_coordinate(&self) -> f64 {
        match self.domain {
            Domain::Choices(_) => 0.0,
            Domain::Float { low, .. } => *low,
            Domain::Int { low, .. } => *low as f64,
        }
    }

    /// The value with this number, counted from 0.
    pub(crate) fn nth(&self, number: u64) -> Value {
        match self.domain {
            Domain::Choices(_) => self.value(number as f64),
            Domain::Float { step: None, .. } => self.value(self.only_coordinate()),
            _ => {
                let (first, step) = self.steps();
                self.value(self.scale.position(first + number as f64 * step))
            }
        }
    }

    /// The number of a value; absent where it is not one of those that are counted.
    pub(crate) fn index_of(&self, value: &Value) -> Option<u64> {
        let coordinate = self.locate(value)?;
        match self.domain {
            Domain::Choices(_) => Some(coordinate as u64),
            Domain::Float { step: None, .. } => Some(0),
            _ => {
                let (first, step) = self.steps();
                let index = self.index(coordinate, first, step);
                ((value.as_f64()? - first) / step - index).abs().lt(&1e-6).then_some(index as u64)
            }
        }
    }

    /// The number of the nearest value, counted from the first.
    fn index(&self, coordinate: f64, first: f64, step: f64) -> f64 {
        let last = self.domain.count().unwrap_or(1).saturating_sub(1) as f64;
        ((self.scale.number(coordinate) - first) / step).round().clamp(0.0, last)
    }

    fn steps(&self) -> (f64, f64) {
        match self.domain {
            Domain::Float { low, step: Some(step), .. } => (*low, *step),
            Domain::Int { low, step, .. } => (*low as f64, (*step).max(1) as f64),
            _ => (0.0, 1.0),
        }
    }
}

impl Scale {
    fn of(domain: &Domain) -> Self {
        match domain {
            Domain::Choices(choices) if choices.len() > 1 => Self::Categories(choices.len()),
            Domain::Float { low, high, log, step: None } if low < high => Self::line(*low, *high, *log, None),
            Domain::Float { low, log, step: Some(step), .. } => match domain.count() {
                Some(count) if count > 1 => Self::line(*low, low + (count - 1) as f64 * step, *log, Some(*step)),
                _ => Self::Fixed,
            },
            Domain::Int { low, high, log, step } if low < high => {
                let step = i128::from((*step).max(1));
                let last = i128::from(*low) + (i128::from(*high) - i128::from(*low)) / step * step;
                if last == i128::from(*low) {
                    return Self::Fixed;
                }
                Self::line(*low as f64, last as f64, *log, Some(step as f64))
            }
            _ => Self::Fixed,
        }
    }

    fn line(low: f64, high: f64, log: bool, step: Option<f64>) -> Self {
        let log = log && low > 0.0;
        let half = step.unwrap_or(0.0) / 2.0;
        // A step that is larger than the first value would end below 0, which has no logarithm.
        let first = if log { (low - half).max(low / 2.0) } else { low - half };
        let scale = Self::Line { low: first, high: high + half, log, stepped: step.is_some() };
        match scale {
            Self::Line { low, high, log: true, stepped } => {
                Self::Line { low: libm::log(low), high: libm::log(high), log: true, stepped }
            }
            scale => scale,
        }
    }

    fn position(self, number: f64) -> f64 {
        if matches!(self, Self::Line { log: true, .. }) { libm::log(number) } else { number }
    }

    fn number(self, position: f64) -> f64 {
        if matches!(self, Self::Line { log: true, .. }) { libm::exp(position) } else { position }
    }

    fn position_within(self, number: f64, low: f64, high: f64) -> Option<f64> {
        (low <= number && number <= high).then(|| self.position(number))
    }
}

/// The number without what adding steps up made of its last digit: 0.3 and not 0.30000000000000004.
fn shortened(number: f64) -> f64 {
    format!("{number:.14e}").parse().unwrap_or(number)
}

/// The values of one trial. A parameter whose conditions do not hold has none.
pub type Point = BTreeMap<String, Value>;

#[derive(Clone, Debug, PartialEq)]
pub struct Space {
    /// Those that conditions name come before those that have them.
    pub parameters: Vec<Parameter>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Parameter {
    /// The path of a setting, such as `train.optimizer.lr`.
    pub name: String,
    pub domain: Domain,
    /// All must hold.
    pub when: Vec<Condition>,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Domain {
    /// Numbers, texts, true, false or null, in no order.
    Choices(Vec<Value>),
    /// From `low` to `high`, both among them; with `step` only `low` and what is a whole number of steps above it.
    Float {
        low: f64,
        high: f64,
        log: bool,
        step: Option<f64>,
    },
    Int {
        low: i64,
        high: i64,
        log: bool,
        step: i64,
    },
}

/// Something that must hold of another parameter. One that has no value fulfils nothing.
#[derive(Clone, Debug, PartialEq)]
pub struct Condition {
    pub parameter: String,
    pub test: Test,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Test {
    Above(f64),
    Below(f64),
    OneOf(Vec<Value>),
}

impl Space {
    pub fn parameter(&self, name: &str) -> Option<&Parameter> {
        self.parameters.iter().find(|parameter| parameter.name == name)
    }
}

impl Parameter {
    /// Whether it has a value where the parameters before it have those of `point`.
    pub fn applies(&self, point: &Point) -> bool {
        self.when
            .iter()
            .all(|condition| point.get(&condition.parameter).is_some_and(|value| condition.test.holds(value)))
    }
}

impl Test {
    pub fn holds(&self, value: &Value) -> bool {
        match self {
            Self::Above(bound) => value.as_f64().is_some_and(|value| value > *bound),
            Self::Below(bound) => value.as_f64().is_some_and(|value| value < *bound),
            Self::OneOf(values) => values.iter().any(|one| same(one, value)),
        }
    }
}

/// Whether two values are the same: 1 and 1.0 are.
pub fn same(left: &Value, right: &Value) -> bool {
    match (left.as_f64(), right.as_f64()) {
        (Some(left), Some(right)) => left == right,
        _ => left == right,
    }
}

impl Domain {
    pub fn contains(&self, value: &Value) -> bool {
        match self {
            Self::Choices(values) => values.iter().any(|one| same(one, value)),
            Self::Float { low, high, .. } => value.as_f64().is_some_and(|value| *low <= value && value <= *high),
            Self::Int { low, high, .. } => value.as_i64().is_some_and(|value| *low <= value && value <= *high),
        }
    }

    /// How many values there are; absent where they are not counted.
    pub fn count(&self) -> Option<u64> {
        match self {
            Self::Choices(values) => Some(values.len() as u64),
            Self::Float { low, high, step: Some(step), .. } => Some(((high - low) / step + 1e-9).floor() as u64 + 1),
            Self::Float { low, high, .. } => (low == high).then_some(1),
            Self::Int { low, high, step, .. } => Some(((high - low) / step) as u64 + 1),
        }
    }
}

const LN_2_PI: f64 = 1.837_877_066_409_345_3;

/// The logarithm of the density at `z` standard deviations.
pub(crate) fn log_density(z: f64) -> f64 {
    -0.5 * (z * z + LN_2_PI)
}

/// The logarithm of the probability of being between `low` and `high`.
pub(crate) fn log_mass(low: f64, high: f64) -> f64 {
    if low >= high {
        return f64::NEG_INFINITY;
    }
    if low > 0.0 {
        return log_mass(-high, -low);
    }
    if high <= 0.0 {
        let (far, near) = (log_below(low), log_below(high));
        return near + libm::log1p(-libm::exp(far - near));
    }
    libm::log1p(-below(low) - below(-high))
}

/// The probability of being below `z`.
fn below(z: f64) -> f64 {
    0.5 * libm::erfc(-z / std::f64::consts::SQRT_2)
}

fn log_below(z: f64) -> f64 {
    if z > -20.0 {
        return libm::log(below(z));
    }
    // Abramowitz and Stegun 26.2.12.
    let square = 1.0 / (z * z);
    let series = 1.0 - square * (1.0 - 3.0 * square * (1.0 - 5.0 * square * (1.0 - 7.0 * square)));
    log_density(z) - libm::log(-z) + libm::log(series)
}

/// The logarithm of the sum of what `logarithms` are of.
pub(crate) fn log_sum(logarithms: &[f64]) -> f64 {
    let largest = logarithms.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    if !largest.is_finite() {
        return largest;
    }
    largest + libm::log(logarithms.iter().map(|one| libm::exp(one - largest)).sum::<f64>())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_coordinate_gives_the_nearest_value() {
        let stepped = Domain::Float { low: 0.1, high: 0.65, log: false, step: Some(0.1) };
        let by_four = Domain::Int { low: 2, high: 15, log: false, step: 4 };
        let orders = Domain::Int { low: 1, high: 1000, log: true, step: 1 };
        let table = [
            (&stepped, 0.29, json!(0.3)),
            (&stepped, 0.9, json!(0.6)),
            (&stepped, -4.0, json!(0.1)),
            (&by_four, 8.5, json!(10)),
            (&by_four, 99.0, json!(14)),
            (&orders, libm::log(9.6), json!(10)),
            (&orders, libm::log(0.6), json!(1)),
        ];
        for (domain, coordinate, expected) in table {
            assert_eq!(Axis::new(domain).value(coordinate), expected, "{domain:?} at {coordinate}");
        }
    }

    #[test]
    fn cells_cover_the_line_without_a_gap() {
        for domain in [
            Domain::Float { low: 0.1, high: 0.65, log: false, step: Some(0.1) },
            Domain::Int { low: 2, high: 15, log: false, step: 4 },
            Domain::Int { low: 1, high: 30, log: true, step: 1 },
            Domain::Int { low: 1, high: 30, log: true, step: 4 },
        ] {
            let axis = Axis::new(&domain);
            let Scale::Line { low, high, .. } = axis.scale() else { panic!("{domain:?} is a line") };
            let mut end = low;
            for index in 0..domain.count().unwrap() {
                let value = match &domain {
                    Domain::Float { low, step, .. } => Value::from(low + index as f64 * step.unwrap()),
                    Domain::Int { low, step, .. } => Value::from(low + index as i64 * step),
                    Domain::Choices(_) => unreachable!(),
                };
                let cell = axis.cell(axis.locate(&value).unwrap()).unwrap();
                assert!((cell.0 - end).abs() < 1e-9, "{domain:?}: {value} begins at {}, not {end}", cell.0);
                assert!(cell.1 > cell.0);
                end = cell.1;
            }
            assert!((end - high).abs() < 1e-9, "{domain:?} ends at {end}, not {high}");
        }
    }

    #[test]
    fn values_of_other_spaces_have_no_coordinate() {
        let rate = Domain::Float { low: 1e-5, high: 1e-1, log: true, step: None };
        let kind = Domain::Choices(vec![json!("sgd"), json!(1), json!(null)]);
        let table = [
            (&rate, json!(1.0), None),
            (&rate, json!("fast"), None),
            (&rate, json!(0.0), None),
            (&kind, json!("adam"), None),
            (&kind, json!(1.0), Some(1.0)),
            (&kind, json!(null), Some(2.0)),
        ];
        for (domain, value, expected) in table {
            assert_eq!(Axis::new(domain).locate(&value), expected, "{value}");
        }
    }

    /// The expected values are those of Optuna's `_log_gauss_mass`.
    #[test]
    fn masses_are_those_of_optuna() {
        let table = [
            (-1.0, 1.0, -0.38171514630212616),
            (0.0, 0.5, -1.6530635142555676),
            (-3.0, -2.0, -3.8443534263342047),
            (2.0, 3.0, -3.8443534263342047),
            (5.0, 5.1, -15.962590193561615),
            (f64::NEG_INFINITY, -10.0, -53.23128515051246),
            (f64::NEG_INFINITY, -30.0, -454.32124395634315),
            (30.0, f64::INFINITY, -454.32124395634315),
            (-40.0, -39.5, -784.720879106624),
        ];
        for (low, high, expected) in table {
            let mass = log_mass(low, high);
            assert!((mass - expected).abs() < 1e-10 * expected.abs(), "{low}..{high}: {mass}, not {expected}");
        }
    }

    #[test]
    fn the_tail_joins_its_series() {
        let step = log_below(-19.999_999) - log_below(-20.000_001);
        assert!((step - 4.01e-5).abs() < 1e-6, "{step}");
    }

    #[test]
    fn sums_of_nothing_are_nothing() {
        assert_eq!(log_sum(&[]), f64::NEG_INFINITY);
        assert!((log_sum(&[-1000.0, -1000.0]) - (-1000.0 + std::f64::consts::LN_2)).abs() < 1e-12);
    }
}

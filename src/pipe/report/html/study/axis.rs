//! Where numbers and settings lie along an axis, and what is written beside it.

use pipe_search::{Direction, Domain};
use serde_json::Value;

use super::attributes::usable;
use super::text::{plain_setting, short};
use crate::report::html::scale::{Scale, Unit};

/// Ticks of a range, at most.
const TICKS: usize = 6;
/// Labels of categories, at most.
const LABELS: usize = 12;
/// From so many values on, a few that are far worse than the others do not set the range.
const TRIMMED: usize = 8;
/// Values that differ by less than this share of their size are drawn at one height.
const FLAT: f64 = 1e-4;
/// How much wider than the range of most values an axis becomes for one of them.
const STRETCH: f64 = 2.0;

/// An axis of a chart.
#[derive(Clone, Debug)]
pub struct Axis {
    kind: Kind,
    /// Where a tick stands, from 0 to 1, and what is written there, not escaped.
    pub ticks: Vec<(f64, String)>,
}

#[derive(Clone, Debug)]
enum Kind {
    Linear {
        low: f64,
        high: f64,
    },
    Log {
        low: f64,
        high: f64,
    },
    /// Evenly spaced, in this order.
    Categories(Vec<Value>),
}

impl Axis {
    /// From 0 to `last`: numbers of trials, or steps.
    pub fn counted(last: u64) -> Self {
        Self::of_scale(Scale::of_steps(last as f64))
    }

    /// From 0 to `high` bytes.
    pub fn bytes(high: f64) -> Self {
        Self::of_scale(Scale::around(0.0, high, Unit::Bytes))
    }

    /// Values of an objective. Those far worse than the others lie beyond it; those of `shown` do not, unless the others would be
    /// pressed together for them.
    pub fn objective(values: &[f64], direction: Direction, shown: &[f64]) -> Self {
        let (low, high) = trimmed(values, direction);
        let room = (high - low).max(0.0) * STRETCH;
        let is_near = |value: &f64| *value >= low - room && *value <= high + room;
        let near: Vec<f64> = shown.iter().copied().filter(is_near).collect();
        let low = near.iter().copied().fold(low, f64::min);
        let high = near.iter().copied().fold(high, f64::max);
        let (low, high) = if low <= high { (low, high) } else { (0.0, 1.0) };
        let flat = high - low <= FLAT * high.abs().max(low.abs());
        let mut scale = Scale::around(if flat { high } else { low }, high, Unit::Number);
        write_decimals(&mut scale);
        Self::of_scale(scale)
    }

    /// All that a parameter may be, and what it was in trials: its domain may have been another then.
    pub fn parameter(domain: &Domain, values: &[&Value]) -> Self {
        match domain {
            Domain::Choices(choices) => Self::categories(choices, values),
            Domain::Float { low, high, log, .. } => Self::range(&[*low, *high], values, *log, false),
            Domain::Int { low, high, log, .. } => Self::range(&[*low as f64, *high as f64], values, *log, true),
        }
    }

    /// The smallest range that holds these numbers; with a log scale where they are far apart.
    pub fn numbers(values: &[f64]) -> Self {
        let low = values.iter().copied().fold(f64::INFINITY, f64::min);
        let high = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let whole = values.iter().all(|value| value.fract() == 0.0);
        // A single number lies in the middle.
        let ends = if low == high { [low / 2.0, high * 1.5] } else { [low, high] };
        Self::range(&ends, &[], low > 0.0 && high / low >= 8.0, whole)
    }

    fn range(ends: &[f64], values: &[&Value], log: bool, whole: bool) -> Self {
        let all = ends.iter().copied().chain(values.iter().filter_map(|value| value.as_f64()));
        let all: Vec<f64> = all.filter_map(usable).filter(|number| !log || *number > 0.0).collect();
        let low = all.iter().copied().fold(f64::INFINITY, f64::min);
        let high = all.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let (low, high) = if low <= high { (low, high) } else { (1.0, 1.0) };
        let (low, high) = if low == high { (low - low.abs() / 2.0, high + high.abs() / 2.0) } else { (low, high) };
        let (low, high) = if low == high { (-1.0, 1.0) } else { (low, high) };
        let (kind, numbers) = match log && low > 0.0 {
            true => (Kind::Log { low, high }, log_ticks(low, high, whole)),
            false => (Kind::Linear { low, high }, linear_ticks(low, high, whole)),
        };
        let mut axis = Self { kind, ticks: Vec::new() };
        axis.ticks = numbers.into_iter().map(|number| (axis.at(number), short(number))).collect();
        axis
    }

    fn categories(choices: &[Value], values: &[&Value]) -> Self {
        let mut all: Vec<Value> = choices.to_vec();
        for value in values {
            if !all.iter().any(|one| same(one, value)) {
                all.push((*value).clone());
            }
        }
        let stride = all.len().div_ceil(LABELS).max(1);
        let middle = |index: usize| (index as f64 + 0.5) / all.len() as f64;
        let label = |(index, value): (usize, &Value)| (middle(index), plain_setting(value, 24));
        let ticks = all.iter().enumerate().step_by(stride).map(label).collect();
        Self { kind: Kind::Categories(all), ticks }
    }

    fn of_scale(scale: Scale) -> Self {
        let ticks = scale.ticks.iter().map(|(value, text)| (scale.position(*value), text.clone())).collect();
        Self { kind: Kind::Linear { low: scale.low, high: scale.high }, ticks }
    }

    /// Where a number lies, from 0 to 1; at an end where it lies beyond.
    pub fn at(&self, number: f64) -> f64 {
        let share = match self.kind {
            Kind::Linear { low, high } => (number - low) / (high - low),
            Kind::Log { low, high } => (number / low).ln() / (high / low).ln(),
            Kind::Categories(_) => 0.5,
        };
        if share.is_finite() { share.clamp(0.0, 1.0) } else { 0.0 }
    }

    /// Where a setting lies, from 0 to 1; absent for what the axis has no place for.
    pub fn place(&self, value: &Value) -> Option<f64> {
        match &self.kind {
            Kind::Categories(all) => {
                let index = all.iter().position(|one| same(one, value))?;
                Some((index as f64 + 0.5) / all.len() as f64)
            }
            Kind::Log { .. } => {
                value.as_f64().and_then(usable).filter(|number| *number > 0.0).map(|number| self.at(number))
            }
            Kind::Linear { .. } => value.as_f64().and_then(usable).map(|number| self.at(number)),
        }
    }

    /// Below 0 where a number lies under the axis, above 0 where it lies over it.
    pub fn beyond(&self, number: f64) -> i8 {
        match self.kind {
            Kind::Linear { low, high } | Kind::Log { low, high } => i8::from(number > high) - i8::from(number < low),
            Kind::Categories(_) => 0,
        }
    }

    /// How wide a category is, from 0 to 1; nothing for a range.
    pub fn category_width(&self) -> f64 {
        match &self.kind {
            Kind::Categories(all) => 1.0 / all.len().max(1) as f64,
            _ => 0.0,
        }
    }
}

/// Whether two settings are the same: 1 and 1.0 are.
fn same(one: &Value, other: &Value) -> bool {
    match (one.as_f64(), other.as_f64()) {
        (Some(one), Some(other)) => one == other,
        _ => one == other,
    }
}

/// The range of the values without those that are far worse than three quarters of them.
fn trimmed(values: &[f64], direction: Direction) -> (f64, f64) {
    let sign = if direction == Direction::Maximize { -1.0 } else { 1.0 };
    let mut costs: Vec<f64> = values.iter().map(|value| value * sign).collect();
    costs.sort_by(f64::total_cmp);
    let (Some(best), Some(worst)) = (costs.first().copied(), costs.last().copied()) else {
        return (f64::INFINITY, f64::NEG_INFINITY);
    };
    let spread = costs[costs.len() * 3 / 4] - best;
    let limit = best + 4.0 * spread;
    let worst = match costs.len() >= TRIMMED && spread > 0.0 {
        true => costs.iter().copied().rfind(|cost| *cost <= limit).unwrap_or(worst),
        false => worst,
    };
    if sign > 0.0 { (best, worst) } else { (-worst, -best) }
}

/// Writes 0.9992 where the scale would write 9.992e-1.
fn write_decimals(scale: &mut Scale) {
    let largest = scale.low.abs().max(scale.high.abs());
    let step = scale.ticks.get(1).map_or(1.0, |tick| tick.0 - scale.low);
    if (0.01..10.0).contains(&largest) && step < 1e-3 {
        let places = (-(step * 1.001).log10()).ceil().clamp(0.0, 7.0) as usize;
        for (value, text) in &mut scale.ticks {
            *text = format!("{value:.places$}");
        }
    }
}

fn linear_ticks(low: f64, high: f64, whole: bool) -> Vec<f64> {
    let room = (high - low) * 1e-9;
    let inside = |number: &f64| *number >= low - room && *number <= high + room;
    let ticks = Scale::around(low, high, Unit::Number).ticks.into_iter().map(|tick| tick.0);
    let ticks: Vec<f64> = ticks.filter(inside).filter(|number| !whole || number.fract() == 0.0).collect();
    if ticks.len() < 2 { vec![low, high] } else { ticks }
}

fn log_ticks(low: f64, high: f64, whole: bool) -> Vec<f64> {
    let inside = |number: &f64| *number >= low * (1.0 - 1e-9) && *number <= high * (1.0 + 1e-9);
    let powers = |base: f64| -> Vec<f64> {
        let (first, last) = (low.log(base).floor() as i32, high.log(base).ceil() as i32);
        (first..=last).map(|exponent| base.powi(exponent)).filter(inside).collect()
    };
    let is_binary = whole && low.log2().fract() == 0.0 && high.log2().fract() == 0.0;
    let decades = powers(10.0);
    let ticks = match decades.len() {
        _ if is_binary => powers(2.0),
        3.. => decades,
        _ => {
            let first = low.log10().floor() as i32;
            let steps = (0..3).flat_map(|more| [1.0, 2.0, 5.0].map(|factor| factor * 10f64.powi(first + more)));
            steps.filter(inside).collect()
        }
    };
    if ticks.len() < 2 {
        return vec![low, high];
    }
    let stride = ticks.len().div_ceil(TICKS);
    ticks.into_iter().step_by(stride).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn texts(axis: &Axis) -> Vec<&str> {
        axis.ticks.iter().map(|tick| tick.1.as_str()).collect()
    }

    #[test]
    fn ticks_suit_what_may_be_tried() {
        let float = |low, high, log| Domain::Float { low, high, log, step: None };
        let int = |low, high, log| Domain::Int { low, high, log, step: 1 };
        for (domain, want) in [
            (float(1e-5, 1e-1, true), vec!["1e-5", "1e-4", "0.001", "0.01", "0.1"]),
            (float(1e-4, 3e-4, true), vec!["1e-4", "2e-4"]),
            (float(0.0, 0.3, false), vec!["0", "0.1", "0.2", "0.3"]),
            (float(0.7, 0.7, false), vec!["0.4", "0.6", "0.8", "1"]),
            (int(4, 64, true), vec!["4", "8", "16", "32", "64"]),
            (int(1, 3, false), vec!["1", "2", "3"]),
            (Domain::Choices(vec![json!("adamw"), json!(null)]), vec!["adamw", "null"]),
        ] {
            assert_eq!(texts(&Axis::parameter(&domain, &[])), want, "{domain:?}");
        }
    }

    #[test]
    fn settings_have_places() {
        let axis = Axis::parameter(&Domain::Float { low: 1.0, high: 100.0, log: true, step: None }, &[]);
        assert_eq!(axis.place(&json!(10)), Some(0.5));
        assert_eq!((axis.place(&json!(-3)), axis.place(&json!("x")), axis.beyond(1000.0)), (None, None, 1));
        let axis = Axis::parameter(&Domain::Choices(vec![json!(1), json!("b")]), &[&json!(1.0), &json!("new")]);
        assert_eq!(axis.place(&json!("new")), Some(2.5 / 3.0));
        assert_eq!((axis.place(&json!("old")), texts(&axis)), (None, vec!["1", "b", "new"]));
    }

    #[test]
    fn a_few_bad_values_lie_beyond() {
        let mut values: Vec<f64> = (0..20).map(|value| 1.0 + f64::from(value) / 20.0).collect();
        values.push(1e30);
        let axis = Axis::objective(&values, Direction::Minimize, &[]);
        assert_eq!((axis.beyond(1e30), axis.beyond(1.9), axis.at(1e30)), (1, 0, 1.0));
        assert_eq!(Axis::objective(&values, Direction::Minimize, &[1e30]).beyond(1e30), 1);
        assert_eq!(Axis::objective(&values, Direction::Minimize, &[2.5]).beyond(2.5), 0);
        assert_eq!(texts(&Axis::objective(&[0.99905, 0.9995], Direction::Maximize, &[]))[0], "0.9990");
        for values in [&[][..], &[0.0], &[-2.0], &[1e200, -1e200], &[5e-324, 0.0]] {
            assert!(Axis::objective(values, Direction::Maximize, &[]).ticks.len() < 10, "{values:?}");
        }
    }

    #[test]
    fn any_numbers_have_an_axis() {
        for values in [&[][..], &[0.0], &[8.0], &[1.0, 64.0], &[-1.0, 1e9]] {
            let axis = Axis::numbers(values);
            assert!(
                (1..10).contains(&axis.ticks.len()) && axis.ticks.iter().all(|tick| tick.0.is_finite()),
                "{values:?}"
            );
        }
        assert_eq!(texts(&Axis::numbers(&[1.0, 64.0])), ["1", "4", "16", "64"]);
        assert_eq!(texts(&Axis::numbers(&[8.0, 64.0])), ["8", "16", "32", "64"]);
    }
}

//! An axis of a chart: where numbers and settings lie on it, and the labels of its ticks.

use pipe_search::{Direction, Domain};
use serde_json::Value;

use super::markup::{escape, plain_setting, short};

/// Ticks of a log range, at most.
const TICKS: usize = 6;
/// Labels of categories, at most.
const LABELS: usize = 12;
/// Characters of a category.
const CATEGORY: usize = 24;
/// From this many values on, a few that are far worse than the others do not set the range.
const TRIMMED: usize = 8;
/// Values that differ by less than this share of their size are drawn at one height.
const FLAT: f64 = 1e-4;
/// How much wider than the range of most values an axis becomes for one of them.
const STRETCH: f64 = 2.0;
/// Numbers beyond this are not drawn: the difference of two would be infinite.
const LARGEST: f64 = 1e200;

/// The number, if it can be drawn.
pub fn usable(number: f64) -> Option<f64> {
    (number.abs() <= LARGEST).then_some(number)
}

/// The unit of the numbers on an axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    Number,
    Bytes,
}

/// An axis of a chart.
#[derive(Clone, Debug)]
pub struct Axis {
    scale: Scale,
    /// The position of each tick, from 0 to 1, and its label, not escaped.
    pub ticks: Vec<(f64, String)>,
}

#[derive(Clone, Debug)]
enum Scale {
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
    /// Holds everything from `low` to `high`, and ends on ticks.
    pub fn around(low: f64, high: f64, unit: Unit) -> Self {
        let ticks = round_ticks(low, high, unit);
        Self::linear(ticks[0].0, ticks[ticks.len() - 1].0, ticks)
    }

    /// From 0 to `last` in whole numbers: steps, or numbers of trials.
    pub fn counted(last: f64) -> Self {
        Self::counted_between(0.0, last)
    }

    /// From `low` to `high`, which is at least one more, in whole numbers.
    pub fn counted_between(low: f64, high: f64) -> Self {
        let high = high.max(low + 1.0);
        let step = nice_step((high - low) / 5.0).max(1.0);
        let (first, last) = ((low / step).ceil() as i64, (high / step).floor() as i64);
        let ticks = (first..=last).map(|count| count as f64 * step);
        Self::linear(low, high, ticks.map(|value| (value, tick_label(value, step))).collect())
    }

    /// Shares from 0 to 1.
    pub fn shares() -> Self {
        let ticks = (0..=5).map(|fifth| f64::from(fifth) / 5.0);
        Self::linear(0.0, 1.0, ticks.map(|share| (share, format!("{share:.1}"))).collect())
    }

    /// Values of an objective. Those far worse than the others lie beyond the axis; those of `shown` do not, unless the others
    /// would be pressed together for them.
    pub fn objective(values: &[f64], direction: Direction, shown: &[f64]) -> Self {
        let (low, high) = trimmed(values, direction);
        let reach = (high - low).max(0.0) * STRETCH;
        let is_near = |value: &f64| *value >= low - reach && *value <= high + reach;
        let near: Vec<f64> = shown.iter().copied().filter(is_near).collect();
        let low = near.iter().copied().fold(low, f64::min);
        let high = near.iter().copied().fold(high, f64::max);
        let (low, high) = if low <= high { (low, high) } else { (0.0, 1.0) };
        let flat = high - low <= FLAT * high.abs().max(low.abs());
        let mut ticks = round_ticks(if flat { high } else { low }, high, Unit::Number);
        write_decimals(&mut ticks);
        Self::linear(ticks[0].0, ticks[ticks.len() - 1].0, ticks)
    }

    /// All values that a parameter may have, and those of trials: its domain may have been another then.
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

    /// `ticks` hold values, not positions.
    fn linear(low: f64, high: f64, ticks: Vec<(f64, String)>) -> Self {
        Self { scale: Scale::Linear { low, high }, ticks: Vec::new() }.with_ticks(ticks)
    }

    fn with_ticks(mut self, ticks: Vec<(f64, String)>) -> Self {
        self.ticks = ticks.into_iter().map(|(value, label)| (self.at(value), label)).collect();
        self
    }

    fn range(ends: &[f64], values: &[&Value], log: bool, whole: bool) -> Self {
        let all = ends.iter().copied().chain(values.iter().filter_map(|value| value.as_f64()));
        let all: Vec<f64> = all.filter_map(usable).filter(|number| !log || *number > 0.0).collect();
        let low = all.iter().copied().fold(f64::INFINITY, f64::min);
        let high = all.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let (low, high) = if low <= high { (low, high) } else { (1.0, 1.0) };
        let (low, high) = if low == high { (low - low.abs() / 2.0, high + high.abs() / 2.0) } else { (low, high) };
        let (low, high) = if low == high { (-1.0, 1.0) } else { (low, high) };
        let (scale, numbers) = if log && low > 0.0 {
            (Scale::Log { low, high }, log_ticks(low, high, whole))
        } else {
            (Scale::Linear { low, high }, linear_ticks(low, high, whole))
        };
        let ticks = numbers.into_iter().map(|number| (number, short(number))).collect();
        Self { scale, ticks: Vec::new() }.with_ticks(ticks)
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
        let label = |(index, value): (usize, &Value)| (middle(index), plain_setting(value, CATEGORY));
        let ticks = all.iter().enumerate().step_by(stride).map(label).collect();
        Self { scale: Scale::Categories(all), ticks }
    }

    /// The position of a number, from 0 to 1; at an end where it lies beyond.
    pub fn at(&self, number: f64) -> f64 {
        let share = match self.scale {
            Scale::Linear { low, high } => (number - low) / (high - low),
            Scale::Log { low, high } => (number / low).ln() / (high / low).ln(),
            Scale::Categories(_) => 0.5,
        };
        if share.is_finite() { share.clamp(0.0, 1.0) } else { 0.0 }
    }

    /// The position of a setting, from 0 to 1; absent for a setting that cannot be on this axis.
    pub fn setting(&self, value: &Value) -> Option<f64> {
        let number = || value.as_f64().and_then(usable);
        match &self.scale {
            Scale::Categories(all) => {
                let index = all.iter().position(|one| same(one, value))?;
                Some((index as f64 + 0.5) / all.len() as f64)
            }
            Scale::Log { .. } => number().filter(|number| *number > 0.0).map(|number| self.at(number)),
            Scale::Linear { .. } => number().map(|number| self.at(number)),
        }
    }

    /// Below 0 where a number lies under the axis, above 0 where it lies over it.
    pub fn beyond(&self, number: f64) -> i8 {
        match self.scale {
            Scale::Linear { low, high } | Scale::Log { low, high } => i8::from(number > high) - i8::from(number < low),
            Scale::Categories(_) => 0,
        }
    }

    /// The lowest and the highest number of a linear axis.
    pub fn ends(&self) -> Option<(f64, f64)> {
        match self.scale {
            Scale::Linear { low, high } => Some((low, high)),
            Scale::Log { .. } | Scale::Categories(_) => None,
        }
    }

    /// The scale as attributes of an element, for a script.
    pub fn attributes(&self) -> String {
        let range = |scale: &str, low: f64, high: f64| {
            format!("data-scale=\"{scale}\" data-low=\"{low:e}\" data-high=\"{high:e}\"")
        };
        match &self.scale {
            Scale::Linear { low, high } => range("linear", *low, *high),
            Scale::Log { low, high } => range("log", *low, *high),
            Scale::Categories(all) => {
                let names: Vec<String> = all.iter().map(|value| plain_setting(value, CATEGORY)).collect();
                format!("data-scale=\"choices\" data-choices=\"{}\"", escape(&serde_json::json!(names).to_string()))
            }
        }
    }

    /// The width of a category, from 0 to 1; 0 for a range.
    pub fn category_width(&self) -> f64 {
        match &self.scale {
            Scale::Categories(all) => 1.0 / all.len().max(1) as f64,
            Scale::Linear { .. } | Scale::Log { .. } => 0.0,
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
    let (Some(best), Some(mut worst)) = (costs.first().copied(), costs.last().copied()) else {
        return (f64::INFINITY, f64::NEG_INFINITY);
    };
    let spread = costs[costs.len() * 3 / 4] - best;
    let limit = best + 4.0 * spread;
    if costs.len() >= TRIMMED && spread > 0.0 {
        worst = costs.iter().copied().rfind(|cost| *cost <= limit).unwrap_or(worst);
    }
    if sign > 0.0 { (best, worst) } else { (-worst, -best) }
}

/// Round numbers with their labels, at least two: the first is not above `low`, the last not below `high`.
fn round_ticks(low: f64, high: f64, unit: Unit) -> Vec<(f64, String)> {
    // A curve that stays at one height is drawn in the middle.
    let flat = high - low <= f64::EPSILON * high.abs().max(low.abs());
    let half = if high == 0.0 { 1.0 } else { high.abs() / 2.0 };
    let (low, high) = if flat { (if high >= 0.0 { 0.0 } else { low - half }, high + half) } else { (low, high) };
    let (size, name) = if unit == Unit::Bytes { binary(high) } else { (1.0, "") };
    let step = nice_step((high - low) / size / 4.0);
    let (first, last) = ((low / size / step).floor() as i64, (high / size / step).ceil() as i64);
    let tick = |count: i64| {
        let value = count as f64 * step;
        let label = tick_label(value, step);
        (value * size, if name.is_empty() || count == 0 { label } else { format!("{label} {name}") })
    };
    (first..=last).map(tick).collect()
}

/// The next of 1, 2, 5, 10, ... that is not below `least`.
fn nice_step(least: f64) -> f64 {
    if !least.is_finite() || least <= 0.0 {
        return 1.0;
    }
    let power = 10f64.powi(least.log10().floor() as i32);
    let nice = [1.0, 2.0, 5.0, 10.0].into_iter().find(|factor| factor * power >= least * (1.0 - 1e-9));
    nice.unwrap_or(10.0) * power
}

/// The unit in which this many bytes are a small number.
fn binary(bytes: f64) -> (f64, &'static str) {
    let mut size = 1.0;
    for unit in ["B", "KiB", "MiB", "GiB"] {
        if bytes < size * 1024.0 {
            return (size, unit);
        }
        size *= 1024.0;
    }
    (size, "TiB")
}

/// A multiple of `step`, with as few digits as distinguish it from its neighbours.
fn tick_label(value: f64, step: f64) -> String {
    let digits_after_point = |step: f64| (-step.log10().floor()).max(0.0) as usize;
    if value.abs() < step / 2.0 {
        return "0".to_owned();
    }
    if step < 1e-3 {
        let digits = (value.abs().log10() + 1e-9).floor() - (step.log10() + 1e-9).floor();
        return format!("{value:.*e}", digits.max(0.0) as usize).replace(".0e", "e");
    }
    for (size, name) in [(1e9, "G"), (1e6, "M"), (1e3, "k")] {
        if value.abs() >= size && value.abs() >= 1e4 {
            return format!("{:.*}{name}", digits_after_point(step / size + 1e-12), value / size);
        }
    }
    format!("{value:.*}", digits_after_point(step + 1e-12))
}

/// Labels 0.9992 that would be 9.992e-1.
fn write_decimals(ticks: &mut [(f64, String)]) {
    let (low, high) = (ticks[0].0, ticks[ticks.len() - 1].0);
    let step = ticks.get(1).map_or(1.0, |tick| tick.0 - low);
    if (0.01..10.0).contains(&low.abs().max(high.abs())) && step < 1e-3 {
        let digits = (-(step * 1.001).log10()).ceil().clamp(0.0, 7.0) as usize;
        for (value, label) in ticks {
            *label = format!("{value:.digits$}");
        }
    }
}

fn linear_ticks(low: f64, high: f64, whole: bool) -> Vec<f64> {
    let margin = (high - low) * 1e-9;
    let inside = |number: &f64| *number >= low - margin && *number <= high + margin;
    let ticks = round_ticks(low, high, Unit::Number).into_iter().map(|tick| tick.0);
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
    fn settings_have_positions() {
        let axis = Axis::parameter(&Domain::Float { low: 1.0, high: 100.0, log: true, step: None }, &[]);
        assert_eq!(axis.setting(&json!(10)), Some(0.5));
        assert_eq!((axis.setting(&json!(-3)), axis.setting(&json!("x")), axis.beyond(1000.0)), (None, None, 1));
        let axis = Axis::parameter(&Domain::Choices(vec![json!(1), json!("b")]), &[&json!(1.0), &json!("new")]);
        assert_eq!(axis.setting(&json!("new")), Some(2.5 / 3.0));
        assert_eq!((axis.setting(&json!("old")), texts(&axis)), (None, vec!["1", "b", "new"]));
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

    #[test]
    fn ticks_are_round() {
        for (low, high, want) in [
            (0.0, 1.0, vec!["0.0", "0.5", "1.0"]),
            (0.9, 32.4, vec!["0", "10", "20", "30", "40"]),
            (0.0, 0.003, vec!["0", "0.001", "0.002", "0.003"]),
            (0.0, 1e-4, vec!["0", "5e-5", "1e-4"]),
            (0.0, 25_000.0, vec!["0", "10k", "20k", "30k"]),
            (-1.0, 1.0, vec!["-1.0", "-0.5", "0", "0.5", "1.0"]),
            (0.0, 0.0, vec!["0", "0.5", "1.0"]),
            (4.0, 4.0, vec!["0", "2", "4", "6"]),
        ] {
            let axis = Axis::around(low, high, Unit::Number);
            assert!(axis.beyond(low) == 0 && axis.beyond(high) == 0, "{low} to {high}: {axis:?}");
            let mut want = want;
            want[0] = if low >= 0.0 { "0" } else { want[0] };
            assert_eq!(texts(&axis), want, "{low} to {high}");
        }
    }

    #[test]
    fn ticks_of_bytes() {
        let axis = Axis::around(0.0, 23.4 * f64::from(1 << 30), Unit::Bytes);
        assert_eq!(texts(&axis), ["0", "10 GiB", "20 GiB", "30 GiB"]);
        assert_eq!(texts(&Axis::around(0.0, 1.0, Unit::Bytes)).last(), Some(&"1.0 B"));
    }

    #[test]
    fn steps_are_whole() {
        assert_eq!(texts(&Axis::counted(3.0)), ["0", "1", "2", "3"]);
        assert_eq!(texts(&Axis::counted(60.0)), ["0", "20", "40", "60"]);
        assert_eq!(texts(&Axis::counted(12_345.0)), ["0", "5000", "10k"]);
        assert_eq!(texts(&Axis::counted(0.0)), ["0", "1"]);
    }

    #[test]
    fn any_range_has_a_few_ticks() {
        let ends = [-1e12, -3.3, 0.0, 1e-9, 0.7, 1.0, 1.000001, 999.0, 1e9];
        for low in ends {
            for high in ends.into_iter().filter(|high| *high >= low) {
                let axis = Axis::around(low, high, Unit::Number);
                assert!((2..=8).contains(&axis.ticks.len()), "{low} to {high}: {axis:?}");
                assert!((0.0..=1.0).contains(&axis.at(low)));
            }
        }
    }
}

//! The numbers beside an axis.

/// What the numbers of an axis are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    Number,
    Bytes,
}

/// A stretch of numbers with its ticks.
#[derive(Clone, Debug, PartialEq)]
pub struct Scale {
    pub low: f64,
    pub high: f64,
    /// Where a tick stands, and what is written there.
    pub ticks: Vec<(f64, String)>,
}

impl Scale {
    /// Holds everything from `low` to `high`, and ends on ticks.
    pub fn around(low: f64, high: f64, unit: Unit) -> Self {
        // A curve that stays at one height is drawn in the middle.
        let flat = high - low <= f64::EPSILON * high.abs().max(low.abs());
        let room = if high == 0.0 { 1.0 } else { high.abs() / 2.0 };
        let (low, high) = if flat { (if high >= 0.0 { 0.0 } else { low - room }, high + room) } else { (low, high) };
        let (size, name) = if unit == Unit::Bytes { binary(high) } else { (1.0, "") };
        let step = nice_step((high - low) / size / 4.0);
        let (first, last) = ((low / size / step).floor() as i64, (high / size / step).ceil() as i64);
        let ticks: Vec<(f64, String)> = (first..=last)
            .map(|count| {
                let value = count as f64 * step;
                let text = number(value, step);
                (value * size, if name.is_empty() || count == 0 { text } else { format!("{text} {name}") })
            })
            .collect();
        Self { low: first as f64 * step * size, high: last as f64 * step * size, ticks }
    }

    /// Steps of a training, whole numbers: ends where they end.
    pub fn of_steps(last: f64) -> Self {
        let high = last.max(1.0);
        let step = nice_step(high / 5.0).max(1.0);
        let ticks = (0..=(high / step).floor() as i64).map(|count| count as f64 * step);
        Self { low: 0.0, high, ticks: ticks.map(|value| (value, number(value, step))).collect() }
    }

    /// Where `value` lies, from 0 to 1.
    pub fn position(&self, value: f64) -> f64 {
        ((value - self.low) / (self.high - self.low)).clamp(0.0, 1.0)
    }
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

/// The unit in which so many bytes are a small number.
fn binary(bytes: f64) -> (f64, &'static str) {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut size = 1.0;
    for unit in UNITS {
        if bytes < size * 1024.0 {
            return (size, unit);
        }
        size *= 1024.0;
    }
    (size / 1024.0, "TiB")
}

/// A multiple of `step`, with as few digits as distinguish it from its neighbours.
fn number(value: f64, step: f64) -> String {
    let places = |step: f64| (-step.log10().floor()).max(0.0) as usize;
    if value.abs() < step / 2.0 {
        return "0".to_owned();
    }
    if step < 1e-3 {
        let digits = (value.abs().log10() + 1e-9).floor() - (step.log10() + 1e-9).floor();
        return format!("{value:.*e}", digits.max(0.0) as usize).replace(".0e", "e");
    }
    for (size, name) in [(1e9, "G"), (1e6, "M"), (1e3, "k")] {
        if value.abs() >= size && value.abs() >= 1e4 {
            return format!("{:.*}{name}", places(step / size + 1e-12), value / size);
        }
    }
    format!("{value:.*}", places(step + 1e-12))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(scale: &Scale) -> Vec<&str> {
        scale.ticks.iter().map(|(_, text)| text.as_str()).collect()
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
            let scale = Scale::around(low, high, Unit::Number);
            assert!(scale.low <= low && scale.high >= high, "{low} to {high}: {scale:?}");
            let mut want = want;
            want[0] = if low >= 0.0 { "0" } else { want[0] };
            assert_eq!(texts(&scale), want, "{low} to {high}");
        }
    }

    #[test]
    fn ticks_of_bytes() {
        let scale = Scale::around(0.0, 23.4 * f64::from(1 << 30), Unit::Bytes);
        assert_eq!(texts(&scale), ["0", "10 GiB", "20 GiB", "30 GiB"]);
        assert_eq!(texts(&Scale::around(0.0, 1.0, Unit::Bytes)).last(), Some(&"1.0 B"));
    }

    #[test]
    fn steps_are_whole() {
        assert_eq!(texts(&Scale::of_steps(3.0)), ["0", "1", "2", "3"]);
        assert_eq!(texts(&Scale::of_steps(60.0)), ["0", "20", "40", "60"]);
        assert_eq!(texts(&Scale::of_steps(12_345.0)), ["0", "5000", "10k"]);
        assert_eq!(texts(&Scale::of_steps(0.0)), ["0", "1"]);
    }

    #[test]
    fn any_range_has_a_few_ticks() {
        let ends = [-1e12, -3.3, 0.0, 1e-9, 0.7, 1.0, 1.000001, 999.0, 1e9];
        for low in ends {
            for high in ends.into_iter().filter(|high| *high >= low) {
                let scale = Scale::around(low, high, Unit::Number);
                assert!((2..=8).contains(&scale.ticks.len()), "{low} to {high}: {scale:?}");
                assert!((0.0..=1.0).contains(&scale.position(low)));
            }
        }
    }
}

//! A curve in one row of a terminal: all of a run, thinned as it grows.
//!
//! How fast a training goes, how long it still takes, and how often that is worth a line.

use std::time::Duration;

/// Parts that are kept, at most.
const MAX_PARTS: usize = 128;

const HEIGHTS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// Means of parts of a curve. When there are too many, two become one.
#[derive(Clone, Debug)]
pub struct Curve {
    parts: Vec<Part>,
    /// Points in a part.
    stride: u64,
}

#[derive(Clone, Debug)]
struct Part {
    last: u64,
    sum: f64,
    count: u64,
}

impl Default for Curve {
    fn default() -> Self {
        Self { parts: Vec::new(), stride: 1 }
    }
}

impl Curve {
    pub fn take(&mut self, step: u64, height: f64) {
        if !height.is_finite() {
            return;
        }
        match self.parts.last_mut().filter(|part| part.count < self.stride) {
            Some(part) => {
                part.last = step;
                part.sum += height;
                part.count += 1;
            }
            None => self.parts.push(Part { last: step, sum: height, count: 1 }),
        }
        if self.parts.len() > MAX_PARTS {
            self.stride *= 2;
            let join = |pair: &[Part]| Part {
                last: pair[pair.len() - 1].last,
                sum: pair.iter().map(|part| part.sum).sum(),
                count: pair.iter().map(|part| part.count).sum(),
            };
            self.parts = self.parts.chunks(2).map(join).collect();
        }
    }

    /// Forgets what came after `step`: it is done over.
    pub fn forget_after(&mut self, step: u64) {
        self.parts.retain(|part| part.last <= step);
    }

    /// At most `columns` wide.
    pub fn draw(&self, columns: usize) -> String {
        let means: Vec<f64> = self.parts.iter().map(|part| part.sum / part.count as f64).collect();
        let columns = columns.min(means.len());
        let heights: Vec<f64> = (0..columns)
            .map(|column| {
                let part = &means[column * means.len() / columns..(column + 1) * means.len() / columns];
                part.iter().sum::<f64>() / part.len() as f64
            })
            .collect();
        sparkline(&heights)
    }
}

/// One character for each height, from the lowest to the highest. A curve that begins steeply would leave nothing to see of
/// the rest, so its first tenth may be higher than that.
fn sparkline(heights: &[f64]) -> String {
    let low = heights.iter().copied().fold(f64::INFINITY, f64::min);
    let high = heights[heights.len() / 10..].iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let level = |height: &f64| match high - low {
        range if range > 0.0 => HEIGHTS[((height - low) / range * 7.0).round().min(7.0) as usize],
        _ => HEIGHTS[0],
    };
    heights.iter().map(level).collect()
}

/// Steps over which the time of one is smoothed.
const SMOOTHING_STEPS: f64 = 50.0;

/// The time that steps take, and what passes between them.
#[derive(Clone, Debug, Default)]
pub struct Pace {
    steps: u64,
    /// The smoothed time of one step.
    ms: f64,
    tokens: f64,
    /// When the first step ended, and the latest, by the trainer's clock in seconds.
    first: f64,
    last: f64,
    /// Seconds spent in the steps between those two.
    spent: f64,
}

impl Pace {
    pub fn take(&mut self, ts: f64, ms: f64, tokens: u64) {
        self.steps += 1;
        let weight = 1.0 / (self.steps as f64).min(SMOOTHING_STEPS);
        self.ms += (ms - self.ms) * weight;
        self.tokens += (tokens as f64 - self.tokens) * weight;
        if self.steps == 1 {
            self.first = ts;
        } else {
            self.spent += ms / 1000.0;
        }
        self.last = ts;
    }

    /// Seconds that a step takes.
    pub fn step(&self) -> Option<f64> {
        (self.ms > 0.0).then_some(self.ms / 1000.0)
    }

    /// Tokens or samples in a second, as the loss counts them.
    pub fn tokens_per_second(&self) -> Option<f64> {
        self.step().map(|seconds| self.tokens / seconds)
    }

    /// Seconds until so many steps more are done, with evaluations and saves as often as so far.
    pub fn left(&self, steps: u64) -> Option<f64> {
        let between = (self.last - self.first - self.spent).max(0.0);
        let beside = between / self.steps.saturating_sub(1).max(1) as f64;
        self.step().map(|seconds| (seconds + beside) * steps as f64)
    }
}

/// Steps of so many seconds: `3.1 steps/s`, or `2.4 s/step` where one takes longer than that.
pub fn rate(seconds: f64) -> String {
    match 1.0 / seconds {
        rate if rate >= 100.0 => format!("{rate:.0} steps/s"),
        rate if rate >= 1.0 => format!("{rate:.1} steps/s"),
        _ => format!("{seconds:.1} s/step"),
    }
}

/// A stretch of time, to two units: `12s`, `3m20s`, `2h05m`, `3d04h`.
pub fn span(seconds: f64) -> String {
    let whole = seconds.max(0.0) as u64;
    match whole {
        0..60 => format!("{whole}s"),
        60..3600 => format!("{}m{:02}s", whole / 60, whole % 60),
        3600..86_400 => format!("{}h{:02}m", whole / 3600, whole % 3600 / 60),
        _ => format!("{}d{:02}h", whole / 86_400, whole % 86_400 / 3600),
    }
}

/// The time between two plain lines of progress: it grows with the age of the run.
pub fn line_interval(since: Duration) -> Duration {
    Duration::from_secs(match since.as_secs() {
        0..60 => 2,
        60..3600 => 10,
        _ => 60,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heights_as_characters() {
        for (heights, want) in [
            (&[][..], ""),
            (&[2.5], "▁"),
            (&[1.0, 1.0], "▁▁"),
            (&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0], "▁▂▃▄▅▆▇█"),
            (&[8.0, -6.0, 1.0], "█▁▅"),
            (&[900.0, 8.0, 7.0, 6.0, 5.0, 4.0, 3.0, 2.0, 1.0, 1.0], "██▇▆▅▄▃▂▁▁"),
        ] {
            assert_eq!(sparkline(heights), want, "{heights:?}");
        }
    }

    #[test]
    fn a_long_run_stays_within_its_columns() {
        let mut curve = Curve::default();
        (1..=100_000u64).for_each(|step| curve.take(step, 200_000.0 - step as f64));
        curve.take(100_001, f64::NAN);
        assert!(curve.parts.len() <= MAX_PARTS);
        let drawn = curve.draw(40);
        assert_eq!((drawn.chars().count(), drawn.chars().next(), drawn.chars().last()), (40, Some('█'), Some('▁')));
        assert_eq!(curve.draw(0), "");
        // Every point counts once.
        assert_eq!(curve.parts.iter().map(|part| part.count).sum::<u64>(), 100_000);
    }

    #[test]
    fn what_is_done_over_is_forgotten() {
        let mut curve = Curve::default();
        (1..=10).for_each(|step| curve.take(step, step as f64));
        curve.forget_after(3);
        curve.take(4, 1.0);
        assert_eq!(curve.draw(40), "▁▅█▁");
        curve.forget_after(0);
        assert_eq!(curve.draw(40), "");
    }
}

#[cfg(test)]
mod pace_tests {
    use super::*;

    #[test]
    fn what_passes_between_steps_counts_for_the_time_left() {
        let mut pace = Pace::default();
        assert_eq!((pace.step(), pace.left(7)), (None, None));
        // A step takes a second; after every tenth an evaluation takes five.
        let mut clock = 1000.0;
        for step in 1..=101 {
            clock += 1.0;
            pace.take(clock, 1000.0, 64);
            clock += if step % 10 == 0 { 5.0 } else { 0.0 };
        }
        assert_eq!((pace.step(), pace.tokens_per_second()), (Some(1.0), Some(64.0)));
        assert!((pace.left(100).unwrap() - 150.0).abs() < 1e-6, "{:?}", pace.left(100));
    }

    #[test]
    fn a_clock_that_stands_still_is_no_harm() {
        let mut pace = Pace::default();
        (0..5).for_each(|_| pace.take(0.0, 250.0, 8));
        assert_eq!((pace.left(8), pace.tokens_per_second()), (Some(2.0), Some(32.0)));
    }

    #[test]
    fn rates() {
        for (seconds, want) in
            [(0.001, "1000 steps/s"), (0.32, "3.1 steps/s"), (1.0, "1.0 steps/s"), (2.44, "2.4 s/step")]
        {
            assert_eq!(rate(seconds), want);
        }
    }

    #[test]
    fn spans() {
        for (seconds, want) in
            [(-1.0, "0s"), (59.9, "59s"), (200.0, "3m20s"), (7500.0, "2h05m"), (273_600.0, "3d04h"), (f64::NAN, "0s")]
        {
            assert_eq!(span(seconds), want);
        }
    }

    #[test]
    fn lines_come_calmer_with_time() {
        for (since, want) in [(0, 2), (59, 2), (60, 10), (3599, 10), (3600, 60), (90_000, 60)] {
            assert_eq!(line_interval(Duration::from_secs(since)).as_secs(), want, "{since}");
        }
    }
}

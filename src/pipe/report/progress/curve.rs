//! A curve in one row of a terminal: all of a run, thinned as it grows.

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
    pub fn cut(&mut self, step: u64) {
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
        curve.cut(3);
        curve.take(4, 1.0);
        assert_eq!(curve.draw(40), "▁▅█▁");
        curve.cut(0);
        assert_eq!(curve.draw(40), "");
    }
}

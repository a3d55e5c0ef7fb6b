//! Fewer points for the same curve.

/// A point of a curve: x, y.
pub type Point = (f64, f64);

/// At most `most` points, in order: the ends, and the lowest and the highest of every stretch, so that spikes stay.
pub fn thin(points: &[Point], most: usize) -> Vec<Point> {
    let [first, inner @ .., last] = points else { return points.to_vec() };
    if points.len() <= most {
        return points.to_vec();
    }
    let stretches = (most.saturating_sub(2) / 2).max(1);
    let mut kept = vec![*first];
    for stretch in inner.chunks(inner.len().div_ceil(stretches)) {
        let by_height = |a: &&Point, b: &&Point| a.1.total_cmp(&b.1);
        let (Some(low), Some(high)) = (stretch.iter().min_by(by_height), stretch.iter().max_by(by_height)) else {
            continue;
        };
        kept.push(if low.0 <= high.0 { *low } else { *high });
        if low.0 != high.0 {
            kept.push(if low.0 <= high.0 { *high } else { *low });
        }
    }
    kept.push(*last);
    kept
}

/// The mean of what lies around each point, a fiftieth of the curve; narrower at its beginning, where curves are steep.
pub fn running_mean(points: &[Point]) -> Vec<Point> {
    let reach = points.len() / 100;
    let mut sums = vec![0.0];
    for point in points {
        sums.push(sums[sums.len() - 1] + point.1);
    }
    let mean = |index: usize| {
        let before = reach.min(index);
        let after = before.min(points.len() - 1 - index);
        (sums[index + after + 1] - sums[index - before]) / (before + after + 1) as f64
    };
    points.iter().enumerate().map(|(index, point)| (point.0, mean(index))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_points_stay() {
        let points: Vec<Point> = (0..10).map(|x| (f64::from(x), 1.0)).collect();
        assert_eq!(thin(&points, 10), points);
        assert_eq!(thin(&[], 10), []);
        assert_eq!(thin(&points[..1], 0), points[..1]);
    }

    #[test]
    fn means_follow_a_line_and_flatten_noise() {
        let line: Vec<Point> = (0..1000).map(|x| (f64::from(x), f64::from(2 * x))).collect();
        assert!(running_mean(&line)[..990].iter().zip(&line).all(|(mean, point)| (mean.1 - point.1).abs() < 1e-6));
        let noise: Vec<Point> = (0..1000).map(|x| (f64::from(x), f64::from(x % 2))).collect();
        assert!(running_mean(&noise)[20..].iter().all(|mean| (mean.1 - 0.5).abs() < 0.06));
        assert_eq!(running_mean(&[]), []);
    }

    #[test]
    fn spikes_and_ends_stay() {
        let height = |x: u32| match x {
            31_337 => 900.0,
            77_777 => -900.0,
            x => f64::from(x % 17),
        };
        let points: Vec<Point> = (0..100_000).map(|x| (f64::from(x), height(x))).collect();
        for most in [10, 999, 1000] {
            let kept = thin(&points, most);
            assert!(kept.len() <= most && kept.len() > most / 2, "{} of {most}", kept.len());
            assert!(kept.is_sorted_by(|a, b| a.0 < b.0));
            assert_eq!((kept.first(), kept.last()), (points.first(), points.last()));
            assert!(kept.contains(&(31_337.0, 900.0)) && kept.contains(&(77_777.0, -900.0)));
        }
    }
}

//! The normal distribution, in logarithms so that its tails do not become 0.

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
    use super::*;

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

//! How sure a classifier is, against how often it is right (Guo et al. 2017, On Calibration of Modern Neural Networks).

use pipe_spec::evaluation::{Calibration, CalibrationBin};

use super::rounded;

const BINS: usize = 10;

/// Predictions by their confidence, in bins of the same width; a bin contains its upper end.
#[derive(Clone, Debug, Default)]
pub struct Reliability([Bin; BINS]);

#[derive(Clone, Copy, Debug, Default)]
struct Bin {
    rows: u64,
    right: u64,
    confidence: f64,
}

impl Reliability {
    /// Adds a prediction. `confidence` is the probability that the model gave to the class that it predicted.
    pub fn add(&mut self, confidence: f64, right: bool) {
        // The probabilities of a model that has diverged are no numbers.
        let confidence = if confidence.is_finite() { confidence.clamp(0.0, 1.0) } else { 0.0 };
        let index = (confidence * BINS as f64).ceil() as usize;
        let bin = &mut self.0[index.clamp(1, BINS) - 1];
        bin.rows += 1;
        bin.right += u64::from(right);
        bin.confidence += confidence;
    }

    pub fn details(&self) -> Calibration {
        let rows: u64 = self.0.iter().map(|bin| bin.rows).sum();
        let apart: f64 = self.0.iter().map(|bin| (bin.right as f64 - bin.confidence).abs()).sum();
        Calibration { error: rounded(apart / rows.max(1) as f64), bins: self.0.iter().map(Bin::details).collect() }
    }
}

impl Bin {
    fn details(&self) -> CalibrationBin {
        let mean = |sum: f64| (self.rows > 0).then(|| rounded(sum / self.rows as f64));
        CalibrationBin { rows: self.rows, confidence: mean(self.confidence), accuracy: mean(self.right as f64) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_predictions() {
        let mut reliability = Reliability::default();
        let predictions =
            [(0.95, true), (0.91, true), (0.93, false), (1.0, true), (0.5, true), (0.45, false), (f64::NAN, false)];
        predictions.iter().for_each(|(confidence, right)| reliability.add(*confidence, *right));
        let Calibration { error, bins } = reliability.details();
        let bin = |rows, confidence, accuracy| CalibrationBin { rows, confidence, accuracy };
        assert_eq!(bins.len(), BINS);
        assert_eq!(bins[0], bin(1, Some(0.0), Some(0.0)));
        assert_eq!(bins[4], bin(2, Some(0.475), Some(0.5)));
        assert_eq!(bins[5], bin(0, None, None));
        assert_eq!(bins[9], bin(4, Some(0.9475), Some(0.75)));
        assert_eq!(bins.iter().map(|bin| bin.rows).sum::<u64>(), predictions.len() as u64);
        // (0 * 1 + |0.5 - 0.475| * 2 + |0.75 - 0.9475| * 4) / 7
        assert!((error - 0.84 / 7.0).abs() < 1e-4, "{error}");
    }
}

//! How long a training takes, by what an earlier one like it took.

use super::{Fact, LedgerJob, LedgerSession};
use crate::error::Error;

#[derive(Clone, Debug, PartialEq)]
pub struct Pace {
    /// Milliseconds of training for one sample.
    pub sample_ms: f64,
    /// The run that was so fast.
    pub run: String,
}

impl Pace {
    pub fn seconds(&self, steps: u64, effective_batch: u32) -> f64 {
        steps as f64 * f64::from(effective_batch) * self.sample_ms / 1000.0
    }
}

impl LedgerSession {
    /// That of the same model on the same data on this device, whatever the driver and the image: the same batch before others,
    /// the newest first.
    pub fn pace(&self, job: &LedgerJob, device: &str) -> Result<Option<Pace>, Error> {
        let Some(longest) = self.ledger.longest(&self.data)? else { return Ok(None) };
        let key = self.key(job, &longest, device, "");
        let entries = self.ledger.entries()?;
        let alike = entries.iter().filter(|entry| entry.key.gpu == device && entry.key.is_elsewhere(&key));
        let timed = alike.flat_map(|entry| &entry.facts).filter_map(|fact| Some((fact, fact.sample_ms?)));
        let rank = |fact: &Fact| (fact.batch == job.batch, fact.when);
        let best = timed
            .max_by(|(one, _), (other, _)| rank(one).partial_cmp(&rank(other)).unwrap_or(std::cmp::Ordering::Equal));
        Ok(best.map(|(fact, sample_ms)| Pace { sample_ms, run: fact.run.clone() }))
    }
}

/// The steps of an attempt, for the time that they take.
#[derive(Default)]
pub struct StepTimes {
    steps: u32,
    ms: f64,
}

impl StepTimes {
    /// The first step, which prepares much, does not count.
    pub fn add(&mut self, ms: f64) {
        self.ms += if self.steps == 0 { 0.0 } else { ms };
        self.steps += 1;
    }

    pub fn sample_ms(&self, effective_batch: u32) -> Option<f64> {
        let samples = f64::from(self.steps.saturating_sub(1)) * f64::from(effective_batch);
        Some(self.ms / samples).filter(|ms| ms.is_finite() && *ms > 0.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_step_does_not_count() {
        let mut times = StepTimes::default();
        assert_eq!(times.sample_ms(8), None);
        times.add(1000.0);
        assert_eq!(times.sample_ms(8), None);
        times.add(16.0);
        times.add(48.0);
        assert_eq!(times.sample_ms(8), Some(4.0));
        assert!((Pace { sample_ms: 4.0, run: String::new() }.seconds(100, 8) - 3.2).abs() < 1e-9);
    }
}

//! The ledger session of one run: reads advice and records measurements.
//!
//! How long a training takes, by what an earlier one like it took.

use pipe_spec::event::{EventKind, Fitted, Measured};
use pipe_spec::pipeline::{Limit, accum};
use pipe_spec::{Attempt, Cause, Device, OomRecord, Outcome, Phase};

use super::advice::BatchRequest;
use super::{Advice, Fact, Key, Ledger, LedgerEntry, LedgerJob};
use crate::error::Error;
use crate::gpu::Card;
use crate::system::clock::now;

/// Only a command knows how long its rows are.
const OWN_ROWS: &str = "its own";

pub struct LedgerSession {
    pub(super) ledger: Ledger,
    run: String,
    image: String,
    /// A hash of what decides how long rows are.
    pub(super) data: String,
    observed: Observed,
}

/// The figures in the events of an attempt.
#[derive(Default)]
struct Observed {
    gpu: Option<String>,
    driver: String,
    capacity: Option<u64>,
    longest: Option<String>,
    measured: Vec<Measured>,
    fitted: Option<Fitted>,
    rehearsed: bool,
    times: StepTimes,
}

impl LedgerSession {
    /// `data` says how long rows are: the data hash of a training.
    pub fn open(ledger: Ledger, run: &str, image: String, data: String) -> Self {
        Self { ledger, run: run.to_owned(), image, data, observed: Observed::default() }
    }

    pub(super) fn key(&self, job: &LedgerJob, longest: &str, gpu: &str, driver: &str) -> Key {
        Key {
            model: job.model.clone(),
            arch: job.arch.clone(),
            precision: job.precision,
            optimizer: job.optimizer,
            checkpointing: job.checkpointing,
            ranks: job.ranks,
            sharded: job.sharded,
            longest: longest.to_owned(),
            filled: job.fills.then(|| (job.effective_batch, self.data.clone())),
            allocator: job.allocator.clone(),
            gpu: gpu.to_owned(),
            driver: driver.to_owned(),
            image: self.image.clone(),
        }
    }

    /// The entry for this job, and hints from entries of other cards.
    pub fn ask(&self, job: &LedgerJob, card: Option<&Card>) -> Result<(Option<LedgerEntry>, Vec<String>), Error> {
        let Some(longest) = self.ledger.longest(&self.data)? else { return Ok((None, Vec::new())) };
        let (gpu, driver) = match (job.device, card) {
            (Device::Cpu, _) => ("cpu", ""),
            (Device::Cuda, Some(card)) => (card.name.as_str(), card.driver.as_str()),
            (Device::Cuda, None) => return Ok((None, Vec::new())),
        };
        let key = self.key(job, &longest, gpu, driver);
        let entries = self.ledger.entries()?;
        let elsewhere = entries.iter().filter(|entry| key.is_elsewhere(&entry.key) && entry.key.gpu != key.gpu);
        let hints = elsewhere.map(|entry| format!("on {}: {}", entry.key.gpu, entry.summary())).collect();
        Ok((entries.into_iter().find(|entry| entry.key == key), hints))
    }

    /// Takes in what a command will run on, which it does not say itself.
    pub fn begin_command(&mut self, card: Option<&Card>, capacity: Option<u64>) {
        self.observed = Observed {
            gpu: Some(card.map_or("cpu".to_owned(), |card| card.name.clone())),
            driver: card.map_or(String::new(), |card| card.driver.clone()),
            capacity,
            longest: Some(OWN_ROWS.to_owned()),
            ..Observed::default()
        };
    }

    /// Takes in what an attempt says.
    pub fn observe(&mut self, event: &EventKind) {
        match event {
            EventKind::Started(started) => {
                self.observed.gpu = Some(started.device.clone());
                self.observed.driver = started.driver.clone().unwrap_or_default();
                self.observed.capacity = started.memory.capacity;
                self.observed.longest = started.longest.clone();
            }
            EventKind::Measured(measured) => self.observed.measured.push(measured.clone()),
            EventKind::Fitted(fitted) => {
                self.observed.gpu = Some(fitted.device.clone());
                self.observed.driver = fitted.driver.clone().unwrap_or_default();
                self.observed.capacity = fitted.capacity;
                self.observed.longest = Some(fitted.longest.clone());
                self.observed.fitted = Some(fitted.clone());
            }
            EventKind::Rehearsed(_) => self.observed.rehearsed = true,
            EventKind::Step(step) => self.observed.times.add(step.ms),
            _ => {}
        }
    }

    /// Records the measurements of an attempt that has ended, and resets them.
    pub fn attempt_ended(
        &mut self,
        job: &LedgerJob,
        attempt: &Attempt,
        record: Option<&OomRecord>,
        limit: Option<u64>,
    ) -> Result<(), Error> {
        let observed = std::mem::take(&mut self.observed);
        let (Some(gpu), Some(longest)) = (&observed.gpu, &observed.longest) else { return Ok(()) };
        let Some(capacity) = [observed.capacity, limit].into_iter().flatten().min() else { return Ok(()) };
        let effective = job.effective_batch;
        let fact = |batch: u32, fits: bool, peak: Option<u64>| Fact {
            batch,
            accumulates: accum(effective, batch, job.ranks) > 1,
            fits,
            largest: false,
            capped: false,
            peak,
            sample_ms: None,
            capacity,
            when: now(),
            run: self.run.clone(),
        };
        let mut facts: Vec<Fact> =
            observed.measured.iter().map(|measured| fact(measured.batch, measured.fits, measured.peak)).collect();
        if let Some(fitted) = &observed.fitted {
            let capped = fitted.is_whole_step();
            facts.push(Fact { largest: true, capped, ..fact(fitted.batch, true, Some(fitted.peak)) });
        }
        facts.extend(record.iter().flat_map(|record| &record.points).map(|one| fact(one.batch, true, Some(one.peak))));
        if is_too_large(job.device, attempt, record) {
            facts.push(fact(attempt.batch, false, None));
        } else if attempt.outcome != Some(Outcome::Oom) && observed.rehearsed {
            // Without the longest samples a peak says little of what is to come.
            let mut held = fact(attempt.batch, true, attempt.figures.peak_memory);
            held.sample_ms = observed.times.sample_ms(effective);
            let found = observed.fitted.filter(|fitted| fitted.batch == attempt.batch);
            held.largest = found.is_some();
            held.capped = found.is_some_and(|fitted| fitted.is_whole_step());
            facts.push(held);
        } else if job.is_command && attempt.outcome == Some(Outcome::Finished) {
            facts.push(fact(attempt.batch, true, attempt.figures.peak_memory));
        }
        self.ledger.record(&self.data, longest, &self.key(job, longest, gpu, &observed.driver), facts)
    }
}

/// Whether the attempt shows that its batch does not fit: not where a neighbour or fragments were in the way, nor where no
/// batch would have helped.
fn is_too_large(device: Device, attempt: &Attempt, record: Option<&OomRecord>) -> bool {
    let passes = record.is_none_or(|record| matches!(record.phase, Phase::Forward | Phase::Backward));
    match attempt.cause {
        Some(Cause::Capacity) => passes,
        Some(Cause::HostMemory) => device == Device::Cpu && passes && attempt.figures.last_step.is_none(),
        _ => false,
    }
}

/// Bytes that a job may use, as far as they are known before the start.
pub fn capacity(job: &LedgerJob, card: Option<&Card>, memory: Option<u64>) -> Option<u64> {
    let whole = match job.device {
        Device::Cpu => memory,
        Device::Cuda => card.map(|card| card.total),
    };
    match job.limit {
        None => whole,
        Some(Limit::Share(share)) => whole.map(|whole| (whole as f64 * share) as u64),
        Some(Limit::Size(size)) => Some(whole.map_or(size.0, |whole| whole.min(size.0))),
    }
}

/// The advice for `batch`.
pub fn advise(entry: &LedgerEntry, job: &LedgerJob, batch: u32, min_batch: u32, capacity: Option<u64>) -> Advice {
    entry.advise(&BatchRequest { batch, effective_batch: job.effective_batch, ranks: job.ranks, min_batch, capacity })
}

/// The batch that an earlier search found for a job like this.
pub fn known_largest(entry: &LedgerEntry, job: &LedgerJob, capacity: Option<u64>) -> Option<u32> {
    let (batch, effective_batch) = (job.largest_batch(), job.effective_batch);
    entry.largest(&BatchRequest { batch, effective_batch, ranks: job.ranks, min_batch: 1, capacity })
}

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
mod pace_tests {
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

//! The ledger session of one run: records measurements, and reads advice: the batch to start with, and how long a training takes, by
//! earlier ones like it.

use pipe_model::memory;
use pipe_spec::event::{EventKind, Fitted, Measured};
use pipe_spec::pipeline::{Limit, accum};
use pipe_spec::text::human_bytes;
use pipe_spec::{Attempt, Cause, Device, OomRecord, Outcome, Phase};

use super::{Fact, Key, Ledger, LedgerEntry, LedgerJob};
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

/// The advice for a requested batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Advice {
    /// Keep the requested batch.
    Keep,
    /// The requested batch is known to fail: start with this one.
    Instead { batch: u32, why: String },
}

/// The driver and torch do not call quite the same the whole of a card.
const CAPACITY_TOLERANCE: f64 = 0.02;

/// The requested batch and its limits.
#[derive(Clone, Copy, Debug)]
pub struct BatchRequest {
    pub batch: u32,
    pub effective_batch: u32,
    pub ranks: u32,
    pub min_batch: u32,
    /// Bytes of memory; unknown means the same as when the facts were recorded.
    pub capacity: Option<u64>,
}

impl LedgerEntry {
    /// The largest batch that is known to fit, where a search found it for as much memory as there is. A search that ended
    /// at its effective batch says nothing about larger ones.
    pub fn largest(&self, request: &BatchRequest) -> Option<u32> {
        let there = |fact: &&Fact| {
            request
                .capacity
                .is_none_or(|capacity| fact.capacity.abs_diff(capacity) as f64 <= capacity as f64 * CAPACITY_TOLERANCE)
        };
        let reaches = |fact: &&Fact| !fact.is_capped() || fact.batch >= request.effective_batch;
        let found = self.facts.iter().filter(|fact| fact.fits && fact.largest).filter(there).filter(reaches);
        found.map(|fact| fact.batch.min(request.effective_batch)).max()
    }

    pub fn advise(&self, request: &BatchRequest) -> Advice {
        let Some(failed) = self.failure(request.batch, request) else { return Advice::Keep };
        let (batch, because) = match (self.known_to_fit(request), self.on_the_line(request)) {
            // Measurements of small batches alone may lie far below what fits.
            (Some(known), line) if line.is_none_or(|line| line <= known + known / 4) => {
                (known, "which is known to fit")
            }
            (_, Some(line)) => (line, "which fits according to smaller batches"),
            (_, None) => (self.untried(request), "which was not tried yet"),
        };
        let why = format!(
            "a batch of {} did not fit in {}: starting at {batch}, {because}",
            failed.batch,
            human_bytes(failed.capacity)
        );
        Advice::Instead { batch, why }
    }

    /// The measurement that shows that `batch` will fail: it, or a smaller one, failed in as much memory. Gradients that are held through
    /// several passes make a step larger, never smaller.
    fn failure(&self, batch: u32, request: &BatchRequest) -> Option<&Fact> {
        let accumulates = accum(request.effective_batch, batch, request.ranks) > 1;
        let shows = |fact: &&Fact| {
            !fact.fits
                && fact.batch <= batch
                && fact.accumulates <= accumulates
                && request
                    .capacity
                    .is_none_or(|capacity| fact.capacity as f64 * (1.0 + CAPACITY_TOLERANCE) >= capacity as f64)
        };
        self.facts.iter().find(shows)
    }

    /// The largest known batch below the requested one whose peak fits.
    fn known_to_fit(&self, request: &BatchRequest) -> Option<u32> {
        let fits = |fact: &&Fact| {
            fact.fits
                && fact.batch < request.batch
                && fact.batch >= request.min_batch
                && fact.accumulates >= (accum(request.effective_batch, fact.batch, request.ranks) > 1)
                && request.capacity.is_none_or(|capacity| fact.peak.unwrap_or(fact.capacity) <= capacity)
                && self.failure(fact.batch, request).is_none()
        };
        self.facts.iter().filter(fits).map(|fact| fact.batch).max()
    }

    fn on_the_line(&self, request: &BatchRequest) -> Option<u32> {
        let most = self.failure(request.batch, request)?.batch - 1;
        let capacity = request.capacity.or(self.facts.first().map(|fact| fact.capacity))?;
        let batch = memory::largest(&self.points(true), capacity)?.min(most);
        (batch >= request.min_batch && self.failure(batch, request).is_none()).then_some(batch)
    }

    /// Halves the batch until no failure is known for it.
    fn untried(&self, request: &BatchRequest) -> u32 {
        let mut batch = request.batch;
        while batch > request.min_batch && self.failure(batch, request).is_some() {
            batch = (batch / 2).max(request.min_batch);
        }
        batch
    }
}

#[cfg(test)]
mod tests {
    use std::slice::from_ref;

    use super::*;
    use crate::fit::ledger::tests::{entry, fact};

    fn request(batch: u32, capacity: u64) -> BatchRequest {
        BatchRequest { batch, effective_batch: 512, ranks: 1, min_batch: 1, capacity: Some(capacity) }
    }

    fn start(facts: &[Fact], request: &BatchRequest) -> u32 {
        match entry(facts).advise(request) {
            Advice::Keep => request.batch,
            Advice::Instead { batch, .. } => batch,
        }
    }

    #[test]
    fn never_where_it_is_known_to_fail() {
        let failed = fact(128, false, 12);
        let fitted = fact(64, true, 12);
        let cases: [(&[Fact], u32, u64, u32); 9] = [
            (&[], 128, 12, 128),
            (from_ref(&failed), 128, 12, 64),
            (from_ref(&failed), 256, 12, 64),
            (from_ref(&failed), 100, 12, 100),
            // Less memory than then, and more.
            (from_ref(&failed), 128, 8, 64),
            (from_ref(&failed), 128, 24, 128),
            (&[failed.clone(), fitted.clone()], 128, 12, 64),
            (&[failed.clone(), fact(96, true, 12), fitted.clone()], 128, 12, 96),
            (&[failed.clone(), fact(64, false, 12), fact(32, false, 12)], 128, 12, 16),
        ];
        for (facts, batch, capacity, want) in cases {
            assert_eq!(start(facts, &request(batch, capacity)), want, "{facts:?} {batch} in {capacity}");
        }
    }

    #[test]
    fn what_smaller_batches_held_names_the_largest() {
        let held = |batch, peak| Fact { peak: Some(peak), ..fact(batch, true, 1000) };
        let facts = [held(8, 200), held(16, 300), fact(128, false, 1000)];
        assert_eq!(start(&facts, &request(128, 1000)), 70);
        assert_eq!(start(&facts, &request(128, 350)), 16, "what is known is as good as what is a little larger");
    }

    #[test]
    fn one_pass_that_fails_says_nothing_of_fewer_gradients_but_of_more() {
        let several = fact(128, false, 12);
        assert_eq!(start(from_ref(&several), &BatchRequest { effective_batch: 128, ..request(128, 12) }), 128);
        let one = Fact { accumulates: false, ..several };
        assert_eq!(start(&[one], &request(128, 12)), 64);
    }

    #[test]
    fn the_largest_is_one_that_was_searched_for() {
        let found = Fact { largest: true, ..fact(90, true, 12) };
        assert_eq!(entry(&[fact(64, true, 12)]).largest(&request(256, 12)), None);
        assert_eq!(entry(from_ref(&found)).largest(&request(256, 12)), Some(90));
        assert_eq!(entry(from_ref(&found)).largest(&request(256, 24)), None);
        assert_eq!(entry(&[found]).largest(&BatchRequest { effective_batch: 32, ..request(32, 12) }), Some(32));
    }

    #[test]
    fn the_effective_batch_of_a_search_is_no_limit() {
        let capped = Fact { largest: true, capped: true, accumulates: false, ..fact(8, true, 12) };
        let old = Fact { capped: false, ..capped.clone() };
        let limit = Fact { largest: true, ..fact(90, true, 12) };
        let cases: [(&[Fact], u32, Option<u32>); 6] = [
            (from_ref(&capped), 8, Some(8)),
            (from_ref(&capped), 4, Some(4)),
            (from_ref(&capped), 64, None),
            (from_ref(&old), 8, Some(8)),
            (from_ref(&old), 64, None),
            (&[capped.clone(), limit], 512, Some(90)),
        ];
        for (facts, effective_batch, want) in cases {
            let request = BatchRequest { effective_batch, ..request(effective_batch, 12) };
            assert_eq!(entry(facts).largest(&request), want, "{facts:?} for {effective_batch}");
        }
    }
}

//! What one run asks the ledger and tells it.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use pipe_spec::event::{EventKind, Fitted, Measured};
use pipe_spec::pipeline::{Limit, accum};
use pipe_spec::{Attempt, Cause, Device, OomRecord, Outcome, Phase, TrainerSpec};
use serde_json::{Map, Value};

use super::advice::Wanted;
use super::{Advice, Entry, Fact, Key, Ledger, allocator_word, model_hash};
use crate::card::Card;
use crate::error::Error;
use crate::preflight::Inputs;
use crate::run::now;

pub struct Diary {
    ledger: Ledger,
    run: String,
    image: String,
    config: Map<String, Value>,
    /// A hash of what decides how long rows are.
    data: String,
    seen: Seen,
}

/// What an attempt has said of where it runs.
#[derive(Default)]
struct Seen {
    gpu: Option<String>,
    driver: String,
    capacity: Option<u64>,
    longest: Option<String>,
    measured: Vec<Measured>,
    fitted: Option<Fitted>,
    rehearsed: bool,
}

impl Diary {
    /// `config` is the model's.
    pub fn open(
        ledger: Ledger,
        run: &str,
        image: String,
        config: Map<String, Value>,
        spec: &TrainerSpec,
        inputs: &Inputs,
    ) -> Self {
        Self { ledger, run: run.to_owned(), image, config, data: data_hash(spec, inputs), seen: Seen::default() }
    }

    fn key(&self, spec: &TrainerSpec, longest: &str, gpu: &str, driver: &str) -> Key {
        let word = |value| serde_json::to_value(value).ok().and_then(|value: Value| value.as_str().map(str::to_owned));
        Key {
            model: model_hash(&spec.model, &self.config),
            arch: word(spec.model.arch).unwrap_or_default(),
            precision: spec.train.precision,
            optimizer: spec.train.optimizer.kind,
            checkpointing: spec.train.checkpointing,
            longest: longest.to_owned(),
            allocator: allocator_word(&spec.memory.allocator),
            gpu: gpu.to_owned(),
            driver: driver.to_owned(),
            image: self.image.clone(),
        }
    }

    /// What is known about a job that would be started like this, and in words what is known from elsewhere.
    pub fn ask(&self, spec: &TrainerSpec, card: Option<&Card>) -> Result<(Option<Entry>, Vec<String>), Error> {
        let Some(longest) = self.ledger.longest(&self.data)? else { return Ok((None, Vec::new())) };
        let (gpu, driver) = match (spec.device, card) {
            (Device::Cpu, _) => ("cpu", ""),
            (Device::Cuda, Some(card)) => (card.name.as_str(), card.driver.as_str()),
            (Device::Cuda, None) => return Ok((None, Vec::new())),
        };
        let key = self.key(spec, &longest, gpu, driver);
        let entries = self.ledger.entries()?;
        let elsewhere = entries.iter().filter(|entry| key.is_elsewhere(&entry.key) && entry.key.gpu != key.gpu);
        let hints = elsewhere.map(|entry| format!("on {}: {}", entry.key.gpu, entry.summary())).collect();
        Ok((entries.into_iter().find(|entry| entry.key == key), hints))
    }

    /// Takes in what an attempt says.
    pub fn see(&mut self, event: &EventKind) {
        match event {
            EventKind::Started(started) => {
                self.seen.gpu = Some(started.device.clone());
                self.seen.driver = started.driver.clone().unwrap_or_default();
                self.seen.capacity = started.capacity;
                self.seen.longest = started.longest.clone();
            }
            EventKind::Measured(measured) => self.seen.measured.push(measured.clone()),
            EventKind::Fitted(fitted) => {
                self.seen.gpu = Some(fitted.device.clone());
                self.seen.driver = fitted.driver.clone().unwrap_or_default();
                self.seen.capacity = fitted.capacity;
                self.seen.longest = Some(fitted.longest.clone());
                self.seen.fitted = Some(fitted.clone());
            }
            EventKind::Rehearsed(_) => self.seen.rehearsed = true,
            _ => {}
        }
    }

    /// An attempt is over: what it has shown is told, and the next begins with nothing seen.
    pub fn attempt_ended(
        &mut self,
        spec: &TrainerSpec,
        attempt: &Attempt,
        record: Option<&OomRecord>,
        limit: Option<u64>,
    ) -> Result<(), Error> {
        let seen = std::mem::take(&mut self.seen);
        let (Some(gpu), Some(longest)) = (&seen.gpu, &seen.longest) else { return Ok(()) };
        let Some(capacity) = [seen.capacity, limit].into_iter().flatten().min() else { return Ok(()) };
        let effective = spec.train.effective_batch;
        let fact = |batch: u32, fits: bool, peak: Option<u64>| Fact {
            batch,
            accumulates: accum(effective, batch) > 1,
            fits,
            largest: false,
            peak,
            capacity,
            when: now(),
            run: self.run.clone(),
        };
        let mut facts: Vec<Fact> =
            seen.measured.iter().map(|measured| fact(measured.batch, measured.fits, measured.peak)).collect();
        if let Some(fitted) = &seen.fitted {
            facts.push(Fact { largest: true, ..fact(fitted.batch, true, Some(fitted.peak)) });
        }
        facts.extend(record.iter().flat_map(|record| &record.points).map(|one| fact(one.batch, true, Some(one.peak))));
        if is_too_large(spec.device, attempt, record) {
            facts.push(fact(attempt.batch, false, None));
        } else if attempt.outcome != Some(Outcome::Oom) && seen.rehearsed {
            // Without the longest samples a peak says little of what is to come.
            let mut held = fact(attempt.batch, true, attempt.peak_memory);
            held.largest = seen.fitted.is_some_and(|fitted| fitted.batch == attempt.batch);
            facts.push(held);
        }
        self.ledger.tell_longest(&self.data, longest)?;
        if facts.is_empty() {
            return Ok(());
        }
        self.ledger.tell(&self.key(spec, longest, gpu, &seen.driver), facts)
    }
}

/// Whether the attempt shows that its batch does not fit: not where a neighbour or fragments were in the way, nor where no
/// batch would have helped.
fn is_too_large(device: Device, attempt: &Attempt, record: Option<&OomRecord>) -> bool {
    let passes = record.is_none_or(|record| matches!(record.phase, Phase::Forward | Phase::Backward));
    match attempt.cause {
        Some(Cause::Capacity) => passes,
        Some(Cause::HostMemory) => device == Device::Cpu && passes && attempt.last_step.is_none(),
        _ => false,
    }
}

/// What a start like this may use, as far as it can be told from outside.
pub fn capacity(spec: &TrainerSpec, card: Option<&Card>, memory: Option<u64>) -> Option<u64> {
    let whole = match spec.device {
        Device::Cpu => memory,
        Device::Cuda => card.map(|card| card.total),
    };
    match spec.memory.limit {
        None => whole,
        Some(Limit::Share(share)) => whole.map(|whole| (whole as f64 * share) as u64),
        Some(Limit::Size(size)) => Some(whole.map_or(size.0, |whole| whole.min(size.0))),
    }
}

/// Where to start instead of `batch`, if anything is known that speaks against it.
pub fn advise(entry: &Entry, spec: &TrainerSpec, batch: u32, min_batch: u32, capacity: Option<u64>) -> Advice {
    entry.advise(&Wanted { batch, effective_batch: spec.train.effective_batch, min_batch, capacity })
}

/// The batch that an earlier search found for a job like this.
pub fn found(entry: &Entry, spec: &TrainerSpec, capacity: Option<u64>) -> Option<u32> {
    let effective_batch = spec.train.effective_batch;
    entry.largest(&Wanted { batch: effective_batch, effective_batch, min_batch: 1, capacity })
}

fn data_hash(spec: &TrainerSpec, inputs: &Inputs) -> String {
    let mut hasher = blake3::Hasher::new();
    let mut add = |path: &Path| {
        hasher.update(path.as_os_str().as_encoded_bytes());
        if let Ok(meta) = std::fs::metadata(path) {
            hasher.update(&meta.len().to_le_bytes()).update(&meta.mtime().to_le_bytes());
            hasher.update(&meta.mtime_nsec().to_le_bytes());
        }
    };
    inputs.train.iter().chain(inputs.tokenizer_definition()).for_each(|input| add(&input.host));
    let data = &spec.data;
    let how = (data.max_source, data.max_target, data.max_length, data.pad, &data.fields);
    hasher.update(serde_json::to_string(&how).expect("it is plain data").as_bytes());
    hasher.finalize().to_hex()[..16].to_owned()
}

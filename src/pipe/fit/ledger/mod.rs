//! The measurements of earlier runs: which batch fits where. They are valid only for the same card, driver and image.
//!
//! A job as the ledger knows it: what decides how much a batch holds, whoever computes it.

mod session;
mod store;

use std::sync::LazyLock;

use pipe_spec::event::Point;
use pipe_spec::pipeline::{Adapter, Allocator, Checkpointing, Command, Limit, Model, OptimizerKind, Precision, Split};
use pipe_spec::text::human_bytes;
use pipe_spec::{Device, TrainerSpec};
use regex::Regex;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

pub use session::Advice;
pub use session::{LedgerSession, advise, capacity, known_largest};
pub use store::Ledger;

/// Everything that decides how much memory a batch needs, and on which card.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Key {
    /// A hash of the architecture and its config, or of a command.
    pub model: String,
    /// The architecture, or the first words of a command, for people.
    pub arch: String,
    pub precision: Precision,
    pub optimizer: OptimizerKind,
    pub checkpointing: Checkpointing,
    /// Trainer processes that share a step.
    #[serde(default = "one_rank", skip_serializing_if = "is_one_rank")]
    pub ranks: u32,
    /// Whether each of them keeps the optimizer's state of its own parameters alone.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub sharded: bool,
    /// Tokens of the longest row, such as `480` or `512+128`.
    pub longest: String,
    /// With `train.split: fill` what decides how many samples a part has beside the batch: samples of a step, and a hash of the
    /// data.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub filled: Option<(u32, String)>,
    pub allocator: String,
    /// The card's name, or `cpu`.
    pub gpu: String,
    pub driver: String,
    pub image: String,
}

fn one_rank() -> u32 {
    1
}

fn is_one_rank(ranks: &u32) -> bool {
    *ranks == 1
}

impl Key {
    /// The name of the entry.
    pub fn id(&self) -> String {
        let text = serde_json::to_string(self).expect("a key is plain data");
        blake3::hash(text.as_bytes()).to_hex()[..12].to_owned()
    }

    /// Whether `other` is the same but for the card and what belongs to it.
    pub fn is_elsewhere(&self, other: &Self) -> bool {
        let here = |key: &Self| Self { gpu: String::new(), driver: String::new(), image: String::new(), ..key.clone() };
        self != other && here(self) == here(other)
    }
}

/// A name for a model that changes with anything about it, how its weights are kept, and with the size of an adapter that is trained in
/// place of them.
pub fn model_hash(model: &Model, config: &serde_json::Map<String, Value>, adapter: Option<&Adapter>) -> String {
    let sorted: std::collections::BTreeMap<&String, &Value> = config.iter().collect();
    let mut text = serde_json::to_string(&(model.arch, sorted)).expect("a config is plain data");
    if !model.quantize.is_none() {
        text += &serde_json::to_string(&model.quantize).expect("a name is plain data");
    }
    if let Some(Adapter { rank, targets, from, dropout, .. }) = adapter {
        let size = (rank, targets, from, *dropout > 0.0);
        text += &serde_json::to_string(&size).expect("an adapter is plain data");
    }
    blake3::hash(text.as_bytes()).to_hex()[..16].to_owned()
}

/// The allocator's settings as text.
pub fn allocator_text(allocator: &Allocator) -> String {
    let text = allocator.to_string();
    if text.is_empty() { "default".to_owned() } else { text }
}

/// One batch that was tried.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Fact {
    pub batch: u32,
    /// Whether a step had several passes, so that gradients were held through them.
    pub accumulates: bool,
    pub fits: bool,
    /// Whether it was found to be the largest that fits.
    #[serde(default)]
    pub largest: bool,
    /// Whether the search ended because it was the whole effective batch: larger ones were not tried.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub capped: bool,
    /// Bytes that it held at most, where it fitted.
    pub peak: Option<u64>,
    /// Milliseconds of training for one sample, where it was trained with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sample_ms: Option<f64>,
    /// Bytes that there were.
    pub capacity: u64,
    /// Seconds since the Unix epoch.
    pub when: f64,
    pub run: String,
}

impl Fact {
    /// Whether no larger batch is known to fail: a search that found it ended at the effective batch. Ledgers from before
    /// `capped` tell it by a step of one pass.
    pub fn is_capped(&self) -> bool {
        self.capped || !self.accumulates
    }
}

/// All measurements under one key.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LedgerEntry {
    pub key: Key,
    pub facts: Vec<Fact>,
}

impl LedgerEntry {
    /// The columns of a list of entries.
    pub const HEAD: [&str; 7] = ["id", "model", "precision", "optimizer", "tokens", "on", "known"];

    pub fn cells(&self) -> [String; 7] {
        let key = &self.key;
        let checkpointing = match key.checkpointing {
            Checkpointing::Off => "",
            Checkpointing::On => " (checkpointing)",
            Checkpointing::Auto => " (checkpointing: auto)",
        };
        [
            key.id(),
            key.arch.clone(),
            format!("{}{checkpointing}", name(key.precision)),
            name(key.optimizer),
            if key.longest.is_empty() { "-".to_owned() } else { key.longest.clone() },
            key.gpu.clone(),
            self.summary(),
        ]
    }

    /// Adds a fact. It replaces an older fact about the same batch, but keeps what a search said of it.
    pub fn add(&mut self, mut fact: Fact) {
        let same = |old: &Fact| {
            (old.batch, old.accumulates, old.fits, old.capacity)
                == (fact.batch, fact.accumulates, fact.fits, fact.capacity)
        };
        if let Some(old) = self.facts.iter().find(|old| same(old) && old.largest && !fact.largest) {
            (fact.largest, fact.capped) = (true, old.capped);
        }
        // A search measures no time.
        fact.sample_ms = fact.sample_ms.or_else(|| self.facts.iter().find(|old| same(old))?.sample_ms);
        self.facts.retain(|old| !same(old));
        self.facts.push(fact);
        self.facts.sort_by_key(|fact| (fact.batch, fact.accumulates));
    }

    /// The memory of batches that fitted, in steps like those of `accumulates`.
    pub fn points(&self, accumulates: bool) -> Vec<Point> {
        let fitted = self.facts.iter().filter(|fact| fact.fits && fact.accumulates == accumulates);
        fitted.filter_map(|fact| fact.peak.map(|peak| Point { batch: fact.batch, peak })).collect()
    }

    /// The largest batch that fitted and the smallest that did not, as text.
    pub fn summary(&self) -> String {
        let fits = self.facts.iter().rfind(|fact| fact.fits);
        let fails = self.facts.iter().find(|fact| !fact.fits);
        let fits = fits.map_or("nothing fits".to_owned(), |fact| {
            let peak = fact.peak.map_or(String::new(), |peak| format!(" (peak {})", human_bytes(peak)));
            let untried = if fact.largest && fact.is_capped() { ", larger was not tried" } else { "" };
            format!("{} fits{peak}{untried}", fact.batch)
        });
        let fails = fails
            .map_or(String::new(), |fact| format!(", {} does not fit in {}", fact.batch, human_bytes(fact.capacity)));
        format!("batch {fits}{fails}")
    }
}

/// A value of an enumeration as a pipeline has it.
fn name(value: impl Serialize) -> String {
    serde_json::to_value(value).ok().and_then(|value| value.as_str().map(str::to_owned)).unwrap_or_default()
}

/// The name of a run of several steps, before that of a step.
static RUN_ID: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r"[A-Za-z0-9][\w.-]*-\d{8}-\d{6}-[a-z]{4}\.").expect("it is written here"));

pub struct LedgerJob {
    /// A hash of the model, or of the command.
    pub model: String,
    /// For people.
    pub arch: String,
    pub precision: Precision,
    pub optimizer: OptimizerKind,
    pub checkpointing: Checkpointing,
    pub ranks: u32,
    pub sharded: bool,
    pub fills: bool,
    pub allocator: String,
    pub device: Device,
    pub limit: Option<Limit>,
    pub batch: u32,
    pub is_command: bool,
    pub effective_batch: u32,
}

impl LedgerJob {
    /// `config` is the model's.
    pub fn of_training(spec: &TrainerSpec, config: &Map<String, Value>) -> Self {
        Self {
            model: model_hash(&spec.model, config, spec.adapter.as_ref()),
            arch: name(spec.model.arch),
            precision: spec.train.precision,
            optimizer: spec.train.optimizer.kind,
            checkpointing: spec.train.checkpointing,
            ranks: spec.rank.count,
            sharded: spec.rank.count > 1 && !spec.train.shard.is_none(),
            fills: spec.train.split == Split::Fill,
            allocator: allocator_text(&spec.memory.allocator),
            device: spec.device,
            limit: spec.memory.limit,
            batch: spec.train.batch(),
            is_command: false,
            effective_batch: spec.train.effective_batch,
        }
    }

    /// A command is known by its words, as the pipeline has them, and by the values of its variables.
    pub fn of_command(command: &Command, expandable_segments: bool, device: Device) -> Self {
        let text = serde_json::to_string(&(&command.line, &command.vars)).expect("words are plain data");
        // Outputs of other steps lie in runs whose names change.
        let text = RUN_ID.replace_all(&text, "RUN.");
        let program = command.line.0.iter().take(2).map(|word| word.rsplit('/').next().unwrap_or(word));
        Self {
            model: blake3::hash(text.as_bytes()).to_hex()[..16].to_owned(),
            arch: program.collect::<Vec<_>>().join(" "),
            precision: command.train.precision,
            optimizer: OptimizerKind::Adamw,
            checkpointing: Checkpointing::Off,
            ranks: 1,
            sharded: false,
            fills: false,
            allocator: allocator_text(&Allocator { expandable_segments, ..command.memory.allocator.clone() }),
            device,
            limit: command.memory.limit,
            batch: command.train.batch,
            is_command: true,
            effective_batch: command.train.effective_batch,
        }
    }

    /// The largest batch that makes a difference: all that a rank has of a step.
    pub fn largest_batch(&self) -> u32 {
        self.effective_batch.div_ceil(self.ranks.max(1))
    }

    /// The key under which the ledger finds the row lengths of a command: itself.
    pub fn data(&self) -> &str {
        &self.model
    }
}

#[cfg(test)]
mod tests {
    use pipe_spec::pipeline::Quantize;

    use super::*;

    pub fn fact(batch: u32, fits: bool, capacity: u64) -> Fact {
        let peak = fits.then_some(capacity);
        Fact {
            batch,
            accumulates: true,
            fits,
            largest: false,
            capped: false,
            peak,
            sample_ms: None,
            capacity,
            when: 0.0,
            run: "a-run".to_owned(),
        }
    }

    pub fn entry(facts: &[Fact]) -> LedgerEntry {
        let mut entry = LedgerEntry { key: key("cpu"), facts: Vec::new() };
        facts.iter().for_each(|fact| entry.add(fact.clone()));
        entry
    }

    fn key(gpu: &str) -> Key {
        Key {
            model: "m".to_owned(),
            arch: "t5".to_owned(),
            precision: Precision::Fp32,
            optimizer: OptimizerKind::Adamw,
            checkpointing: Checkpointing::Off,
            ranks: 1,
            sharded: false,
            filled: None,
            longest: "64".to_owned(),
            allocator: "default".to_owned(),
            gpu: gpu.to_owned(),
            driver: "1".to_owned(),
            image: "i".to_owned(),
        }
    }

    #[test]
    fn an_adapter_is_another_model_to_fit() {
        let arch = pipe_spec::pipeline::Arch::ALL[0];
        let model = Model { arch, task: None, from: None, config: None, quantize: Quantize::None };
        let hash = |adapter: Option<&Adapter>| model_hash(&model, &serde_json::Map::new(), adapter);
        let (small, large) = (Adapter::default(), Adapter { rank: 64.try_into().unwrap(), ..Adapter::default() });
        assert_ne!(hash(None), hash(Some(&small)));
        assert_ne!(hash(Some(&large)), hash(Some(&small)));
        assert_eq!(hash(Some(&Adapter { alpha: Some(3.0), ..small.clone() })), hash(Some(&small)));
        let [none, nf4, int8] = [Quantize::None, Quantize::Nf4, Quantize::Int8]
            .map(|quantize| model_hash(&Model { quantize, ..model.clone() }, &serde_json::Map::new(), Some(&small)));
        assert!(none == hash(Some(&small)) && none != nf4 && nf4 != int8 && none != int8);
    }

    #[test]
    fn another_card_is_another_key_and_a_hint() {
        let (one, other) = (key("A"), key("B"));
        assert_ne!(one.id(), other.id());
        assert!(one.is_elsewhere(&other) && !one.is_elsewhere(&one));
        assert!(!one.is_elsewhere(&Key { longest: "65".to_owned(), ..other }));
    }

    #[test]
    fn a_fact_takes_the_place_of_an_older_one_about_the_same() {
        let newer = Fact { peak: Some(7), when: 1.0, ..fact(8, true, 12) };
        let first = Fact { largest: true, sample_ms: Some(3.0), ..fact(8, true, 12) };
        let entry = entry(&[first, fact(16, false, 12), newer.clone()]);
        assert_eq!(entry.facts, [Fact { largest: true, sample_ms: Some(3.0), ..newer }, fact(16, false, 12)]);
        assert_eq!(entry.summary(), "batch 8 fits (peak 7 B), 16 does not fit in 12 B");
    }

    #[test]
    fn a_search_that_ended_at_the_effective_batch_names_no_limit() {
        let found = Fact { largest: true, capped: true, accumulates: false, ..fact(8, true, 12) };
        let again = Fact { accumulates: false, ..fact(8, true, 12) };
        let known = entry(&[found.clone(), again]);
        assert!(known.facts[0].capped, "a training at the same batch does not make it a limit");
        assert_eq!(known.summary(), "batch 8 fits (peak 12 B), larger was not tried");
        // As it was written before there was `capped`.
        let old = serde_json::to_value(Fact { capped: false, ..found }).unwrap();
        assert!(old.get("capped").is_none());
        assert!(serde_json::from_value::<Fact>(old).unwrap().is_capped());
    }
}

//! Which batches fit on a card: measurements of earlier runs (the ledger), and expectations (the forecast).
//!
//! The memory that a training will need, and where it fits: computed from the pipeline and the model's config alone.
//!
//! Cards by name, for planning for one that is not here.

pub mod ledger;

use std::num::NonZeroU32;

use pipe_model::adapter::Lora;
use pipe_model::memory::{
    self, AdapterWork, Estimate, Lengths, MARGIN, ROW_MULTIPLE, StepMemory, Work, has_attention_kernel,
};
use pipe_model::{ConfigError, ModelConfig, Parameter};
use pipe_spec::pipeline::{
    Adapter, Arch, BatchSetting, Checkpointing, Data, Limit, Memory, OptimizerKind, Precision, Quantize, Ranks, Shard,
    Split, Train, Training, accum, share,
};
use serde::Serialize;
use serde_json::{Map, Value};
use thiserror::Error;

/// The memory of a process on a card before it has allocated anything: measured on an H200 with driver 580.
pub const CONTEXT: u64 = 768 << 20;

/// The card that is planned for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Target {
    pub name: String,
    /// Bytes.
    pub total: u64,
}

/// The memory of a training at its worst moment, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Breakdown {
    pub weights: u64,
    pub gradients: u64,
    pub optimizer: u64,
    pub activations: u64,
    pub logits: u64,
    pub workspace: u64,
    pub context: u64,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Forecast {
    pub params: u64,
    pub batch: u32,
    /// Batches of a rank in a step.
    pub accum: u32,
    /// Trainer processes that share a step, each with a card of its own. What follows is of one card.
    pub ranks: u32,
    pub effective_batch: u32,
    /// All of the breakdown together.
    pub peak: u64,
    /// The part that torch's allocator will report as its peak.
    pub allocated: u64,
    /// The phase at that moment.
    pub moment: String,
    pub card: Option<Target>,
    /// Bytes that there are: of the card, or of `memory.limit` and the context beside it.
    pub capacity: Option<u64>,
    pub fits: Option<bool>,
    pub breakdown: Breakdown,
    pub table: Vec<Row>,
    /// Where it does not fit: single changes with which it would.
    pub changes: Vec<Suggestion>,
    /// Settings of the pipeline that the estimate does not know.
    pub notes: Vec<&'static str>,
}

/// The largest batch for a card.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Row {
    pub gib: u64,
    /// Absent where not even one sample fits.
    pub batch: Option<u32>,
    pub accum: Option<u32>,
    /// With that batch, or with one sample.
    pub peak: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Suggestion {
    /// As it is written in the pipeline.
    pub change: String,
    pub batch: u32,
    pub peak: u64,
}

/// The input of a forecast.
#[derive(Clone)]
pub struct Forecaster {
    model: ModelFacts,
    train: Train,
    data: Data,
    memory: Memory,
}

#[derive(Clone)]
struct ModelFacts {
    arch: Arch,
    config: Map<String, Value>,
    adapter: Option<Adapter>,
    quantize: Quantize,
}

/// Why there is no forecast.
#[derive(Debug, Error)]
pub enum NoForecast {
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error("{} has no estimate of memory; `pipe fit` measures the largest batch that fits", arch.name())]
    NoEstimate { arch: Arch },
}

/// A model's config as it was read, with what every estimate of it needs.
struct Model<'a> {
    config: &'a dyn ModelConfig,
    memory: &'a dyn StepMemory,
    parameters: Vec<Parameter>,
    adapter: Option<AdapterWork>,
}

impl Forecaster {
    pub fn new(training: &Training, config: &Map<String, Value>) -> Self {
        Self {
            model: ModelFacts {
                arch: training.model.arch,
                config: config.clone(),
                adapter: training.adapter.clone(),
                quantize: training.model.quantize,
            },
            train: training.train.clone(),
            data: training.data.clone(),
            memory: training.memory.clone(),
        }
    }

    /// With so many ranks.
    pub fn with_ranks(mut self, ranks: u32) -> Self {
        self.train.ranks = NonZeroU32::new(ranks).map_or(Ranks::Auto, Ranks::Count);
        self
    }

    fn ranks(&self) -> u32 {
        self.train.ranks.count()
    }

    pub fn forecast(&self, card: Option<Target>) -> Result<Forecast, NoForecast> {
        let arch = self.model.arch;
        let config = pipe_model::read_config(arch, &self.model.config)?;
        let architecture = pipe_model::architecture(arch);
        let adapter = self.model.adapter.as_ref().map(|adapter| Lora::new(adapter, architecture)).transpose()?;
        let adapter = adapter.map(|adapter| adapter.with_heads(config.as_ref()));
        let memory = config.step_memory().ok_or(NoForecast::NoEstimate { arch })?;
        let own = config.parameters();
        let parameters = adapter.as_ref().map_or_else(|| own.clone(), |adapter| adapter.parameters(&own));
        let adapter = adapter.map(|adapter| adapter.work(architecture, self.model.quantize));
        let model = Model { config: config.as_ref(), memory, parameters, adapter };
        let capacity = self.capacity(card.as_ref().map(|card| card.total));
        let effective_batch = self.train.effective_batch;
        let recomputing = self.with_checkpointing(Checkpointing::On);
        let automatic = capacity.and_then(|capacity| recomputing.largest(&model, capacity));
        let batch = match self.train.batch {
            BatchSetting::Auto => automatic.map_or(1, |(batch, _)| batch),
            BatchSetting::Fixed(batch) => batch.get().min(self.share()),
        };
        // With `auto` all of it is kept where it fits, as the trainer sees it.
        let kept = self.with_checkpointing(Checkpointing::Off).peak(&model, batch).saturating_sub(CONTEXT);
        let most = capacity.map(|capacity| memory::usable(capacity.saturating_sub(CONTEXT)));
        let keeps = most.is_none_or(|most| kept <= most);
        let settled = self.with_checkpointing(if keeps { Checkpointing::Off } else { Checkpointing::On });
        let estimate = settled.estimate(&model, batch);
        let mut breakdown = breakdown(&estimate);
        let batch_peak = total(&breakdown);
        // Then parts are filled up to that, with samples that are shorter.
        let fills = self.train.checkpointing == Checkpointing::Auto && self.train.split == Split::Fill && !keeps;
        if let Some(most) = most.filter(|_| fills) {
            breakdown.activations += most.saturating_sub(batch_peak - CONTEXT);
        }
        let peak = total(&breakdown);
        let fits = capacity.map(|capacity| has_room(batch_peak, capacity));
        let changes = match capacity {
            Some(capacity) if fits == Some(false) => settled.changes(&model, batch, capacity),
            _ => Vec::new(),
        };
        Ok(Forecast {
            params: estimate.params,
            batch,
            accum: accum(effective_batch, batch, self.ranks()),
            ranks: self.ranks(),
            effective_batch,
            peak,
            allocated: peak - CONTEXT,
            moment: estimate.moment,
            card,
            capacity,
            fits,
            breakdown,
            table: SIZES.iter().map(|gib| recomputing.row(&model, *gib)).collect(),
            changes,
            notes: self.notes(&model),
        })
    }

    /// Replaces `auto` by the setting that was chosen; any other setting stays.
    fn with_checkpointing(&self, settled: Checkpointing) -> Self {
        let mut changed = self.clone();
        if changed.train.checkpointing == Checkpointing::Auto {
            changed.train.checkpointing = settled;
        }
        changed
    }

    fn notes(&self, model: &Model<'_>) -> Vec<&'static str> {
        let mut notes = Vec::new();
        if self.train.checkpointing == Checkpointing::Auto {
            notes.push("checkpointing: auto: parts that would not fit are computed again instead of being kept, as the table counts it");
        }
        if self.train.deterministic {
            notes.extend(model.memory.uncounted_when_deterministic());
        }
        if self.memory.allocator.roundup_power2_divisions.is_some() {
            notes.push("roundup_power2_divisions: what sizes are rounded up by is not counted here");
        }
        notes
    }

    /// Bytes that there are on a card of so many; a limit is of what the allocator may hold, beside the context.
    fn capacity(&self, card: Option<u64>) -> Option<u64> {
        match (self.memory.limit, card) {
            (Some(Limit::Size(size)), card) => {
                let limited = size.0.saturating_add(CONTEXT);
                Some(card.map_or(limited, |card| card.min(limited)))
            }
            (Some(Limit::Share(share)), Some(card)) => Some(card.min((card as f64 * share) as u64 + CONTEXT)),
            (Some(Limit::Share(_)) | None, card) => card,
        }
    }

    fn row(&self, model: &Model<'_>, gib: u64) -> Row {
        match self.largest(model, bytes(gib)) {
            Some((batch, peak)) => Row {
                gib,
                batch: Some(batch),
                accum: Some(accum(self.train.effective_batch, batch, self.ranks())),
                peak,
            },
            None => Row { gib, batch: None, accum: None, peak: self.peak(model, 1) },
        }
    }

    /// The largest batch that has room, with its peak.
    fn largest(&self, model: &Model<'_>, capacity: u64) -> Option<(u32, u64)> {
        let fits = |batch: u32| has_room(self.peak(model, batch), capacity);
        if !fits(1) {
            return None;
        }
        let (mut fitting, mut beyond) = (1, self.share().saturating_add(1));
        while beyond - fitting > 1 {
            let middle = fitting + (beyond - fitting) / 2;
            if fits(middle) { fitting = middle } else { beyond = middle }
        }
        Some((fitting, self.peak(model, fitting)))
    }

    /// Samples of a step that a rank has at most.
    fn share(&self) -> u32 {
        share(self.train.effective_batch, self.ranks())
    }

    fn peak(&self, model: &Model<'_>, batch: u32) -> u64 {
        total(&breakdown(&self.estimate(model, batch)))
    }

    fn estimate(&self, model: &Model<'_>, batch: u32) -> Estimate {
        let Lengths { source, target } = self.lengths(model);
        let work = Work {
            precision: self.train.precision,
            optimizer: self.train.optimizer.kind,
            checkpointing: self.train.checkpointing == Checkpointing::On,
            batch: batch.into(),
            accum: accum(self.train.effective_batch, batch, self.ranks()).into(),
            ranks: self.ranks(),
            sharded: self.ranks() > 1 && !self.train.shard.is_none(),
            source: source.into(),
            target: target.into(),
            padded: true,
            drops: self.train.dropout.map_or(model.config.drops(), |share| share > 0.0),
            adapter: model.adapter,
        };
        model.memory.estimate(&model.parameters, &work)
    }

    /// Tokens of the longest row that there may be, as a card is given them.
    fn lengths(&self, model: &Model<'_>) -> Lengths {
        // The fused attention of torch wants round lengths, the kernels of the trainer take any.
        let narrow = !matches!(self.train.precision, Precision::Fp32 | Precision::Tf32);
        let any_length = narrow && model.config.head_width().is_some_and(has_attention_kernel);
        let multiple = if any_length { 1 } else { ROW_MULTIPLE };
        Lengths::full(&model.config.task_data(None), &self.data, multiple as u32)
    }

    /// Single changes with which it fits, a smaller batch first, which keeps the training result. Where one would do, the
    /// others are worth it only if the batch can stay.
    fn changes(&self, model: &Model<'_>, asked: u32, capacity: u64) -> Vec<Suggestion> {
        let mut changes = Vec::new();
        let smaller = self.largest(model, capacity);
        if let Some((batch, peak)) = smaller {
            changes.push(Suggestion { change: format!("train.batch: {batch}"), batch, peak });
        }
        let mut consider = |change: String, changed: &Self| {
            let Some((largest, peak)) = changed.largest(model, capacity) else { return };
            if smaller.is_none() {
                changes.push(Suggestion { change, batch: largest, peak });
            } else if largest >= asked {
                changes.push(Suggestion { change, batch: asked, peak: changed.peak(model, asked) });
            }
        };
        let with = |change: &dyn Fn(&mut Self)| {
            let mut changed = self.clone();
            change(&mut changed);
            changed
        };
        if self.train.checkpointing == Checkpointing::Off {
            let on = Checkpointing::On;
            consider("train.checkpointing: true".to_owned(), &with(&|one| one.train.checkpointing = on));
        }
        if self.train.precision != Precision::Bf16 {
            consider("train.precision: bf16".to_owned(), &with(&|one| one.train.precision = Precision::Bf16));
        }
        if self.train.optimizer.kind != OptimizerKind::Adafactor {
            let kind = OptimizerKind::Adafactor;
            consider("train.optimizer.kind: adafactor".to_owned(), &with(&|one| one.train.optimizer.kind = kind));
        }
        if self.ranks() > 1 && self.train.shard.is_none() {
            consider("train.shard: optimizer".to_owned(), &with(&|one| one.train.shard = Shard::Optimizer));
        }
        for (key, get) in LENGTHS {
            let mut changed = self.clone();
            let length = get(&mut changed.data);
            *length = NonZeroU32::new(length.get() / 2).unwrap_or(NonZeroU32::MIN);
            let change = format!("data.{key}: {length}");
            if changed.lengths(model) != self.lengths(model) {
                consider(change, &changed);
            }
        }
        changes
    }
}

type Length = fn(&mut Data) -> &mut NonZeroU32;

const LENGTHS: [(&str, Length); 3] = [
    ("max_source", |data| &mut data.max_source),
    ("max_target", |data| &mut data.max_target),
    ("max_length", |data| &mut data.max_length),
];

/// The most that the allocator reserved beyond what it had handed out, where steps just fitted.
const SEGMENTS: u64 = 112 << 20;

/// The margin is of what the allocator holds.
fn has_room(peak: u64, capacity: u64) -> bool {
    let (allocated, room) = (peak.saturating_sub(CONTEXT), capacity.saturating_sub(CONTEXT));
    allocated.saturating_add(SEGMENTS.max((room as f64 * MARGIN) as u64)) <= room
}

fn breakdown(estimate: &Estimate) -> Breakdown {
    Breakdown {
        weights: estimate.weights,
        gradients: estimate.gradients,
        optimizer: estimate.optimizer,
        activations: estimate.activations,
        logits: estimate.logits,
        workspace: estimate.workspace,
        context: CONTEXT,
    }
}

fn total(parts: &Breakdown) -> u64 {
    let Breakdown { weights, gradients, optimizer, activations, logits, workspace, context } = parts;
    [weights, gradients, optimizer, activations, logits, workspace, context]
        .into_iter()
        .fold(0, |sum, part| sum.saturating_add(*part))
}

const GIB: u64 = 1 << 30;

/// The name of a card and the MiB that it reports, longer names before those that they begin with.
const CARDS: &[(&str, u64)] = &[
    ("B200", 183_359),
    ("H200", 143_771),
    ("H100", 81_559),
    ("A100-40GB", 40_960),
    ("A100", 81_920),
    ("L40S", 46_068),
    ("L4", 23_034),
    ("A6000", 49_140),
    ("A10", 23_028),
    ("V100-32GB", 32_768),
    ("V100", 16_384),
    ("T4", 15_360),
    ("RTX 5090", 32_607),
    ("RTX 5080", 16_303),
    ("RTX 5070 Ti", 16_303),
    ("RTX 5070", 12_227),
    ("RTX 4090", 24_564),
    ("RTX 4080", 16_376),
    ("RTX 4070", 12_282),
    ("RTX 4060 Ti", 16_380),
    ("RTX 4060", 8_188),
    ("RTX 3090", 24_576),
    ("RTX 3080", 10_240),
    ("RTX 3060", 12_288),
];

/// The sizes that a plan is made for, in GiB.
pub const SIZES: [u64; 7] = [8, 12, 16, 24, 32, 48, 80];

/// Name and bytes of the card that `wanted` means: `5090`, `rtx 5090` and `RTX5090` are one.
pub fn find(wanted: &str) -> Option<(&'static str, u64)> {
    let plain = |text: &str| -> String {
        text.chars().filter(char::is_ascii_alphanumeric).map(|c| c.to_ascii_lowercase()).collect()
    };
    let bare = |text: &str| plain(text).replace("nvidia", "").replace("geforce", "").replace("rtx", "");
    let wanted = bare(wanted);
    let card = CARDS.iter().find(|(name, _)| bare(name) == wanted)?;
    Some((card.0, card.1 << 20))
}

pub fn names() -> String {
    CARDS.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ")
}

/// A size of `SIZES` in bytes.
pub fn bytes(gib: u64) -> u64 {
    gib * GIB
}

#[cfg(test)]
mod cards_tests {
    use super::*;

    #[test]
    fn cards_are_found_however_they_are_written() {
        for wanted in ["5090", "rtx 5090", "RTX5090", "NVIDIA GeForce RTX 5090"] {
            assert_eq!(find(wanted), Some(("RTX 5090", 32_607 << 20)), "{wanted}");
        }
        assert_eq!(find("a100").map(|card| card.0), Some("A100"));
        assert_eq!(find("4070").map(|card| card.0), Some("RTX 4070"));
        assert_eq!(find("voodoo"), None);
        assert_eq!(find(""), None);
    }
}

//! `train`: how it is trained.

use std::fmt;
use std::num::NonZeroU32;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

use super::Metric;
use super::bounds::{MAX_EPOCHS, MAX_PATIENCE, MAX_SAMPLES, MAX_STEPS, MAX_WAIT};
use crate::text::count;

/// `train.seed` where none is given.
pub const DEFAULT_SEED: u64 = 42;

/// The section of the file, where some settings have two spellings.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct TrainFile {
    /// Passes over the data. Give this or `steps`.
    #[schemars(extend("exclusiveMinimum" = 0), range(max = MAX_EPOCHS))]
    pub epochs: Option<f64>,
    /// Optimizer steps. Give this or `epochs`; without either, one epoch.
    #[schemars(range(min = 1, max = MAX_STEPS))]
    pub steps: Option<u64>,
    /// Samples of full length in one forward and backward pass; `split` says how many shorter ones. `auto`: the largest that fits.
    pub batch: BatchSetting,
    /// Batches in a step. Give this or `effective_batch`.
    #[schemars(range(max = MAX_SAMPLES))]
    pub accum: Option<NonZeroU32>,
    /// Samples in a step.
    #[schemars(range(max = MAX_SAMPLES))]
    pub effective_batch: Option<NonZeroU32>,
    /// How the samples of a step become parts. `fixed`: `batch` samples each. `fill`: as many as hold what `batch` samples of
    /// full length would, so that short samples make few large parts. The training is the same: docs/memory.md.
    pub split: Split,
    /// Trainer processes that share a step, each with a card of its own. Default: `auto`, one for each GPU, and one on the CPU. The
    /// training is the same with any number: docs/several-cards.md.
    pub ranks: Ranks,
    /// State that several ranks share out among them instead of keeping a copy each. `optimizer`: the optimizer's state. The training is
    /// the same.
    pub shard: Shard,
    /// Seconds after which a rank that does nothing while others wait for it is given up.
    #[schemars(range(max = MAX_WAIT))]
    pub rank_timeout: NonZeroU32,
    /// Number formats of weights and matrix products: docs/memory.md.
    pub precision: Precision,
    pub optimizer: Optimizer,
    pub schedule: Schedule,
    /// The largest gradient norm; 0 leaves gradients as they are.
    #[schemars(range(min = 0.0))]
    pub clip: f64,
    /// Gradient checkpointing: blocks are computed again for the backward pass instead of being kept. `auto`: on a card, in parts that
    /// would not fit otherwise. The gradients are the same.
    pub checkpointing: Checkpointing,
    /// Default: what the model's config says.
    #[schemars(range(min = 0.0, max = 0.99))]
    pub dropout: Option<f64>,
    /// Seed of the order of samples, of new weights and of dropout.
    pub seed: u64,
    /// The same bits every time, on a card as well; attention with a bias (T5) then keeps all of its weights.
    pub deterministic: bool,
    /// On a card, launches parts whose shape comes up again as one CUDA graph, where memory is left for that. The result is the same.
    pub cuda_graphs: bool,
    /// Ends the training when a metric no longer improves. Default: all steps are trained. Needs `evaluate.every`.
    pub early_stop: Option<EarlyStop>,
    /// For classifiers. `balanced`: in the training loss every class counts the same, however many rows it has. The evaluation
    /// loss is not weighted.
    pub class_weights: ClassWeights,
    /// With `model.task: preference`: how the better of two answers is learned (DPO, Rafailov et al., 2023).
    pub preference: Option<Preference>,
}

impl Default for TrainFile {
    fn default() -> Self {
        Self {
            epochs: None,
            steps: None,
            batch: BatchSetting::Fixed(NonZeroU32::new(8).expect("8 is not zero")),
            accum: None,
            effective_batch: None,
            split: Split::Fill,
            ranks: Ranks::Auto,
            shard: Shard::None,
            rank_timeout: default_rank_timeout(),
            precision: Precision::Fp32,
            optimizer: Optimizer::default(),
            schedule: Schedule::default(),
            clip: 1.0,
            checkpointing: Checkpointing::Auto,
            dropout: None,
            seed: DEFAULT_SEED,
            deterministic: false,
            cuda_graphs: true,
            early_stop: None,
            class_weights: ClassWeights::None,
            preference: None,
        }
    }
}

/// The section with one spelling each: how long by exactly one of `epochs` and `steps`, how much by `batch` and
/// `effective_batch`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Train {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub epochs: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub steps: Option<u64>,
    pub batch: BatchSetting,
    pub effective_batch: u32,
    #[serde(default = "Split::fixed")]
    pub split: Split,
    #[serde(default, skip_serializing_if = "Ranks::is_auto")]
    pub ranks: Ranks,
    #[serde(default, skip_serializing_if = "Shard::is_none")]
    pub shard: Shard,
    #[serde(default = "default_rank_timeout", skip_serializing_if = "is_default_rank_timeout")]
    pub rank_timeout: NonZeroU32,
    pub precision: Precision,
    pub optimizer: Optimizer,
    pub schedule: Schedule,
    pub clip: f64,
    pub checkpointing: Checkpointing,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dropout: Option<f64>,
    pub seed: u64,
    pub deterministic: bool,
    #[serde(default = "yes", skip_serializing_if = "is_true")]
    pub cuda_graphs: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub early_stop: Option<EarlyStop>,
    #[serde(default, skip_serializing_if = "ClassWeights::is_none")]
    pub class_weights: ClassWeights,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preference: Option<Preference>,
}

fn default_rank_timeout() -> NonZeroU32 {
    NonZeroU32::new(600).expect("600 is not zero")
}

fn is_default_rank_timeout(seconds: &NonZeroU32) -> bool {
    *seconds == default_rank_timeout()
}

fn yes() -> bool {
    true
}

fn is_true(value: &bool) -> bool {
    *value
}

impl Train {
    /// Samples in one pass; while they are still to be found, all of a step's.
    pub fn batch(&self) -> u32 {
        match self.batch {
            BatchSetting::Fixed(batch) => batch.get(),
            BatchSetting::Auto => self.effective_batch,
        }
    }

    /// Batches of a rank in a step; the last of them is smaller where they do not divide the effective batch.
    pub fn accum(&self) -> u32 {
        accum(self.effective_batch, self.batch(), self.ranks.count())
    }
}

/// When a training ends before its last step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct EarlyStop {
    /// A metric of the evaluation, such as `eval.loss`.
    pub metric: Metric,
    /// How many evaluations in a row may bring no improvement: the training ends after the last of them.
    #[schemars(range(max = MAX_PATIENCE))]
    pub patience: NonZeroU32,
}

/// Samples of a step that each of `ranks` has at most.
pub fn share(effective_batch: u32, ranks: u32) -> u32 {
    effective_batch.div_ceil(ranks.max(1))
}

/// How many batches each of `ranks` computes in a step.
pub fn accum(effective_batch: u32, batch: u32, ranks: u32) -> u32 {
    u64::from(effective_batch).div_ceil(u64::from(batch) * u64::from(ranks)) as u32
}

/// How the samples of a step become parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Split {
    /// So many samples that a part holds what `batch` samples of full length would.
    Fill,
    /// `batch` samples.
    Fixed,
}

impl Split {
    /// The split of a spec that names none.
    fn fixed() -> Self {
        Self::Fixed
    }
}

/// Whether what blocks compute inside is computed again for the backward pass, instead of being kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Checkpointing {
    Off,
    On,
    /// In parts that would not fit otherwise.
    Auto,
}

impl Serialize for Checkpointing {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Off => serializer.serialize_bool(false),
            Self::On => serializer.serialize_bool(true),
            Self::Auto => serializer.serialize_str("auto"),
        }
    }
}

impl<'de> Deserialize<'de> for Checkpointing {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match Value::deserialize(deserializer)? {
            Value::String(text) if text == "auto" => Ok(Self::Auto),
            Value::Bool(true) => Ok(Self::On),
            Value::Bool(false) => Ok(Self::Off),
            other => Err(serde::de::Error::custom(format!("found {other}; allowed: true, false or auto"))),
        }
    }
}

impl JsonSchema for Checkpointing {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Checkpointing".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "anyOf": [{ "type": "boolean" }, { "const": "auto" }] })
    }
}

/// How many trainer processes share a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Ranks {
    /// One for each GPU; on the CPU one.
    #[default]
    Auto,
    Count(NonZeroU32),
}

impl Ranks {
    /// One where the number is not known yet.
    pub fn count(self) -> u32 {
        match self {
            Self::Auto => 1,
            Self::Count(count) => count.get(),
        }
    }

    pub fn is_auto(&self) -> bool {
        *self == Self::Auto
    }
}

/// State that the ranks of a training share out among them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Shard {
    #[default]
    None,
    /// The optimizer's state: that of each parameter is kept by one rank (ZeRO, stage 1).
    Optimizer,
}

impl Shard {
    pub fn is_none(&self) -> bool {
        *self == Self::None
    }
}

impl Serialize for Ranks {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Auto => serializer.serialize_str("auto"),
            Self::Count(count) => count.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for Ranks {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match Value::deserialize(deserializer)? {
            Value::String(text) if text == "auto" => Ok(Self::Auto),
            number => serde_json::from_value(number).map(Self::Count).map_err(serde::de::Error::custom),
        }
    }
}

impl JsonSchema for Ranks {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Ranks".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "anyOf": [{ "type": "integer", "minimum": 1, "maximum": 1024 }, { "const": "auto" }] })
    }
}

/// Factors by which the loss of a row is multiplied, by its class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ClassWeights {
    #[default]
    None,
    /// Rows / (classes * rows of the class), over the training data.
    Balanced,
}

impl ClassWeights {
    pub fn is_none(&self) -> bool {
        *self == Self::None
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BatchSetting {
    Fixed(NonZeroU32),
    Auto,
}

impl Serialize for BatchSetting {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Fixed(batch) => batch.serialize(serializer),
            Self::Auto => serializer.serialize_str("auto"),
        }
    }
}

impl<'de> Deserialize<'de> for BatchSetting {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match Value::deserialize(deserializer)? {
            Value::String(text) if text == "auto" => Ok(Self::Auto),
            number => serde_json::from_value(number).map(Self::Fixed).map_err(serde::de::Error::custom),
        }
    }
}

impl JsonSchema for BatchSetting {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "BatchSetting".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "anyOf": [{ "type": "integer", "minimum": 1, "maximum": MAX_SAMPLES }, { "const": "auto" }]
        })
    }
}

/// The loss of a pair of answers. A reward is `beta` times how much more probable an answer is than it was before the training.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Preference {
    /// How much the model is held to where it started.
    #[schemars(extend("exclusiveMinimum" = 0))]
    pub beta: f64,
    /// `sigmoid`: the negative log-sigmoid of the difference of the two rewards; `hinge`: what that difference lacks to 1.
    pub loss: PreferenceLoss,
}

impl Default for Preference {
    fn default() -> Self {
        Self { beta: 0.1, loss: PreferenceLoss::Sigmoid }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum PreferenceLoss {
    Sigmoid,
    Hinge,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Precision {
    Fp32,
    Tf32,
    Bf16,
    Bf16Mixed,
    Fp16Mixed,
}

impl Precision {
    /// As a pipeline writes it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Fp32 => "fp32",
            Self::Tf32 => "tf32",
            Self::Bf16 => "bf16",
            Self::Bf16Mixed => "bf16-mixed",
            Self::Fp16Mixed => "fp16-mixed",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Optimizer {
    /// The optimizer. adamw8bit: AdamW with moments of 8 bits.
    pub kind: OptimizerKind,
    /// The learning rate after warm-up.
    #[schemars(range(min = 0.0))]
    pub lr: f64,
    /// Decay rates of the two moments (AdamW).
    pub betas: [f64; 2],
    /// Added to the denominator of the update (AdamW).
    #[schemars(range(min = 0.0))]
    pub eps: f64,
    /// Decoupled weight decay.
    #[schemars(range(min = 0.0))]
    pub weight_decay: f64,
    /// Which parameters decay.
    pub decay: Decay,
}

impl Default for Optimizer {
    fn default() -> Self {
        Self {
            kind: OptimizerKind::Adamw,
            lr: 1.0e-4,
            betas: [0.9, 0.999],
            eps: 1.0e-8,
            weight_decay: 0.01,
            decay: Decay::Matrices,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum OptimizerKind {
    Adamw,
    Adamw8bit,
    Adafactor,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Decay {
    /// Not biases and norms.
    Matrices,
    All,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Schedule {
    /// How the learning rate changes after warm-up: `linear` and `cosine` end at 0.
    pub kind: ScheduleKind,
    /// Steps of linear warm-up, or below 1 a share of the steps of the training.
    pub warmup: Warmup,
}

impl Default for Schedule {
    fn default() -> Self {
        Self { kind: ScheduleKind::Constant, warmup: Warmup::Steps(0) }
    }
}

/// How long the learning rate rises.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Warmup {
    Steps(u64),
    /// A share of the steps of the training.
    Share(f64),
}

impl Warmup {
    /// Its steps, in a training of `total` steps. A share is rounded up, as the transformers Trainer does it.
    pub fn steps(self, total: u64) -> u64 {
        match self {
            Self::Steps(steps) => steps,
            Self::Share(share) => (share * total as f64).ceil() as u64,
        }
    }
}

impl fmt::Display for Warmup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Steps(steps) => f.write_str(&count(*steps, "step")),
            Self::Share(share) => write!(f, "{share} of the steps"),
        }
    }
}

impl Serialize for Warmup {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Steps(steps) => steps.serialize(serializer),
            Self::Share(share) => share.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for Warmup {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match Value::deserialize(deserializer)? {
            Value::Number(number) if number.is_f64() => match number.as_f64() {
                Some(share) if (0.0..1.0).contains(&share) => Ok(Self::Share(share)),
                _ => Err(serde::de::Error::custom(format!("warmup: {number} is neither steps nor a share below 1"))),
            },
            steps => serde_json::from_value(steps).map(Self::Steps).map_err(serde::de::Error::custom),
        }
    }
}

impl JsonSchema for Warmup {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Warmup".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        let share = "a share of the steps, at least 0 and below 1";
        json_schema!({
            "anyOf": [
                { "type": "integer", "minimum": 0, "maximum": MAX_STEPS },
                { "type": "number", "minimum": 0, "exclusiveMaximum": 1, "description": share }
            ]
        })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ScheduleKind {
    Constant,
    Linear,
    Cosine,
}

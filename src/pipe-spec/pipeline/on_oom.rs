//! `on_oom`: what may be done when memory runs out.
//!
//! `memory`: how much may be used, and how the allocator behaves.

use std::fmt;
use std::num::NonZeroU32;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

use super::bounds::{MAX_DIVISIONS, MAX_RETRIES, MAX_SAMPLES, MAX_SPLIT_MB, MAX_TOKENS, MAX_WAIT};
use super::{OptimizerKind, Precision};
use crate::text::ByteSize;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct OnOom {
    /// Retries at most.
    #[schemars(range(max = MAX_RETRIES))]
    pub retries: u32,
    /// `halve`, a falling ladder of batches such as [128, 96, 64, 32], or `fit`: the largest batch that fits, from what was
    /// measured at smaller ones; where nothing was, half.
    pub reduce: Reduce,
    /// The smallest batch that a retry may use.
    #[schemars(range(max = MAX_SAMPLES))]
    pub min_batch: NonZeroU32,
    /// Seconds to wait for another process to leave the card.
    #[schemars(range(max = MAX_WAIT))]
    pub wait: u64,
    /// Exit codes of a command that mean out of memory, besides what is found in its log.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(inner(range(min = 1, max = 255)))]
    pub exit_codes: Vec<u8>,
    /// Regular expressions that mean out of memory where the last lines of a failed command's log match one, besides the
    /// messages of torch, JAX, TensorFlow and others.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub patterns: Vec<String>,
    /// Whether a command without `{accum}` and `{effective_batch}` reads `PIPE_ACCUM`, and so keeps its effective batch when its batch
    /// is made smaller.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub accumulates: bool,
    /// Changes to the training result that are allowed once the batch is at its minimum, in order. For a command only `effective_batch`:
    /// a smaller batch may make its effective batch smaller too.
    pub then: Vec<Change>,
}

impl Default for OnOom {
    fn default() -> Self {
        Self {
            retries: 6,
            reduce: Reduce::Fit,
            min_batch: NonZeroU32::MIN,
            wait: 600,
            exit_codes: Vec::new(),
            patterns: Vec::new(),
            accumulates: false,
            then: Vec::new(),
        }
    }
}

impl OnOom {
    /// Whether the effective batch may fall with the batch.
    pub fn may_change_effective_batch(&self) -> bool {
        self.then.iter().any(|change| change.edit() == Ok(Edit::EffectiveBatch))
    }
}

/// The effect of a smaller batch on the effective batch of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EffectiveBatch {
    /// The job accumulates more batches in a step.
    Kept,
    /// It falls with the batch, which the pipeline allows.
    MayFall,
    /// It would fall with the batch, which the pipeline does not allow.
    MustNotFall,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reduce {
    Halve,
    Fit,
    Ladder(Vec<u32>),
}

impl Serialize for Reduce {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Halve => serializer.serialize_str("halve"),
            Self::Fit => serializer.serialize_str("fit"),
            Self::Ladder(rungs) => rungs.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for Reduce {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match Value::deserialize(deserializer)? {
            Value::String(text) if text == "halve" => Ok(Self::Halve),
            Value::String(text) if text == "fit" => Ok(Self::Fit),
            rungs => serde_json::from_value(rungs).map(Self::Ladder).map_err(serde::de::Error::custom),
        }
    }
}

impl JsonSchema for Reduce {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Reduce".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "anyOf": [
                { "enum": ["halve", "fit"] },
                {
                    "type": "array",
                    "items": { "type": "integer", "minimum": 1, "maximum": MAX_SAMPLES },
                    "minItems": 1,
                    "description": "a falling list of batches such as [128, 96, 64, 32]"
                }
            ]
        })
    }
}

/// A change to the training result, written `checkpointing`, `effective_batch` or `key=value`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct Change(pub String);

/// The same, understood.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Edit {
    Checkpointing,
    Precision(Precision),
    MaxSource(NonZeroU32),
    MaxTarget(NonZeroU32),
    MaxLength(NonZeroU32),
    Optimizer(OptimizerKind),
    /// Only of commands: the effective batch falls with the batch.
    EffectiveBatch,
}

impl Change {
    const ALLOWED: &str =
        "checkpointing, precision=..., max_source=..., max_target=..., max_length=... or optimizer=...";

    /// The edit that it stands for, or the values that are allowed.
    pub fn edit(&self) -> Result<Edit, String> {
        let Some((key, value)) = self.0.split_once('=') else {
            return match self.0.as_str() {
                "checkpointing" => Ok(Edit::Checkpointing),
                "effective_batch" => Ok(Edit::EffectiveBatch),
                _ => Err(Self::ALLOWED.to_owned()),
            };
        };
        let length = || {
            let length = value.parse().ok().filter(|length: &NonZeroU32| length.get() <= MAX_TOKENS);
            length.ok_or_else(|| format!("{key}= and a whole number of at least 1 and at most {MAX_TOKENS}"))
        };
        match key {
            "precision" => {
                parse_name(value).map(Edit::Precision).ok_or("precision= and one of the precisions".to_owned())
            }
            "optimizer" => parse_name(value)
                .map(Edit::Optimizer)
                .ok_or("optimizer=adamw, optimizer=adamw8bit or optimizer=adafactor".to_owned()),
            "max_source" => length().map(Edit::MaxSource),
            "max_target" => length().map(Edit::MaxTarget),
            "max_length" => length().map(Edit::MaxLength),
            _ => Err(Self::ALLOWED.to_owned()),
        }
    }
}

fn parse_name<T: for<'de> Deserialize<'de>>(text: &str) -> Option<T> {
    serde_json::from_value(Value::String(text.to_owned())).ok()
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Memory {
    /// Share of the card, or a size such as 12g; on the CPU a size. Of several ranks each has so much.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<Limit>,
    pub allocator: Allocator,
    /// Steps between two clearings of the cache; 0 never clears it.
    pub empty_cache_every: u64,
    /// Whether the longest samples go first, through a step whose update is discarded: what will not fit fails at once.
    pub worst_first: bool,
}

impl Default for Memory {
    fn default() -> Self {
        Self { limit: None, allocator: Allocator::default(), empty_cache_every: 0, worst_first: true }
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Limit {
    Share(f64),
    Size(ByteSize),
}

impl Serialize for Limit {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Share(share) => share.serialize(serializer),
            Self::Size(size) => size.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for Limit {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match Value::deserialize(deserializer)? {
            Value::String(size) => size.parse().map(Self::Size).map_err(serde::de::Error::custom),
            share => serde_json::from_value(share).map(Self::Share).map_err(serde::de::Error::custom),
        }
    }
}

impl JsonSchema for Limit {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Limit".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "anyOf": [
                { "type": "number", "exclusiveMinimum": 0, "maximum": 1, "description": "a share of the card above 0, up to 1" },
                generator.subschema_for::<ByteSize>()
            ]
        })
    }
}

/// Settings of torch's caching allocator on the GPU.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Allocator {
    /// Segments that can grow, against fragmentation.
    pub expandable_segments: bool,
    /// Blocks larger than this are not split.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 21, max = MAX_SPLIT_MB))]
    pub max_split_size_mb: Option<u64>,
    /// Round requests up to this many steps between powers of two.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = MAX_DIVISIONS))]
    pub roundup_power2_divisions: Option<u64>,
    /// Free unused blocks above this share of the memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("exclusiveMinimum" = 0), range(max = 1.0))]
    pub garbage_collection_threshold: Option<f64>,
}

impl fmt::Display for Allocator {
    /// As `PYTORCH_CUDA_ALLOC_CONF` wants it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut settings = Vec::new();
        if self.expandable_segments {
            settings.push("expandable_segments:True".to_owned());
        }
        settings.extend(self.max_split_size_mb.map(|mb| format!("max_split_size_mb:{mb}")));
        settings.extend(self.roundup_power2_divisions.map(|n| format!("roundup_power2_divisions:{n}")));
        settings.extend(self.garbage_collection_threshold.map(|t| format!("garbage_collection_threshold:{t}")));
        f.write_str(&settings.join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_understood() {
        let edit = |text: &str| Change(text.to_owned()).edit();
        assert_eq!(edit("checkpointing"), Ok(Edit::Checkpointing));
        assert_eq!(edit("effective_batch"), Ok(Edit::EffectiveBatch));
        assert_eq!(edit("precision=bf16"), Ok(Edit::Precision(Precision::Bf16)));
        assert_eq!(edit("optimizer=adafactor"), Ok(Edit::Optimizer(OptimizerKind::Adafactor)));
        assert_eq!(edit("optimizer=adamw8bit"), Ok(Edit::Optimizer(OptimizerKind::Adamw8bit)));
        assert_eq!(edit("max_source=256"), Ok(Edit::MaxSource(NonZeroU32::new(256).unwrap())));
        for wrong in [
            "",
            "checkpointing=1",
            "effective_batch=8",
            "precision=fp8",
            "max_source=0",
            "max_source=4294967295",
            "max_length=",
            "optimizer=sgd",
            "dropout=0",
        ] {
            assert!(edit(wrong).is_err(), "{wrong}");
        }
    }
}

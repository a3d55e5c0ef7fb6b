//! `memory`: how much may be used, and how the allocator behaves.

use std::fmt;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

use super::bounds::{MAX_DIVISIONS, MAX_SPLIT_MB};
use crate::text::ByteSize;

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

//! `on_oom`: what may be done when memory runs out.

use std::num::NonZeroU32;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct OnOom {
    pub retries: u32,
    /// `halve`, `fit`, or a falling ladder of batches such as [128, 96, 64, 32].
    pub reduce: Reduce,
    pub min_batch: NonZeroU32,
    /// What may change the maths once the batch is at its minimum, in order.
    pub then: Vec<Change>,
}

impl Default for OnOom {
    fn default() -> Self {
        Self { retries: 6, reduce: Reduce::Halve, min_batch: NonZeroU32::MIN, then: Vec::new() }
    }
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
            Value::String(word) if word == "halve" => Ok(Self::Halve),
            Value::String(word) if word == "fit" => Ok(Self::Fit),
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
                    "items": { "type": "integer", "minimum": 1, "maximum": u32::MAX },
                    "minItems": 1,
                    "description": "a falling list of batches such as [128, 96, 64, 32]"
                }
            ]
        })
    }
}

/// A change to the maths, written `checkpointing` or `key=value`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct Change(pub String);

impl Change {
    pub const ALLOWED: &str = "checkpointing, precision=..., max_source=..., max_target=... or optimizer=...";

    pub fn is_known(&self) -> bool {
        match self.0.split_once('=') {
            None => self.0 == "checkpointing",
            Some((key, value)) => {
                matches!(key, "precision" | "max_source" | "max_target" | "max_length" | "optimizer")
                    && !value.is_empty()
            }
        }
    }
}

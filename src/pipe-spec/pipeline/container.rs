//! `container` and `engine`: where it runs and with how much.

use std::collections::BTreeMap;
use std::num::NonZeroU32;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

use super::bounds::MAX_CPUS;
use crate::text::ByteSize;

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Container {
    /// A Dockerfile, which is built, or name:tag or name@sha256:..., which is used as it is. Default: the trainer image of pipe.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image: Option<Image>,
    /// 0, a number, `all`, a list of ids, or `auto`: a GPU where there is one. A training on several GPUs has a rank on each.
    pub gpus: Gpus,
    /// Host memory of the container; default: all of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<ByteSize>,
    /// Size of `/dev/shm`. Default: the daemon's, and 1g for a training of several ranks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shm: Option<ByteSize>,
    /// CPU cores, which is also the number of compute threads. Default: all.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("exclusiveMinimum" = 0), range(max = MAX_CPUS))]
    pub cpus: Option<f64>,
    /// Seconds that a job which is to stop may take to save and end before it is killed; default: 300.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stop_timeout: Option<NonZeroU32>,
    pub mounts: Vec<Mount>,
    /// The folder of the container that a command starts in. Default: the image's. Without a container it is the folder that
    /// pipe was started in.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workdir: Option<String>,
    /// Whether a command has the network. Our trainer has none and needs none.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub network: bool,
    /// Allows a mount of the engine's socket, or of a folder above it, which is refused otherwise. It gives the job control
    /// over the daemon, which means root on this machine.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub engine_socket: bool,
    /// Environment variables of the job, such as `{NCCL_DEBUG: WARN}`.
    pub env: BTreeMap<String, String>,
}

impl Container {
    pub const STOP_TIMEOUT: u32 = 300;

    /// Seconds.
    pub fn stop_timeout(&self) -> u32 {
        self.stop_timeout.map_or(Self::STOP_TIMEOUT, u32::from)
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Mount {
    /// A path on this machine.
    pub host: String,
    /// The absolute path in the container.
    pub container: String,
    /// Must be `true`: only the job's part of the run folder is writable.
    #[serde(default = "default_readonly")]
    pub readonly: bool,
}

fn default_readonly() -> bool {
    true
}

/// Where the container's files come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Image {
    Dockerfile(String),
    /// A name with a tag or a digest, as it is.
    Existing(String),
}

impl Serialize for Image {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Dockerfile(text) | Self::Existing(text) => text.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for Image {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let last = text.rsplit('/').next().unwrap_or_default();
        Ok(if last.contains(':') { Self::Existing(text) } else { Self::Dockerfile(text) })
    }
}

impl JsonSchema for Image {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Image".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "description": "a Dockerfile, or name:tag or name@sha256:..." })
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Gpus {
    #[default]
    Auto,
    Count(u32),
    All,
    Ids(Vec<String>),
}

impl Gpus {
    /// How many are asked for by number or by name.
    pub fn count(&self) -> Option<u32> {
        match self {
            Self::Auto | Self::All => None,
            Self::Count(count) => Some(*count),
            Self::Ids(ids) => Some(ids.len() as u32),
        }
    }
}

impl Serialize for Gpus {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Auto => serializer.serialize_str("auto"),
            Self::All => serializer.serialize_str("all"),
            Self::Count(count) => count.serialize(serializer),
            Self::Ids(ids) => ids.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for Gpus {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        use serde::de::Error;
        let id = |value: &Value| match value {
            Value::String(id) => Ok(id.clone()),
            Value::Number(id) => Ok(id.to_string()),
            other => Err(D::Error::custom(format!("{other} is not a GPU id"))),
        };
        match Value::deserialize(deserializer)? {
            Value::String(text) if text == "auto" => Ok(Self::Auto),
            Value::String(text) if text == "all" => Ok(Self::All),
            Value::Array(ids) => ids.iter().map(id).collect::<Result<_, _>>().map(Self::Ids),
            count => serde_json::from_value(count).map(Self::Count).map_err(D::Error::custom),
        }
    }
}

impl JsonSchema for Gpus {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Gpus".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "anyOf": [
                { "enum": ["auto", "all"] },
                { "type": "integer", "minimum": 0, "maximum": 1024 },
                {
                    "type": "array",
                    "items": { "anyOf": [{ "type": "integer", "minimum": 0 }, { "type": "string" }] },
                    "minItems": 1,
                    "description": "a list of GPU ids"
                }
            ]
        })
    }
}

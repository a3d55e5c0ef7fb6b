//! `container` and `engine`: where it runs and with how much.
//!
//! An engine adds its name to the pipeline file, and a section where it has settings. The program that reads a pipeline says which engines
//! there are; this crate knows none.

use std::collections::BTreeMap;
use std::num::NonZeroU32;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Value, json};

use super::WorkKind;
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

/// The engines that a pipeline may name.
#[derive(Clone, Copy, Debug)]
pub struct Engines {
    pub entries: &'static [EngineEntry],
    /// Names that are refused as not available yet.
    pub planned: &'static [&'static str],
    /// The engine of a pipeline that names none, for people.
    pub default: &'static str,
}

/// An engine, as far as the pipeline file has to know it.
#[derive(Clone, Copy, Debug)]
pub struct EngineEntry {
    pub name: &'static str,
    pub section: Option<SectionType>,
}

/// The settings of an engine: a section of the pipeline file that has the engine's name.
pub trait EngineSection: Default + Serialize + DeserializeOwned + JsonSchema {
    /// The purpose of the section.
    const HELP: &'static str;

    /// Finds what the schema cannot know: keys of the section, each with what is wrong with it.
    fn check(&self, work: WorkKind) -> Vec<(&'static str, String)>;
}

/// An `EngineSection` as a value.
#[derive(Clone, Copy, Debug)]
pub struct SectionType {
    help: &'static str,
    schema: fn(&mut SchemaGenerator) -> Schema,
    default: fn() -> Value,
    read: fn(&Value, WorkKind) -> SectionRead,
}

/// A section with every default, and the problems that it has; or why it cannot be read.
type SectionRead = Result<(Value, Vec<(&'static str, String)>), serde_json::Error>;

impl SectionType {
    pub const fn of<T: EngineSection>() -> Self {
        Self {
            help: T::HELP,
            schema: |generator| generator.subschema_for::<T>(),
            default: default::<T>,
            read: read::<T>,
        }
    }
}

fn default<T: EngineSection>() -> Value {
    json!(T::default())
}

fn read<T: EngineSection>(value: &Value, work: WorkKind) -> SectionRead {
    let section = T::deserialize(value)?;
    Ok((serde_json::to_value(&section)?, section.check(work)))
}

impl PartialEq for Engines {
    fn eq(&self, other: &Self) -> bool {
        self.names().eq(other.names())
    }
}

impl Engines {
    /// For pipelines that name no engine.
    pub const NONE: Self = Self { entries: &[], planned: &[], default: "" };

    fn names(self) -> impl Iterator<Item = &'static str> {
        self.entries.iter().map(|entry| entry.name).chain(self.planned.iter().copied())
    }

    fn sections(self) -> impl Iterator<Item = (&'static str, SectionType)> {
        self.entries.iter().filter_map(|entry| Some((entry.name, entry.section?)))
    }

    /// The names of the engines that have a section.
    pub fn section_names(self) -> impl Iterator<Item = &'static str> {
        self.sections().map(|(name, _)| name)
    }

    /// Adds the names of the engines and, behind the key `engine`, the schemas of their sections.
    pub(super) fn extend_schema(self, schema: &mut Value, sections: Map<String, Value>) {
        let planned = match self.planned {
            [] => String::new(),
            planned => format!(" Not available yet: {}.", planned.join(", ")),
        };
        let engine = json!({
            "anyOf": [{ "$ref": "#/$defs/EngineName" }, { "type": "null" }],
            "description": format!("Default: {}.{planned}", self.default),
            "default": null
        });
        schema["$defs"]["EngineName"] = json!({
            "type": "string",
            "enum": self.names().collect::<Vec<_>>(),
            "description": "What starts containers."
        });
        let Some(properties) = schema["properties"].as_object_mut() else { return };
        for (key, value) in std::mem::take(properties) {
            if key == "engine" {
                properties.insert(key, engine.clone());
                properties.extend(sections.clone());
            } else {
                properties.insert(key, value);
            }
        }
    }

    /// The schemas of the sections by name. Their types are definitions of the generator.
    pub(super) fn section_schemas(self, generator: &mut SchemaGenerator) -> Map<String, Value> {
        let schema = |(name, section): (&str, SectionType)| {
            let mut schema = (section.schema)(generator).to_value();
            schema["description"] = json!(section.help);
            schema["default"] = (section.default)();
            (name.to_owned(), schema)
        };
        self.sections().map(schema).collect()
    }

    /// Takes the sections of engines out of a pipeline file.
    pub(super) fn take_sections(self, file: &mut Value) -> Vec<GivenSection> {
        let Some(file) = file.as_object_mut() else { return Vec::new() };
        self.sections()
            .filter_map(|(name, of)| Some(GivenSection { name, of, value: file.shift_remove(name)? }))
            .collect()
    }
}

/// A section that a file has.
pub(super) struct GivenSection {
    pub name: &'static str,
    of: SectionType,
    value: Value,
}

impl GivenSection {
    /// The section with every default, or nothing where it says no more than these; calls `problem` with the dotted path and the message
    /// of each problem.
    pub fn read(&self, work: WorkKind, mut problem: impl FnMut(&str, String)) -> Option<Value> {
        match (self.of.read)(&self.value, work) {
            Ok((value, problems)) => {
                problems.into_iter().for_each(|(key, message)| problem(&format!("{}.{key}", self.name), message));
                Some(value).filter(|value| *value != (self.of.default)())
            }
            Err(error) => {
                problem(self.name, error.to_string());
                None
            }
        }
    }
}

/// The demands of a pipeline on the engine that runs its jobs.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct EngineRequest {
    pub(super) sections: Map<String, Value>,
    /// Whether jobs are a command without `container.image`, which runs without a container.
    pub without_image: bool,
    /// It is a command that is written for an image.
    pub for_image: bool,
    /// Whether jobs are trainings, which need the trainer.
    pub trains: bool,
    /// Where the jobs of the run are, as its engine wrote it down.
    pub address: Option<String>,
}

impl EngineRequest {
    /// The same for a run that has begun at this address.
    pub fn at(self, address: Option<String>) -> Self {
        Self { address, ..self }
    }

    /// The section of an engine; its defaults where the pipeline has none.
    pub fn section<T: EngineSection>(&self, engine: &str) -> T {
        self.sections.get(engine).and_then(|section| T::deserialize(section).ok()).unwrap_or_default()
    }
}

//! Additions of engines to the pipeline file: their names, and a section for each that has settings. The program that reads a pipeline
//! says which engines there are; this crate knows none.

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

use super::WorkKind;

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

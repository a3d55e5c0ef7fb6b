//! The pipeline file as it stands: what serde reads once the structure has been checked against the schema.
//!
//! A pipeline as a file with every default: the order of the sections, and which are left out.

use std::collections::BTreeMap;

use schemars::{JsonSchema, SchemaGenerator};
use serde::{Deserialize, Serialize, Serializer};
use serde_json::{Map, Value, json};

use super::{
    Adapter, Allocator, Checkpoints, CommandLine, CommandTrain, Container, Data, Engines, Evaluate, Limit, Memory,
    MetricsFormat, Model, Notify, OnOom, Pipeline, Ranks, Save, Track, Train, TrainFile, VarValue, Work,
};
use crate::text::Name;
use crate::yaml::{self, Note};

// A field for each top-level key of the file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(title = "pipe pipeline, version 1")]
pub struct PipelineFile {
    /// The version of this format.
    #[schemars(range(min = 1, max = 1))]
    pub version: u32,
    /// The name of the pipeline, with which run ids begin: 1 to 64 letters, digits, `-`, `_` or `.`, the first one a letter
    /// or digit.
    pub name: Name,
    /// Required unless `command` is given.
    #[serde(default)]
    pub model: Option<Model>,
    /// Train small matrices beside the weights of the model, which stay as they are.
    #[serde(default)]
    pub adapter: Option<Adapter>,
    /// Required unless `command` is given.
    #[serde(default)]
    pub data: Option<Data>,
    #[serde(default)]
    pub train: TrainFile,
    #[serde(default)]
    pub memory: Memory,
    #[serde(default)]
    pub on_oom: OnOom,
    #[serde(default)]
    pub evaluate: Evaluate,
    #[serde(default)]
    pub save: Save,
    #[serde(default)]
    pub container: Container,
    /// Sections of engines follow in the schema; they are read apart from the others.
    #[serde(default)]
    pub engine: Option<String>,
    #[serde(default)]
    pub notify: Vec<Notify>,
    #[serde(default)]
    pub track: Track,
    /// Any other trainer in place of `model` and `data`: a program and its arguments, as a list or a text. `{batch}`, `{accum}`,
    /// `{effective_batch}`, `{precision}`, `{run}`, `{attempt}`, `{resume}` and `{vars.NAME}` are replaced by their values.
    #[serde(default)]
    pub command: Option<CommandLine>,
    /// Values of your own for `command`.
    #[serde(default)]
    pub vars: BTreeMap<String, VarValue>,
    /// Checkpoints that a command can resume from, which `{resume}` names.
    #[serde(default)]
    pub checkpoints: Option<Checkpoints>,
    /// How the metrics of a command are read from its log: lines of JSON, the log of a framework, or a list of regular expressions
    /// with groups named `step`, `steps` and after the values, such as `(?P<loss>\S+)`.
    #[serde(default)]
    pub metrics: MetricsFormat,
    #[serde(default)]
    pub steps: Option<Map<String, Value>>,
}

impl PipelineFile {
    /// A pipeline of this name with every default. It lacks a model and data, or a command.
    pub fn new(name: &Name) -> Self {
        serde_json::from_value(json!({ "version": 1, "name": name })).expect("every other key has a default")
    }

    /// The file for people: without the defaults that no note is about, with the notes as comments.
    pub fn to_yaml(&self, notes: &[Note]) -> String {
        let defaults = Self {
            data: self.data.as_ref().map(|data| Data::new(data.train.clone())),
            checkpoints: self.checkpoints.as_ref().map(|_| Checkpoints::default()),
            ..Self::new(&self.name)
        };
        let tree = |file: &Self| serde_json::to_value(file).expect("a pipeline holds nothing that JSON cannot");
        let (mut file, mut defaults) = (tree(self), tree(&defaults));
        // Every file has these; they are no defaults.
        defaults["version"].take();
        defaults["name"].take();
        defaults["data"]["train"].take();
        let Some(file) = file.as_object_mut() else { return String::new() };
        yaml::without_defaults(file, &defaults, notes);
        yaml::write(file, notes)
    }
}

/// Keys that a step has besides the sections of a pipeline.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct StepFile {
    /// The steps that must have finished before this one begins.
    pub needs: Vec<String>,
    /// Files and folders that the step depends on, besides those that pipe sees by itself: when one changes, the step runs again.
    pub inputs: Vec<String>,
    /// Files or folders below `{run}` that other steps may name. `{steps.STEP.NAME}` is the path of one of them, `{steps.STEP}` of all
    /// that a command wrote. A training has the output `model`.
    pub outputs: BTreeMap<String, String>,
}

/// The sections that stand for all steps, unless a step says otherwise.
pub(super) fn shared_sections(engines: Engines) -> Vec<&'static str> {
    let others = ["container", "memory", "on_oom", "notify", "track", "vars"];
    std::iter::once("engine").chain(engines.section_names()).chain(others).collect()
}

/// The JSON schema of the pipeline file, with what these engines add to it.
pub fn schema(engines: Engines) -> Value {
    let mut generator = SchemaGenerator::default();
    let sections = engines.section_schemas(&mut generator);
    let mut schema = generator.into_root_schema_for::<PipelineFile>().to_value();
    engines.extend_schema(&mut schema, sections);
    let mut step = schemars::schema_for!(StepFile).to_value();
    let sections = schema["properties"].as_object().into_iter().flatten();
    let sections: Vec<(String, Value)> = sections
        .filter(|(name, _)| !["version", "name", "steps"].contains(&name.as_str()))
        .map(|(name, section)| (name.clone(), section.clone()))
        .collect();
    if let Some(properties) = step["properties"].as_object_mut() {
        properties.extend(sections);
    }
    for key in ["$schema", "title"] {
        step.as_object_mut().and_then(|step| step.remove(key));
    }
    let shared: Vec<String> = shared_sections(engines).iter().map(|key| format!("`{key}`")).collect();
    let (last, others) = shared.split_last().map_or(("", [].as_slice()), |(last, others)| (last.as_str(), others));
    let description = format!(
        "Several trainings and commands by name, each with the sections above, in place of one. {} and {last} beside `steps` stand for all of \
         them, key by key, unless a step says otherwise.",
        others.join(", ")
    );
    schema["properties"]["steps"] =
        json!({ "description": description, "type": "object", "additionalProperties": { "$ref": "#/$defs/Step" } });
    schema["$defs"]["Step"] = step;
    schema
}

#[derive(Serialize)]
struct Written<'a> {
    version: u32,
    name: &'a Name,
    #[serde(skip_serializing_if = "Option::is_none")]
    model: Option<&'a Model>,
    #[serde(skip_serializing_if = "Option::is_none")]
    adapter: Option<&'a Adapter>,
    #[serde(skip_serializing_if = "Option::is_none")]
    data: Option<&'a Data>,
    #[serde(skip_serializing_if = "Option::is_none")]
    train: Option<WrittenTrain<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    memory: Option<WrittenMemory<'a>>,
    on_oom: &'a OnOom,
    #[serde(skip_serializing_if = "Option::is_none")]
    evaluate: Option<&'a Evaluate>,
    #[serde(skip_serializing_if = "Option::is_none")]
    save: Option<&'a Save>,
    container: &'a Container,
    #[serde(skip_serializing_if = "Option::is_none")]
    engine: Option<&'a str>,
    #[serde(flatten)]
    sections: &'a Map<String, Value>,
    #[serde(skip_serializing_if = "<[Notify]>::is_empty")]
    notify: &'a [Notify],
    track: &'a Track,
    #[serde(skip_serializing_if = "Option::is_none")]
    command: Option<&'a CommandLine>,
    #[serde(skip_serializing_if = "Option::is_none")]
    vars: Option<&'a BTreeMap<String, VarValue>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    checkpoints: Option<&'a Checkpoints>,
    #[serde(skip_serializing_if = "Option::is_none")]
    metrics: Option<&'a MetricsFormat>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum WrittenMemory<'a> {
    Training(&'a Memory),
    Command {
        #[serde(skip_serializing_if = "Option::is_none")]
        limit: Option<Limit>,
        allocator: &'a Allocator,
    },
}

#[derive(Serialize)]
#[serde(untagged)]
enum WrittenTrain<'a> {
    Training(&'a Train),
    Command(&'a CommandTrain),
}

impl Serialize for Pipeline {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let (training, command) = (self.training(), self.command());
        // One rank for each card is what there is with any number of cards.
        let ranks = |train: &Train| Some(train.ranks.count()).filter(|ranks| *ranks > 1);
        let is_default = |train: &&Train| ranks(train).is_some() && ranks(train) == self.container.gpus.count();
        let plain = training.map(|training| &training.train).filter(is_default);
        let plain = plain.map(|train| Train { ranks: Ranks::Auto, ..train.clone() });
        Written {
            version: self.version,
            name: &self.name,
            model: training.map(|training| &training.model),
            adapter: training.and_then(|training| training.adapter.as_ref()),
            data: training.map(|training| &training.data),
            train: Some(match &self.work {
                Work::Training(training) => WrittenTrain::Training(plain.as_ref().unwrap_or(&training.train)),
                Work::Command(command) => WrittenTrain::Command(&command.train),
            }),
            memory: Some(match &self.work {
                Work::Training(training) => WrittenMemory::Training(&training.memory),
                Work::Command(command) => {
                    WrittenMemory::Command { limit: command.memory.limit, allocator: &command.memory.allocator }
                }
            }),
            on_oom: &self.on_oom,
            evaluate: training.map(|training| &training.evaluate),
            save: training.map(|training| &training.save),
            container: &self.container,
            engine: self.engine.as_deref(),
            sections: &self.sections,
            notify: &self.notify,
            track: &self.track,
            command: command.map(|command| &command.line),
            vars: command.map(|command| &command.vars).filter(|vars| !vars.is_empty()),
            checkpoints: command.and_then(|command| command.checkpoints.as_ref()),
            metrics: command.map(|command| &command.metrics),
        }
        .serialize(serializer)
    }
}

//! The pipeline file as it stands: what serde reads once the structure has been checked against the schema.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Container, Data, EngineKind, Evaluate, Memory, Model, Notify, OnOom, Save, Track, TrainFile};
use crate::text::Name;

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
    /// Default: docker when a daemon answers, else process. Not available yet: slurm, kubernetes.
    #[serde(default)]
    pub engine: Option<EngineKind>,
    #[serde(default)]
    pub notify: Vec<Notify>,
    #[serde(default)]
    pub track: Track,
    /// Not available yet: any other trainer, with {batch} and {accum} filled in.
    #[serde(default)]
    pub command: Option<Vec<String>>,
}

/// The JSON schema of the pipeline file.
pub fn schema() -> Value {
    schemars::schema_for!(PipelineFile).to_value()
}

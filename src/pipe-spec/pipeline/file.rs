//! The pipeline file as it stands: what serde reads once the structure has been checked against the schema.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{
    Checkpoints, CommandLine, Container, Data, EngineKind, Evaluate, Memory, MetricsFormat, Model, Notify, OnOom, Save,
    Track, TrainFile, VarValue,
};
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
    /// Any other trainer in place of `model` and `data`: a program and its arguments, as a list or a text. `{batch}`, `{accum}`,
    /// `{effective_batch}`, `{precision}`, `{run}`, `{attempt}`, `{resume}` and `{vars.NAME}` are replaced by their values.
    #[serde(default)]
    pub command: Option<CommandLine>,
    /// Values of your own for `command`.
    #[serde(default)]
    pub vars: BTreeMap<String, VarValue>,
    /// What a command can resume from, which `{resume}` names.
    #[serde(default)]
    pub checkpoints: Option<Checkpoints>,
    /// How the metrics of a command are read from its log: lines of JSON, the log of a framework, or a list of regular expressions
    /// with groups named `step`, `steps` and after the values, such as `(?P<loss>\S+)`.
    #[serde(default)]
    pub metrics: MetricsFormat,
}

/// The JSON schema of the pipeline file.
pub fn schema() -> Value {
    schemars::schema_for!(PipelineFile).to_value()
}

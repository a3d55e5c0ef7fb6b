//! The study file as it stands: what serde reads once the structure has been checked against the schema.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Number, Value};

use crate::text::Name;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(title = "pipe study, version 1")]
pub struct StudyFile {
    /// The version of this format.
    #[schemars(range(min = 1, max = 1))]
    pub version: u32,
    /// The name of the study, with which run ids begin.
    pub tune: Name,
    /// The pipeline that trials vary: a pipeline file, named from the folder of this file, or the pipeline itself.
    pub pipeline: BasePipeline,
    /// The metric that trials are compared by. A list: none is worth more than the others, and the best trials are those that no
    /// other beats in all (the Pareto front).
    pub objective: Objectives,
    /// The settings that differ between trials, by their paths in the pipeline, such as `train.optimizer.lr`: a list of values, a
    /// range, or values with a condition.
    pub space: BTreeMap<String, Domain>,
    #[serde(default)]
    pub budget: Budget,
    /// How the next trial is chosen: `tpe` learns from the trials before, `random` does not, `grid` takes every combination once.
    #[serde(default)]
    pub sampler: SamplerKind,
    #[serde(default)]
    pub prune: Prune,
    /// How a trial goes on that runs out of memory: `retry` continues with a smaller batch at the same effective batch, `prune` ends
    /// it there. With both, settings that are known not to fit are not tried. `shrink` tries those too, with the largest batch that
    /// fits: the training is the same.
    #[serde(default)]
    pub oom: OomPolicy,
    /// Whose models and checkpoints are kept once trials have ended: those of the best alone, or those of all.
    #[serde(default)]
    pub keep: Keep,
    /// With the same seed, and one trial at a time, a study tries the same settings again.
    #[serde(default)]
    pub seed: u64,
    /// A journal file of Optuna, named from the folder of this file, which may hold trials already. Default: `optuna.log` in the study's
    /// folder.
    #[serde(default)]
    pub storage: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum BasePipeline {
    File(String),
    Inline(Map<String, Value>),
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum Objectives {
    One(Objective),
    Several(Vec<Objective>),
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Objective {
    /// A metric of the evaluation such as `eval.loss`, `loss` of the training, a metric that a command reports, or one of
    /// `peak_memory` (bytes), `seconds` and `samples_per_second`.
    pub metric: String,
    pub direction: Goal,
    /// Which value of the metric counts.
    #[serde(default)]
    pub value: Which,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
pub enum Goal {
    Minimize,
    Maximize,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
pub enum Which {
    #[default]
    Last,
    Best,
}

/// The values that a setting may have.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum Domain {
    List(Vec<Value>),
    Described(Box<Described>),
}

/// A range (`low` and `high`), or `values`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Described {
    /// The least value of a range. Whole numbers only where `low`, `high` and `step` are whole numbers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub low: Option<Number>,
    /// The greatest value of a range.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub high: Option<Number>,
    /// The distance between the values of a range.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step: Option<Number>,
    /// Whether small values of a range count as much as large ones: for learning rates and the like.
    pub log: bool,
    /// Values to choose from: a list, or a map of names and values, for values that are maps themselves.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub values: Option<Values>,
    /// Conditions on other settings of the space; where one does not hold, the setting is left as the pipeline has it.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub when: BTreeMap<String, When>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum Values {
    List(Vec<Value>),
    Named(Map<String, Value>),
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct When {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub above: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub below: Option<f64>,
    /// One of these values.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub any_of: Vec<Value>,
}

/// When the study ends.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Budget {
    /// Trials that are run. Settings that are known not to fit are none.
    #[schemars(range(min = 1, max = 1_000_000))]
    pub trials: Option<u64>,
    /// After so many hours no further trial begins.
    #[schemars(range(min = 0, max = 100_000))]
    pub hours: Option<f64>,
    /// Trials that run at the same time. Those that want the same card wait for each other.
    #[schemars(range(min = 1, max = 1_000))]
    pub parallel: u32,
}

impl Default for Budget {
    fn default() -> Self {
        Self { trials: None, hours: None, parallel: 1 }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
pub enum SamplerKind {
    #[default]
    Tpe,
    Random,
    Grid,
}

impl SamplerKind {
    pub fn name(self) -> &'static str {
        match self {
            Self::Tpe => "tpe",
            Self::Random => "random",
            Self::Grid => "grid",
        }
    }
}

/// When a trial is ended before its time, because others were better at the same step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Prune {
    /// `median`: where its best value so far is worse than the median of the others at that step. `asha`: where it is not among the
    /// best of those that came as far, at certain steps (asynchronous successive halving).
    pub kind: PruneKind,
    /// The first trials are not ended (`median`).
    pub startup_trials: u64,
    /// Before this step no trial is ended (`median`).
    pub warmup_steps: u64,
    /// The first step at which trials are compared (`asha`).
    #[schemars(range(min = 1))]
    pub min_steps: u64,
    /// One of so many goes on each time; they are compared again after so many times as many steps (`asha`).
    #[schemars(range(min = 2, max = 100))]
    pub reduction: u64,
    /// Whether a trial saves a checkpoint before it is ended.
    pub save: bool,
}

impl Default for Prune {
    fn default() -> Self {
        Self { kind: PruneKind::None, startup_trials: 5, warmup_steps: 0, min_steps: 1, reduction: 4, save: false }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
pub enum PruneKind {
    Median,
    Asha,
    #[default]
    None,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
pub enum OomPolicy {
    #[default]
    Retry,
    Prune,
    Shrink,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
pub enum Keep {
    #[default]
    Best,
    All,
}

/// The JSON schema of the study file.
pub fn schema() -> Value {
    schemars::schema_for!(StudyFile).to_value()
}

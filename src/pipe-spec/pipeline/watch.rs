//! `evaluate`, `save`, `notify` and `track`: what is looked at, kept and told while training runs.

use std::num::NonZeroU32;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Evaluate {
    /// Steps between two evaluations; 0 evaluates at the end alone. Needs `data.eval`.
    pub every: u64,
    /// Default: `train.batch`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub batch: Option<NonZeroU32>,
    /// How many sample texts to print.
    pub generate: u32,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Save {
    /// Steps between two checkpoints; 0 saves at the end alone.
    pub every: u64,
    /// How many checkpoints are kept.
    pub keep: NonZeroU32,
    /// Whether the trained model is written to `model/`.
    pub export: bool,
}

impl Default for Save {
    fn default() -> Self {
        Self { every: 500, keep: NonZeroU32::new(3).expect("3 is not zero"), export: true }
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Notify {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub discord: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub webhook: Option<String>,
    #[serde(default)]
    pub on: Vec<NotifyOn>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum NotifyOn {
    Started,
    Oom,
    Retried,
    Finished,
    Failed,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Track {
    pub tensorboard: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mlflow: Option<String>,
}

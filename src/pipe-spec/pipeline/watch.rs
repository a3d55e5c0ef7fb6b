//! `evaluate`, `save`, `notify` and `track`: evaluation, checkpoints, messages and trackers.

use std::num::NonZeroU32;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

use super::Metric;
use super::bounds::{MAX_BEAMS, MAX_SAMPLES, MAX_TEXTS, MAX_TOKENS};

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Evaluate {
    /// Steps between two evaluations, or `epoch`; 0 evaluates at the end alone. Needs `data.eval`.
    pub every: Every,
    /// Default: `train.batch`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(max = MAX_SAMPLES))]
    pub batch: Option<NonZeroU32>,
    /// How many sample texts to print.
    #[schemars(range(max = MAX_TEXTS))]
    pub generate: u32,
    /// Tokens of a text that a language model generates, at most (seq2seq: `data.max_target`).
    #[schemars(range(max = MAX_TOKENS))]
    pub max_tokens: NonZeroU32,
    /// Beginnings that are kept side by side while a text is generated (seq2seq); 1 takes the most probable token each time.
    #[schemars(range(max = MAX_BEAMS))]
    pub beams: NonZeroU32,
    /// How freely a language model chooses among probable tokens; 0 takes the most probable one.
    #[schemars(range(min = 0.0))]
    pub temperature: f64,
    /// A language model chooses among the most probable tokens that together have this probability.
    #[schemars(range(max = 1.0), extend("exclusiveMinimum" = 0))]
    pub top_p: f64,
    /// With several labels a text: the probability from which a label applies. The exported model keeps it.
    #[schemars(range(max = 1.0), extend("exclusiveMinimum" = 0))]
    pub threshold: f64,
}

impl Default for Evaluate {
    fn default() -> Self {
        Self {
            every: Every::Steps(0),
            batch: None,
            generate: 0,
            max_tokens: NonZeroU32::new(64).expect("64 is not zero"),
            beams: NonZeroU32::MIN,
            temperature: 1.0,
            top_p: 0.95,
            threshold: 0.5,
        }
    }
}

/// How often something is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Every {
    Steps(u64),
    Epoch,
}

impl Serialize for Every {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Steps(steps) => steps.serialize(serializer),
            Self::Epoch => serializer.serialize_str("epoch"),
        }
    }
}

impl<'de> Deserialize<'de> for Every {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match Value::deserialize(deserializer)? {
            Value::String(text) if text == "epoch" => Ok(Self::Epoch),
            number => serde_json::from_value(number).map(Self::Steps).map_err(serde::de::Error::custom),
        }
    }
}

impl JsonSchema for Every {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Every".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "anyOf": [{ "type": "integer", "minimum": 0 }, { "const": "epoch" }] })
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Save {
    /// Steps between two checkpoints; 0 saves at the end alone.
    pub every: u64,
    /// How many checkpoints are kept.
    pub keep: NonZeroU32,
    /// A metric of the evaluation, such as `eval.loss` or `eval.macro_f1`: the checkpoint where it is best is kept besides
    /// `keep`, and `model/` is made from it. Default: `model/` is made from the last step. Needs `evaluate.every`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub best: Option<Metric>,
    /// Whether the trained model is written to `model/`.
    pub export: bool,
    /// With an `adapter`: whether `model/` is the model with the adapter in its weights, instead of the adapter alone.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub merge: bool,
    /// A bucket, such as s3://bucket/runs (gs://, az://), that gets a copy of the run while it trains; `pipe resume
    /// s3://bucket/runs/RUN` continues it on any machine. Not within `steps` or a study.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
}

impl Default for Save {
    fn default() -> Self {
        let keep = NonZeroU32::new(3).expect("3 is not zero");
        Self { every: 500, keep, best: None, export: true, merge: false, to: None }
    }
}

/// A receiver of messages about a run: either `discord` or `webhook`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Notify {
    /// The address of a Discord webhook. It is a secret: name a variable, as in "${DISCORD_WEBHOOK}".
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub discord: Option<String>,
    /// An address that gets each message as a JSON object, by POST.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub webhook: Option<String>,
    /// The events that send a message; an empty list means all of them. When a person stops a run, no message is sent.
    #[serde(default)]
    pub on: Vec<NotifyOn>,
}

impl Notify {
    /// Which kind of receiver it is, with its address as the file has it.
    pub fn receiver(&self) -> Option<(&'static str, &str)> {
        match (&self.discord, &self.webhook) {
            (Some(address), None) => Some(("discord", address)),
            (None, Some(address)) => Some(("webhook", address)),
            (None, None) | (Some(_), Some(_)) => None,
        }
    }

    pub fn wants(&self, what: NotifyOn) -> bool {
        self.on.is_empty() || self.on.contains(&what)
    }
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
    /// Event files for TensorBoard in the run folder.
    pub tensorboard: bool,
    /// The address of an MLflow server, as in "${MLFLOW_TRACKING_URI}".
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mlflow: Option<String>,
    /// A project of Weights & Biases: the run folder gets an offline run that `wandb sync` uploads.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wandb: Option<String>,
}

impl Track {
    /// Characters that the name of a W&B project cannot have, and how many it has at most.
    const NOT_IN_PROJECT: [char; 7] = ['/', '\\', '#', '?', '%', ':', '"'];
    const PROJECT: usize = 128;

    /// Whether W&B takes a project of this name.
    pub fn is_wandb_project(name: &str) -> bool {
        let length = name.chars().count();
        let allowed = |c: char| !c.is_control() && !Self::NOT_IN_PROJECT.contains(&c);
        (1..=Self::PROJECT).contains(&length) && name.trim() == name && name.chars().all(allowed)
    }
}

//! `model`: what is trained.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Model {
    pub arch: Arch,
    /// A folder in Hugging Face layout, or a hub id (owner/name, owner/name@revision), which is fetched where the hub cache
    /// does not have it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// Instead of `from`: train from scratch, keys as in the model's config.json.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config: Option<Map<String, Value>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Arch {
    T5,
    Bert,
    Roberta,
    XlmRoberta,
    #[serde(rename = "deberta-v3")]
    DebertaV3,
    Clip,
    HybridCnnLstm,
    MuSota,
}

//! `adapter`: small matrices that are trained beside the frozen weights of a model.

use std::num::NonZeroU32;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The largest rank of an adapter.
const MAX_RANK: u32 = 4096;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Adapter {
    /// The kind of the matrices.
    pub kind: AdapterKind,
    /// The inner width of its matrices.
    #[schemars(range(max = MAX_RANK))]
    pub rank: NonZeroU32,
    /// The product of the matrices is multiplied by alpha / rank. Default: twice the rank.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("exclusiveMinimum" = 0))]
    pub alpha: Option<f64>,
    /// The share of their input that is dropped in training.
    #[schemars(range(min = 0.0), extend("exclusiveMaximum" = 1))]
    pub dropout: f64,
    /// `all-linear`, or the names of the layers that get one, such as [q_proj, v_proj].
    pub targets: AdapterTargets,
    /// Multiply by alpha / sqrt(rank) instead (rank-stabilised LoRA).
    pub rs: bool,
    /// A folder with an adapter to continue from: adapter_config.json and adapter_model.safetensors, as PEFT writes them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
}

impl Default for Adapter {
    fn default() -> Self {
        Self {
            kind: AdapterKind::Lora,
            rank: NonZeroU32::new(16).expect("16 is not zero"),
            alpha: None,
            dropout: 0.0,
            targets: AdapterTargets::AllLinear,
            rs: false,
            from: None,
        }
    }
}

impl Adapter {
    /// One that was trained before and lies in a folder, which says all the rest.
    pub fn trained(folder: String) -> Self {
        Self { from: Some(folder), ..Self::default() }
    }

    pub fn alpha(&self) -> f64 {
        self.alpha.unwrap_or_else(|| 2.0 * f64::from(self.rank.get()))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum AdapterKind {
    /// Two matrices beside each layer, one down to `rank` and one up again (Hu et al., 2021).
    Lora,
}

/// The layers that get an adapter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AdapterTargets {
    /// Every linear layer but the head.
    AllLinear,
    Named(Vec<String>),
}

impl AdapterTargets {
    const ALL: &str = "all-linear";
}

impl Serialize for AdapterTargets {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::AllLinear => serializer.serialize_str(Self::ALL),
            Self::Named(names) => names.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for AdapterTargets {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Given {
            One(String),
            Several(Vec<String>),
        }
        Ok(match Given::deserialize(deserializer)? {
            Given::One(name) if name == Self::ALL => Self::AllLinear,
            Given::One(name) => Self::Named(vec![name]),
            Given::Several(names) => Self::Named(names),
        })
    }
}

impl JsonSchema for AdapterTargets {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "AdapterTargets".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "all-linear, or names of layers",
            "anyOf": [{ "type": "string" }, { "type": "array", "items": { "type": "string" }, "minItems": 1 }]
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn targets_and_alpha() {
        let read = |value| serde_json::from_value::<Adapter>(value).unwrap();
        assert_eq!(read(json!({})), Adapter::default());
        assert_eq!(read(json!({"rank": 5})).alpha(), 10.0);
        assert_eq!(read(json!({"rank": 5, "alpha": 8.0})).alpha(), 8.0);
        let named = read(json!({"targets": ["q_proj", "v_proj"]})).targets;
        assert_eq!(named, AdapterTargets::Named(vec!["q_proj".to_owned(), "v_proj".to_owned()]));
        assert_eq!(serde_json::to_value(&named).unwrap(), json!(["q_proj", "v_proj"]));
        assert_eq!(serde_json::to_value(AdapterTargets::AllLinear).unwrap(), json!("all-linear"));
    }
}

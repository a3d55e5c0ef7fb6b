//! `model`: what is trained, and `adapter`: small matrices that are trained beside its frozen weights.

use std::num::NonZeroU32;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Value};

use super::{LossUnit, Task};
use crate::yaml::Node;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Model {
    /// The architecture. Default: that of the model in `from`.
    pub arch: Arch,
    /// The task, for an architecture that has more than one. Default: that of the trained model in `from`, else
    /// text-classification. `preference`, for a decoder model: the better of two answers (DPO).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task: Option<ModelTask>,
    /// A folder in Hugging Face layout, also in a bucket (s3://bucket/folder), or a hub id (owner/name, owner/name@revision);
    /// fetched where the cache does not have it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// Instead of `from`: train from scratch, keys as in the model's config.json.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config: Option<Map<String, Value>>,
    /// With an `adapter`: how the weights of the linear layers are kept beside which it is trained. Default: none.
    #[serde(default, skip_serializing_if = "Quantize::is_none")]
    pub quantize: Quantize,
}

/// How weights that are not trained are kept, with the numbers of bitsandbytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Quantize {
    /// As wide as they are computed with.
    #[default]
    None,
    /// 8 bits, scaled by row.
    Int8,
    /// 4 bits (NormalFloat), scaled by blocks of 64, whose scales have 8 bits.
    Nf4,
}

impl Quantize {
    pub fn is_none(&self) -> bool {
        *self == Self::None
    }
}

/// The tasks among which an architecture leaves a choice, as Hugging Face names them where it does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ModelTask {
    TextClassification,
    TokenClassification,
    Preference,
}

impl ModelTask {
    pub fn name(self) -> &'static str {
        match self {
            Self::TextClassification => "text-classification",
            Self::TokenClassification => "token-classification",
            Self::Preference => "preference",
        }
    }
}

impl Model {
    /// The model that a pipeline file names, as it is written there.
    pub fn written(text: &str) -> Option<Self> {
        serde_json::from_value(Self::written_keys(text)).ok()
    }

    /// The model of a pipeline file as it is written there, right or wrong.
    pub fn written_keys(text: &str) -> Value {
        Node::parse(text).ok().and_then(|file| file.to_json().get("model").cloned()).unwrap_or_default()
    }

    /// The same for each of the `steps` of a file, by their names.
    pub fn written_in_steps(text: &str) -> Vec<(String, Value)> {
        let file = Node::parse(text).map(|file| file.to_json()).unwrap_or_default();
        let steps = file.get("steps").and_then(Value::as_object).into_iter().flatten();
        steps.filter_map(|(name, step)| Some((name.clone(), step.get("model")?.clone()))).collect()
    }

    pub fn task(&self) -> Task {
        match self.task {
            Some(ModelTask::TokenClassification) => Task::TokenLabels,
            Some(ModelTask::Preference) => Task::Preference,
            Some(ModelTask::TextClassification) | None => self.arch.task(),
        }
    }
}

macro_rules! architectures {
    ($($variant:ident: $name:tt, $task:ident, $model_type:tt, [$($file:tt),*];)*) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
        pub enum Arch {
            $(#[serde(rename = $name)] $variant,)*
        }

        impl Arch {
            pub const ALL: &[Self] = &[$(Self::$variant),*];

            /// As it is written in a pipeline.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name),* }
            }

            pub fn task(self) -> Task {
                match self { $(Self::$variant => Task::$task),* }
            }

            /// `model_type` of its config.json.
            pub fn model_type(self) -> &'static str {
                match self { $(Self::$variant => $model_type),* }
            }

            /// The files that hold its vocabulary where there is no tokenizer.json. The first names the set.
            pub fn vocabulary_files(self) -> &'static [&'static str] {
                match self { $(Self::$variant => &[$($file),*]),* }
            }
        }
    };
}

// The registry of architectures: variant, name in a pipeline, task, `model_type` of config.json, files of the vocabulary.
architectures! {
    T5: "t5", Seq2Seq, "t5", ["spiece.model"];
    Bert: "bert", Classification, "bert", ["vocab.txt"];
    Roberta: "roberta", Classification, "roberta", ["vocab.json", "merges.txt"];
    XlmRoberta: "xlm-roberta", Classification, "xlm-roberta", ["sentencepiece.bpe.model"];
    DebertaV3: "deberta-v3", Classification, "deberta-v2", ["spm.model"];
    Clip: "clip", Contrastive, "clip", ["vocab.json", "merges.txt"];
    HybridCnnLstm: "hybrid-cnn-lstm", TimeSeries, "hybrid_cnn_lstm", [];
    MuSota: "mu-sota", Language, "mu_sota", [];
    Llama: "llama", Language, "llama", [];
    Mistral: "mistral", Language, "mistral", [];
    Qwen2: "qwen2", Language, "qwen2", [];
    Qwen3: "qwen3", Language, "qwen3", [];
    BagOfWords: "bag-of-words", Classification, "bag_of_words", [];
    Tabular: "tabular", Table, "tabular", [];
    ResNet: "resnet", PictureClasses, "resnet", [];
    Vit: "vit", PictureClasses, "vit", [];
}

impl Arch {
    pub fn find(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|arch| arch.name() == name)
    }

    /// Whether it can also label each token of a text.
    pub fn labels_tokens(self) -> bool {
        matches!(self, Self::Bert | Self::Roberta | Self::XlmRoberta | Self::DebertaV3)
    }

    /// Whether it is a decoder model, which can learn the better of two answers.
    pub fn prefers(self) -> bool {
        matches!(self, Self::Llama | Self::Mistral | Self::Qwen2 | Self::Qwen3)
    }

    /// The tasks that `model.task` can name.
    pub fn tasks(self) -> &'static [ModelTask] {
        match self {
            _ if self.labels_tokens() => &[ModelTask::TextClassification, ModelTask::TokenClassification],
            _ if self.prefers() => &[ModelTask::Preference],
            _ => &[],
        }
    }

    /// Whether it can be trained for a task.
    pub fn can(self, task: Task) -> bool {
        self.task() == task
            || (task == Task::TokenLabels && self.labels_tokens())
            || (task == Task::Preference && self.prefers())
    }

    /// The first of the table for a task: what `pipe init` proposes.
    pub fn first_for(task: Task) -> Self {
        let first = Self::ALL.iter().copied().find(|arch| arch.can(task));
        first.expect("every task has an architecture")
    }

    /// The architecture that a config.json is for. The name in a pipeline counts too.
    pub fn of_model_type(model_type: &str) -> Option<Self> {
        let known = Self::ALL.iter().copied().find(|arch| arch.model_type() == model_type);
        known.or_else(|| Self::find(&model_type.replace('_', "-")))
    }
}

impl LossUnit {
    /// The unit of a run, from its `resolved.yaml`. Tokens where that cannot be read.
    pub fn of_resolved(resolved: &str) -> Self {
        Model::written(resolved).map_or_else(Self::default, |model| model.task().loss_unit())
    }
}

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
    fn names_and_model_types_find_their_architecture() {
        for arch in Arch::ALL {
            assert_eq!(serde_json::to_value(arch).unwrap(), arch.name());
            assert_eq!(Arch::find(arch.name()), Some(*arch));
            assert_eq!(Arch::of_model_type(arch.model_type()), Some(*arch));
            assert_eq!(Arch::of_model_type(&arch.name().replace('-', "_")), Some(*arch));
        }
        assert_eq!(Arch::of_model_type("gpt2"), None);
        for task in Task::ALL {
            assert!(Arch::first_for(task).can(task));
        }
    }

    #[test]
    fn the_architecture_decides_the_unit() {
        let of = |model: &str| LossUnit::of_resolved(&format!("model: {{arch: {model}}}\ntrain: {{batch: 8}}\n"));
        for (arch, want) in [("t5", LossUnit::Tokens), ("mu-sota", LossUnit::Tokens), ("bert", LossUnit::Samples)] {
            assert_eq!(of(arch), want, "{arch}");
        }
        assert_eq!(of("bert, task: token-classification"), LossUnit::Tokens);
        assert_eq!(of("no-such"), LossUnit::Tokens);
        assert_eq!(LossUnit::of_resolved(""), LossUnit::Tokens);
    }

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

//! `data`: what it is trained on.

use std::collections::BTreeMap;
use std::num::NonZeroU32;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

use super::bounds::{MAX_PREFETCHED, MAX_TOKENS, MAX_WORKERS};
use super::task::{IGNORED_COLUMNS, Task};

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Data {
    /// .jsonl, .json, .csv, .tsv, .txt, .conll (also with .gz or .zst behind), .parquet, .xlsx, .safetensors (what of these depends on the
    /// task), a folder of them, or a list; relative to the working directory. On the hub: hf://datasets/owner/name/path, in a bucket:
    /// s3://bucket/path (gs://, az://), where the path may be a file, a folder or a pattern.
    pub train: Paths,
    /// Evaluation data, named as `train` is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub eval: Option<Paths>,
    /// Instead of `eval`: which share of the rows is not trained on, but evaluated. `train.seed` chooses them, of every class
    /// the same share; of a time series it is the end.
    #[serde(default)]
    #[schemars(range(min = 0.0, max = 0.9))]
    pub eval_share: f64,
    /// A tokenizer.json or another file that the model's tokenizer is read from, such as spiece.model or vocab.txt. Default: in
    /// the folder of `model.from`, else beside the first file of `train`; for a model from scratch, else one that is trained on
    /// the texts of `train`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokenizer: Option<String>,
    /// Which column of the data feeds what, per task: source/target and perhaps context (or messages: a conversation whose last turn is
    /// the target), text/text_pair/label, image/text, label/time, text (or messages, or prompt/completion and perhaps context), chosen/rejected and perhaps prompt, tokens/tags, image/label, label/ignore (columns that a table is
    /// not trained on, with commas or semicolons between them).
    #[serde(default)]
    pub fields: BTreeMap<String, String>,
    /// The text between the labels of a row that can have several, such as `|` in `billing|urgent`. Lists need none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1))]
    pub label_separator: Option<String>,
    /// Which tokens of a conversation the loss counts: what the assistant says, or all of them.
    #[serde(default, skip_serializing_if = "LossOn::is_default")]
    pub loss_on: LossOn,
    /// Tokens of a source text (`t5`). Longer texts are cut.
    #[serde(default = "default_length")]
    #[schemars(range(max = MAX_TOKENS))]
    pub max_source: NonZeroU32,
    /// Tokens of a target text (`t5`). Longer texts are cut.
    #[serde(default = "default_length")]
    #[schemars(range(max = MAX_TOKENS))]
    pub max_target: NonZeroU32,
    /// For tasks with a single sequence.
    #[serde(default = "default_length")]
    #[schemars(range(max = MAX_TOKENS))]
    pub max_length: NonZeroU32,
    /// Pad a batch to its longest row, or to `max_length`. In 16 bits on a card T5, the BERT family, DeBERTa, CLIP and decoder models train without
    /// padding, whatever is asked for here.
    #[serde(default)]
    pub pad: Pad,
    /// Skip unreadable pictures and rows without a text or a label or with too few or too many cells, and say which; otherwise the
    /// first ends the training.
    #[serde(default)]
    pub skip_bad: bool,
    /// How pictures with a class change at random in training, another way in each epoch: `crop` takes a random part of the picture,
    /// `flip` mirrors half of them. Default for such pictures: crop.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub augment: Option<Augment>,
    /// Shuffle the rows in every epoch, by `train.seed`.
    #[serde(default = "default_shuffle")]
    pub shuffle: bool,
    /// Threads that prepare batches.
    #[serde(default = "default_workers")]
    #[schemars(range(max = MAX_WORKERS))]
    pub workers: NonZeroU32,
    /// Batches ready ahead.
    #[serde(default = "default_prefetch")]
    #[schemars(range(max = MAX_PREFETCHED))]
    pub prefetch: u32,
}

fn default_length() -> NonZeroU32 {
    NonZeroU32::new(512).expect("512 is not zero")
}

fn default_shuffle() -> bool {
    true
}

fn default_workers() -> NonZeroU32 {
    NonZeroU32::new(2).expect("2 is not zero")
}

fn default_prefetch() -> u32 {
    2
}

/// The role of a column whose rows are conversations, instead of a source and a target.
pub const CONVERSATION: &str = "messages";

/// The role of a column that is read after the source, on a line of its own, where a row has something there.
pub const CONTEXT: &str = "context";

/// The roles of the columns with what a language model is asked, and with what it is to answer.
pub const PROMPT: &str = "prompt";
pub const COMPLETION: &str = "completion";

/// The roles of the columns with the better and the worse answer.
pub const CHOSEN: &str = "chosen";
pub const REJECTED: &str = "rejected";

impl Data {
    /// These files with every default.
    pub fn new(train: Paths) -> Self {
        serde_json::from_value(serde_json::json!({ "train": train })).expect("every other key has a default")
    }

    /// The column that feeds `role`; its own name unless `fields` says otherwise.
    pub fn field<'a>(&'a self, role: &'a str) -> &'a str {
        self.fields.get(role).map_or(role, String::as_str)
    }

    /// The columns that a table is not trained on: what is given as one name, which may have commas in it, then each by itself.
    pub fn ignored_columns(&self) -> Vec<&str> {
        let given = self.fields.get(IGNORED_COLUMNS).map_or("", String::as_str);
        std::iter::once(given).chain(given.split([',', ';'])).map(str::trim).filter(|name| !name.is_empty()).collect()
    }

    /// Whether the rows of a language model are conversations, or questions with their answers.
    pub fn is_chat(&self) -> bool {
        [CONVERSATION, COMPLETION].iter().any(|role| self.fields.contains_key(*role))
    }

    /// The roles of the columns that are read: conversations and a context where they are named, otherwise a source and a target.
    pub fn roles(&self, task: Task) -> Vec<&'static str> {
        let is_conversation = self.fields.contains_key(CONVERSATION);
        let is_read = |role: &&&str| match task {
            Task::Seq2Seq if **role == CONTEXT => !is_conversation && self.fields.contains_key(CONTEXT),
            Task::Seq2Seq => (**role == CONVERSATION) == is_conversation,
            // Conversations, questions with their answers, or plain texts.
            Task::Language if is_conversation => **role == CONVERSATION,
            Task::Language if self.fields.contains_key(COMPLETION) => match **role {
                CONTEXT => self.fields.contains_key(CONTEXT),
                other => [PROMPT, COMPLETION].contains(&other),
            },
            Task::Language => **role == "text",
            // Conversations may have it in them.
            Task::Preference if **role == PROMPT => self.fields.contains_key(PROMPT),
            // Plain texts are for predictions.
            Task::TokenLabels => **role != "text",
            _ => **role != IGNORED_COLUMNS,
        };
        task.roles().iter().filter(is_read).copied().collect()
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Pad {
    #[default]
    Longest,
    Max,
}

/// The tokens of a conversation that the loss counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum LossOn {
    #[default]
    Assistant,
    All,
}

impl LossOn {
    fn is_default(&self) -> bool {
        *self == Self::Assistant
    }
}

/// A random change of a picture in training.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Augment {
    None,
    Flip,
    Crop,
    CropFlip,
}

impl Augment {
    /// A part of a picture shows what the picture shows; what is mirrored may be something else, such as a letter.
    pub const DEFAULT: Self = Self::Crop;

    pub fn crops(self) -> bool {
        matches!(self, Self::Crop | Self::CropFlip)
    }

    pub fn flips(self) -> bool {
        matches!(self, Self::Flip | Self::CropFlip)
    }
}

/// One path or a list of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Paths(pub Vec<String>);

impl Serialize for Paths {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0.as_slice() {
            [one] => one.serialize(serializer),
            many => many.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for Paths {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match Value::deserialize(deserializer)? {
            Value::String(one) => Ok(Self(vec![one])),
            many => serde_json::from_value(many).map(Self).map_err(serde::de::Error::custom),
        }
    }
}

impl JsonSchema for Paths {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Paths".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "a path or a list of paths",
            "anyOf": [{ "type": "string" }, { "type": "array", "items": { "type": "string" }, "minItems": 1 }]
        })
    }
}

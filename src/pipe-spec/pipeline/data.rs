//! `data`: what it is trained on, and the form of data that each task needs.

use std::collections::BTreeMap;
use std::num::NonZeroU32;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

use super::Metric;
use super::bounds::{MAX_PREFETCHED, MAX_TOKENS, MAX_WORKERS};

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

/// The role of columns that a table is not trained on: one name, or several with commas or semicolons between them.
pub const IGNORED_COLUMNS: &str = "ignore";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Task {
    /// A text from a text.
    Seq2Seq,
    /// A class, or a number, for one text or a pair of texts.
    Classification,
    /// Which picture belongs to which text.
    Contrastive,
    /// A class for a window of a time series.
    TimeSeries,
    /// The next token of a text.
    Language,
    /// A label for each token of a text, such as names and places.
    TokenLabels,
    /// A class, or a number, for a row of numbers and categories.
    Table,
    /// A class for a picture.
    PictureClasses,
    /// The better of two answers to a prompt.
    Preference,
}

/// The unit that the loss of a step averages over, that `tokens` of a `step` event counts, and that a run's speed is given in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum LossUnit {
    #[default]
    Tokens,
    Samples,
}

impl LossUnit {
    pub fn name(self) -> &'static str {
        match self {
            Self::Tokens => "tokens",
            Self::Samples => "samples",
        }
    }
}

impl Task {
    pub const ALL: [Self; 9] = [
        Self::Seq2Seq,
        Self::Classification,
        Self::Contrastive,
        Self::TimeSeries,
        Self::Language,
        Self::TokenLabels,
        Self::Table,
        Self::PictureClasses,
        Self::Preference,
    ];

    pub fn loss_unit(self) -> LossUnit {
        match self {
            Self::Seq2Seq | Self::Language | Self::TokenLabels => LossUnit::Tokens,
            Self::Classification
            | Self::Contrastive
            | Self::TimeSeries
            | Self::Table
            | Self::PictureClasses
            | Self::Preference => LossUnit::Samples,
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::Seq2Seq => "text to text",
            Self::Classification => "classification",
            Self::Contrastive => "pictures and texts",
            Self::TimeSeries => "time series",
            Self::Language => "language modelling",
            Self::TokenLabels => "token labels",
            Self::Table => "table",
            Self::PictureClasses => "picture classes",
            Self::Preference => "preferences",
        }
    }

    /// Roles that columns of its data can have.
    pub fn roles(self) -> &'static [&'static str] {
        match self {
            Self::Seq2Seq => &["source", "target", "messages", "context"],
            Self::Classification => &["text", "text_pair", "label"],
            Self::Contrastive => &["image", "text"],
            Self::TimeSeries => &["label", "time"],
            Self::Language => &["text", "messages", "prompt", "completion", "context"],
            Self::TokenLabels => &["tokens", "tags", "text"],
            Self::Table => &["label", IGNORED_COLUMNS],
            Self::PictureClasses => &["image", "label"],
            Self::Preference => &["prompt", "chosen", "rejected"],
        }
    }

    /// Those that hold texts.
    pub fn text_roles(self) -> impl Iterator<Item = &'static str> {
        self.roles().iter().copied().filter(|role| !["label", "image", "time", "tags", IGNORED_COLUMNS].contains(role))
    }

    /// The endings of files that it can be trained on. A file of tensors holds samples that are ready for the model.
    pub fn endings(self) -> Vec<String> {
        let plain: &[&str] = match self {
            Self::Seq2Seq
            | Self::Classification
            | Self::Contrastive
            | Self::Table
            | Self::PictureClasses
            | Self::Preference => &["jsonl", "csv", "tsv", "json"],
            Self::TimeSeries => &["csv", "tsv", "json"],
            Self::Language => &["txt", "jsonl", "csv", "tsv", "json"],
            Self::TokenLabels => &["conll", "bio", "txt", "jsonl", "csv", "tsv", "json"],
        };
        let own = |ending: &&str| (*ending).to_owned();
        let compressed = plain.iter().flat_map(|ending| ["gz", "zst"].map(|by| format!("{ending}.{by}")));
        let mut endings: Vec<String> = plain.iter().chain(&["parquet", "xlsx"]).map(own).collect();
        endings.extend(compressed);
        // A row of a table means something only with the names of its columns, and of a pair both texts are rendered.
        if !matches!(self, Self::Table | Self::Preference) {
            endings.push("safetensors".to_owned());
        }
        endings
    }

    /// Whether a file of this name is one that it can be trained on.
    pub fn takes(self, name: &str) -> bool {
        let has = |ending: &String| {
            name.strip_suffix(ending.as_str())
                .and_then(|rest| rest.strip_suffix('.'))
                .is_some_and(|stem| !stem.is_empty())
        };
        self.endings().iter().any(has)
    }

    /// The same for a file of a folder: a .json there is more often a tokenizer or a description than data.
    pub fn takes_in_folder(self, name: &str) -> bool {
        let is_json = ["json", "json.gz", "json.zst"].iter().any(|ending| name.ends_with(&format!(".{ending}")));
        self.takes(name) && !is_json
    }

    /// The metrics that its evaluations can have. Those of generated texts need `evaluate.generate`; whether a classifier has
    /// those of classes, of several labels or of a number is decided by its labels.
    pub fn metrics(self) -> &'static [&'static str] {
        match self {
            Self::Seq2Seq => &[Metric::LOSS, "rouge_l", "exact_match", "perplexity"],
            Self::Classification => {
                &[Metric::LOSS, "accuracy", "macro_f1", "f1", "mcc", "mse", "pearson", "r2", "micro_f1", "exact_match"]
            }
            Self::Table => &[Metric::LOSS, "accuracy", "macro_f1", "f1", "mcc", "mse", "pearson", "r2"],
            Self::Contrastive => &[Metric::LOSS, "text_recall_1", "text_recall_5", "image_recall_1", "image_recall_5"],
            Self::TimeSeries | Self::PictureClasses => Metric::OF_CLASSES,
            Self::Language => &[Metric::LOSS, "perplexity"],
            Self::Preference => &[Metric::LOSS, "reward_accuracy", "reward_margin"],
            Self::TokenLabels => {
                &[Metric::LOSS, "entity_f1", "entity_precision", "entity_recall", "token_accuracy", "token_macro_f1"]
            }
        }
    }

    /// Whether its models can predict classes.
    pub fn classifies(self) -> bool {
        matches!(self, Self::Classification | Self::TimeSeries | Self::Table | Self::PictureClasses)
    }

    pub fn reads_text(self) -> bool {
        self.text_roles().next().is_some()
    }

    /// Whether its rows name pictures, which lie beside the file.
    pub fn reads_pictures(self) -> bool {
        self.roles().contains(&"image")
    }

    /// Whether it writes texts that can be looked at.
    pub fn writes_text(self) -> bool {
        matches!(self, Self::Seq2Seq | Self::Language)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endings() {
        let want = [
            "csv",
            "tsv",
            "json",
            "parquet",
            "xlsx",
            "csv.gz",
            "csv.zst",
            "tsv.gz",
            "tsv.zst",
            "json.gz",
            "json.zst",
            "safetensors",
        ];
        assert_eq!(Task::TimeSeries.endings(), want);
        assert!(Task::Language.takes("a.json") && !Task::Language.takes_in_folder("a.json"));
        assert!(Task::Language.takes_in_folder("a.jsonl"));
        assert!(
            Task::Language.takes("a.b.txt.gz") && !Task::TimeSeries.takes("a.txt") && !Task::Language.takes(".txt")
        );
    }
}

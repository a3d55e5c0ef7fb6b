//! The tasks that models are trained for, and the form of data that each needs.

use serde::Serialize;

use super::Metric;

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

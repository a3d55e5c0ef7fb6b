//! What a model is trained to do, and what its data must be like for that.

use super::Metric;

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
}

impl Task {
    pub const ALL: [Self; 5] =
        [Self::Seq2Seq, Self::Classification, Self::Contrastive, Self::TimeSeries, Self::Language];

    pub fn name(self) -> &'static str {
        match self {
            Self::Seq2Seq => "text to text",
            Self::Classification => "classification",
            Self::Contrastive => "pictures and texts",
            Self::TimeSeries => "time series",
            Self::Language => "language modelling",
        }
    }

    /// What its columns can be used for.
    pub fn roles(self) -> &'static [&'static str] {
        match self {
            Self::Seq2Seq => &["source", "target"],
            Self::Classification => &["text", "text_pair", "label"],
            Self::Contrastive => &["image", "text"],
            Self::TimeSeries => &["label", "time"],
            Self::Language => &["text"],
        }
    }

    /// The endings of files that it can be trained on. A file of tensors holds samples that are ready for the model.
    pub fn endings(self) -> &'static [&'static str] {
        match self {
            Self::Seq2Seq | Self::Classification | Self::Contrastive => {
                &["jsonl", "csv", "parquet", "jsonl.gz", "jsonl.zst", "csv.gz", "csv.zst", "safetensors"]
            }
            Self::TimeSeries => &["csv", "parquet", "csv.gz", "csv.zst", "safetensors"],
            Self::Language => &[
                "txt",
                "jsonl",
                "csv",
                "parquet",
                "txt.gz",
                "txt.zst",
                "jsonl.gz",
                "jsonl.zst",
                "csv.gz",
                "csv.zst",
                "safetensors",
            ],
        }
    }

    /// Whether a file of this name is one that it can be trained on.
    pub fn takes(self, name: &str) -> bool {
        let has = |ending: &&str| {
            name.strip_suffix(*ending).and_then(|rest| rest.strip_suffix('.')).is_some_and(|stem| !stem.is_empty())
        };
        self.endings().iter().any(has)
    }

    /// The metrics that its evaluations can have. Those of generated texts need `evaluate.generate`; whether a classifier has
    /// those of classes or those of a number is decided by its labels.
    pub fn metrics(self) -> &'static [&'static str] {
        match self {
            Self::Seq2Seq => &[Metric::LOSS, "rouge_l", "exact_match", "perplexity"],
            Self::Classification => &[Metric::LOSS, "accuracy", "macro_f1", "f1", "mcc", "mse", "pearson"],
            Self::Contrastive => &[Metric::LOSS, "text_recall_1", "text_recall_5", "image_recall_1", "image_recall_5"],
            Self::TimeSeries => Metric::OF_CLASSES,
            Self::Language => &[Metric::LOSS, "perplexity"],
        }
    }

    /// Whether its models can predict classes.
    pub fn classifies(self) -> bool {
        matches!(self, Self::Classification | Self::TimeSeries)
    }

    pub fn reads_text(self) -> bool {
        self != Self::TimeSeries
    }

    /// Whether it writes texts that can be looked at.
    pub fn writes_text(self) -> bool {
        matches!(self, Self::Seq2Seq | Self::Language)
    }
}

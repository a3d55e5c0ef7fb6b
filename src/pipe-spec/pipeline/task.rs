//! The tasks that models are trained for, and the form of data that each needs.

use serde::Serialize;

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
    pub const ALL: [Self; 5] =
        [Self::Seq2Seq, Self::Classification, Self::Contrastive, Self::TimeSeries, Self::Language];

    pub fn loss_unit(self) -> LossUnit {
        match self {
            Self::Seq2Seq | Self::Language => LossUnit::Tokens,
            Self::Classification | Self::Contrastive | Self::TimeSeries => LossUnit::Samples,
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::Seq2Seq => "text to text",
            Self::Classification => "classification",
            Self::Contrastive => "pictures and texts",
            Self::TimeSeries => "time series",
            Self::Language => "language modelling",
        }
    }

    /// Roles that columns of its data can have.
    pub fn roles(self) -> &'static [&'static str] {
        match self {
            Self::Seq2Seq => &["source", "target", "messages"],
            Self::Classification => &["text", "text_pair", "label"],
            Self::Contrastive => &["image", "text"],
            Self::TimeSeries => &["label", "time"],
            Self::Language => &["text"],
        }
    }

    /// Those that hold texts.
    pub fn text_roles(self) -> impl Iterator<Item = &'static str> {
        self.roles().iter().copied().filter(|role| !["label", "image", "time"].contains(role))
    }

    /// The endings of files that it can be trained on. A file of tensors holds samples that are ready for the model.
    pub fn endings(self) -> Vec<String> {
        let plain: &[&str] = match self {
            Self::Seq2Seq | Self::Classification | Self::Contrastive => &["jsonl", "csv", "tsv"],
            Self::TimeSeries => &["csv", "tsv"],
            Self::Language => &["txt", "jsonl", "csv", "tsv"],
        };
        let own = |ending: &&str| (*ending).to_owned();
        let compressed = plain.iter().flat_map(|ending| ["gz", "zst"].map(|by| format!("{ending}.{by}")));
        let mut endings: Vec<String> = plain.iter().chain(&["parquet"]).map(own).collect();
        endings.extend(compressed);
        endings.push("safetensors".to_owned());
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endings() {
        let want = ["csv", "tsv", "parquet", "csv.gz", "csv.zst", "tsv.gz", "tsv.zst", "safetensors"];
        assert_eq!(Task::TimeSeries.endings(), want);
        assert!(
            Task::Language.takes("a.b.txt.gz") && !Task::TimeSeries.takes("a.txt") && !Task::Language.takes(".txt")
        );
    }
}

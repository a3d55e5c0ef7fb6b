//! The metrics of an evaluation: how a pipeline names them, which of them a task has, and whether more or less is better.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How a metric of evaluations is written and read. A metric that is not listed is called by its name, and more of it is
/// better.
struct Known {
    name: &'static str,
    /// As papers write it.
    title: &'static str,
    less_is_better: bool,
    /// The things that it is counted over.
    counted: &'static str,
}

const ROWS: &str = "rows";

const KNOWN: [Known; 17] = [
    Known { less_is_better: true, ..known(Metric::LOSS, "loss", ROWS) },
    Known { less_is_better: true, ..known("perplexity", "perplexity", "tokens") },
    Known { less_is_better: true, ..known("mse", "mean squared error", ROWS) },
    known("accuracy", "accuracy", ROWS),
    known("macro_f1", "macro F1", ROWS),
    known("micro_f1", "micro F1", ROWS),
    known("entity_f1", "entity F1", "texts"),
    known("token_accuracy", "token accuracy", "texts"),
    known("token_macro_f1", "macro F1 of tokens", "texts"),
    known("f1", "F1", ROWS),
    known("mcc", "MCC", ROWS),
    known("pearson", "Pearson correlation", ROWS),
    known("exact_match", "exact match", "texts"),
    known("rouge_l", "ROUGE-L", "texts"),
    known("lr", "learning rate", ROWS),
    known("text_recall_1", "text recall@1", "pictures"),
    known("image_recall_1", "image recall@1", "texts"),
];

const fn known(name: &'static str, title: &'static str, counted: &'static str) -> Known {
    Known { name, title, less_is_better: false, counted }
}

fn find(name: &str) -> Option<&'static Known> {
    let name = name.strip_prefix(Metric::PREFIX).unwrap_or(name);
    KNOWN.iter().find(|known| known.name == name)
}

/// A metric as a pipeline names it: `eval.loss`, or `eval.` and the name of a score of the `eval` event, such as
/// `eval.accuracy`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
#[schemars(inline)]
pub struct Metric(String);

impl Metric {
    const PREFIX: &str = "eval.";

    /// The metric that every evaluation has, whatever the task.
    pub const LOSS: &str = "loss";

    /// The metrics of a model that predicts classes, and of one that predicts a number.
    pub const OF_CLASSES: &[&str] = &[Self::LOSS, "accuracy", "macro_f1", "f1", "mcc"];
    pub const OF_NUMBERS: &[&str] = &[Self::LOSS, "mse", "pearson", "r2"];
    /// The metrics of a model that predicts any number of labels for a text.
    pub const OF_SEVERAL: &[&str] = &[Self::LOSS, "micro_f1", "macro_f1", "exact_match"];

    /// The metrics of labels of tokens that name entities, and of those that are numbers.
    pub const OF_ENTITIES: &[&str] = &[Self::LOSS, "entity_f1", "entity_precision", "entity_recall", "token_accuracy"];
    pub const OF_NUMBERED_TAGS: &[&str] = &[Self::LOSS, "token_accuracy", "token_macro_f1"];

    /// The metrics of texts that the model generates: `evaluate.generate` must be set.
    pub const OF_GENERATED_TEXTS: &[&str] = &["exact_match", "rouge_l"];

    /// The metric with this name in the `eval` event.
    pub fn named(name: &str) -> Self {
        Self(format!("{}{name}", Self::PREFIX))
    }

    pub fn loss() -> Self {
        Self::named(Self::LOSS)
    }

    /// The name in the `eval` event; nothing where it does not begin with `eval.`.
    pub fn name(&self) -> Option<&str> {
        self.0.strip_prefix(Self::PREFIX)
    }

    /// Whether it is one of `names`; otherwise the message that lists them.
    pub fn check(&self, names: &[&str]) -> Result<(), String> {
        if self.name().is_some_and(|name| names.contains(&name)) {
            return Ok(());
        }
        let allowed: Vec<String> = names.iter().map(|name| Self::named(name).0).collect();
        let allowed: Vec<&str> = allowed.iter().map(String::as_str).collect();
        let wanted = if self.0.starts_with(Self::PREFIX) { self.clone() } else { Self::named(&self.0) };
        let nearest = crate::yaml::nearest(&wanted.0, &allowed);
        Err(format!("found {:?}{nearest}; allowed: {}", self.0, allowed.join(", ")))
    }

    /// Whether less is better of the metric `name`, with or without `eval.`.
    pub fn less_is_better(name: &str) -> bool {
        find(name).is_some_and(|known| known.less_is_better)
    }

    /// The metric `name`, with or without `eval.`, as papers write it within a sentence.
    pub fn title(name: &str) -> String {
        let words = || name.strip_prefix(Self::PREFIX).unwrap_or(name).replace("recall_", "recall@").replace('_', " ");
        find(name).map_or_else(words, |known| known.title.to_owned())
    }

    /// The things that the metric `name` is counted over, such as rows.
    pub fn counted(name: &str) -> &'static str {
        find(name).map_or(ROWS, |known| known.counted)
    }

    /// Whether `value` is strictly better than `best`, or than nothing. What is not a number never is.
    pub fn is_better(&self, value: f64, best: Option<f64>) -> bool {
        match best {
            None => !value.is_nan(),
            Some(best) if Self::less_is_better(&self.0) => value < best,
            Some(best) => value > best,
        }
    }
}

impl fmt::Display for Metric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_or_less_is_better() {
        let better = |name: &str, value, best| Metric::named(name).is_better(value, best);
        for name in ["loss", "perplexity", "mse"] {
            assert!(better(name, 1.0, Some(2.0)) && !better(name, 2.0, Some(1.0)) && !better(name, 1.0, Some(1.0)));
        }
        for name in ["accuracy", "macro_f1", "mcc", "pearson", "r2", "rouge_l", "text_recall_1"] {
            assert!(better(name, 2.0, Some(1.0)) && !better(name, 1.0, Some(2.0)) && !better(name, 1.0, Some(1.0)));
        }
        assert!(better("loss", 1.0, None) && !better("loss", f64::NAN, None) && !better("loss", f64::NAN, Some(1.0)));
    }

    #[test]
    fn names_for_people() {
        for (name, title, counted) in [
            ("accuracy", "accuracy", "rows"),
            ("eval.mse", "mean squared error", "rows"),
            ("rouge_l", "ROUGE-L", "texts"),
            ("text_recall_5", "text recall@5", "rows"),
            ("my_score", "my score", "rows"),
        ] {
            assert_eq!((Metric::title(name).as_str(), Metric::counted(name)), (title, counted));
        }
    }

    #[test]
    fn an_unknown_metric_lists_the_known_ones() {
        let check = |text: &str| Metric(text.to_owned()).check(&["loss", "accuracy"]);
        assert_eq!(check("eval.accuracy"), Ok(()));
        assert_eq!(
            check("accuracy").unwrap_err(),
            "found \"accuracy\"; did you mean `eval.accuracy`?; allowed: eval.loss, eval.accuracy"
        );
        assert!(check("eval.bleu").unwrap_err().ends_with("allowed: eval.loss, eval.accuracy"));
    }
}

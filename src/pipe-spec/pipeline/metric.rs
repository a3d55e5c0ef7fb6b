//! The metrics of an evaluation: how a pipeline names them, which of them a task has, and whether more or less is better.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The metrics where less is better. Of every other more is better.
const LESS_IS_BETTER: [&str; 3] = [Metric::LOSS, "perplexity", "mse"];

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
    pub const OF_NUMBERS: &[&str] = &[Self::LOSS, "mse", "pearson"];

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
        LESS_IS_BETTER.contains(&name.strip_prefix(Self::PREFIX).unwrap_or(name))
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
        for name in ["accuracy", "macro_f1", "mcc", "pearson", "rouge_l", "text_recall_1"] {
            assert!(better(name, 2.0, Some(1.0)) && !better(name, 1.0, Some(2.0)) && !better(name, 1.0, Some(1.0)));
        }
        assert!(better("loss", 1.0, None) && !better("loss", f64::NAN, None) && !better("loss", f64::NAN, Some(1.0)));
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

//! `evaluation.json`: what an evaluation has shown beside its scores. Too large for an event, so the trainer writes it to a
//! file in the folder of its attempt, which the report reads. Every part of it is bounded.

use serde::{Deserialize, Serialize};

/// The findings of one evaluation. Parts that a task does not have are absent.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct EvaluationDetails {
    /// The step after which the model was evaluated.
    pub step: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub classes: Option<ClassDetails>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub retrieval: Vec<RetrievalExample>,
    /// The wrong predictions of a classifier, the surest first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub mistakes: Vec<Mistake>,
}

impl EvaluationDetails {
    /// Whether it says nothing but its step.
    pub fn is_empty(&self) -> bool {
        self.classes.is_none() && self.retrieval.is_empty() && self.mistakes.is_empty()
    }
}

/// How well a classifier tells the classes apart.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ClassDetails {
    /// Classes of the model, of which `scores` may have fewer.
    pub count: u64,
    /// By the number of the class; where there are more than `MOST_SCORES` classes, those with the most rows.
    pub scores: Vec<ClassScores>,
    /// How often a class was taken for a class, where that happened at all. Where there are more than `MOST_CONFUSED`
    /// classes, between those with the most rows.
    pub confusion: Vec<ConfusionCell>,
    pub calibration: Calibration,
}

impl ClassDetails {
    pub const MOST_SCORES: usize = 1000;
    pub const MOST_CONFUSED: usize = 100;

    /// The `most` classes with the most rows, in the order of their numbers.
    pub fn largest(&self, most: usize) -> Vec<&ClassScores> {
        let mut largest: Vec<&ClassScores> = self.scores.iter().collect();
        largest.sort_by_key(|class| (std::cmp::Reverse(class.rows), class.class));
        largest.truncate(most);
        largest.sort_by_key(|class| class.class);
        largest
    }
}

/// One class. A figure is absent where there is nothing to compute it from.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ClassScores {
    /// Its number.
    pub class: u64,
    pub name: String,
    /// Rows of the evaluation data that have this class.
    pub rows: u64,
    /// Rows for which the model predicted it.
    pub predicted: u64,
    /// The share of `predicted` that is right.
    pub precision: Option<f64>,
    /// The share of `rows` that was found.
    pub recall: Option<f64>,
    /// The harmonic mean of both.
    pub f1: Option<f64>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ConfusionCell {
    /// The class of the rows.
    pub class: u64,
    pub predicted: u64,
    pub rows: u64,
}

/// How sure the model was, against how often it was right.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Calibration {
    /// The expected calibration error: the mean distance between confidence and accuracy of the bins, weighted by their rows.
    pub error: f64,
    /// Bins of the same width, from confidence 0 to 1.
    pub bins: Vec<CalibrationBin>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct CalibrationBin {
    pub rows: u64,
    /// The mean probability of the predicted classes; absent without rows.
    pub confidence: Option<f64>,
    /// The share of rows whose class was right.
    pub accuracy: Option<f64>,
}

/// A picture of the evaluation data, and the texts that the model finds most similar to it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct RetrievalExample {
    /// A small PNG of what the model sees, in base64.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub picture: String,
    /// The text that belongs to the picture.
    pub caption: String,
    /// The rank of that text among all, by similarity, counted from 1.
    pub rank: u64,
    /// Its similarity: the cosine of the two embeddings.
    pub score: f64,
    /// The most similar texts, the best first.
    pub best: Vec<RetrievedCaption>,
}

impl RetrievalExample {
    pub const MOST: usize = 8;
    pub const MOST_CAPTIONS: usize = 3;
    /// Pixels of the longer side of a picture.
    pub const PICTURE_EDGE: u32 = 96;
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct RetrievedCaption {
    pub caption: String,
    pub score: f64,
    /// Whether it is the text that belongs to the picture, or has the same words.
    pub right: bool,
}

/// A row of the evaluation data for which a classifier was sure of a wrong class.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Mistake {
    /// The first and the last row of the data that the sample is made of, counted from 1.
    pub rows: [u64; 2],
    /// The beginning of its text.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub text: String,
    /// A small PNG of what the model sees, in base64.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub picture: String,
    /// The name of its class.
    pub class: String,
    pub predicted: String,
    /// The probability that the model gave to `predicted`.
    pub confidence: f64,
}

impl Mistake {
    pub const MOST: usize = 8;
    /// Characters of a text.
    pub const TEXT: usize = 300;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_other_versions_write_is_read() {
        let read = |text: &str| serde_json::from_str::<EvaluationDetails>(text);
        assert_eq!(read("{}").unwrap(), EvaluationDetails::default());
        let text = r#"{"step": 3, "new": 1, "classes": {"scores": [{"class": 1, "f1": null, "newer": []}]}}"#;
        let details = read(text).unwrap();
        assert_eq!((details.step, details.classes.unwrap().scores[0].class), (3, 1));
        assert!(read(r#"{"step": "three"}"#).is_err());
    }

    #[test]
    fn the_largest_classes() {
        let class = |class, rows| ClassScores { class, rows, ..ClassScores::default() };
        let details = ClassDetails {
            scores: vec![class(0, 5), class(1, 9), class(2, 5), class(3, 0)],
            ..ClassDetails::default()
        };
        let numbers = |most| details.largest(most).iter().map(|class| class.class).collect::<Vec<_>>();
        assert_eq!(numbers(2), [0, 1]);
        assert_eq!(numbers(9), [0, 1, 2, 3]);
    }
}

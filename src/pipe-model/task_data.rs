//! The data that a model needs: one variant for each task, and the labels of a classifier.

use pipe_spec::pipeline::Task;
use serde_json::{Map, Value, json};

use crate::config_keys::{ConfigError, ConfigKeys};

#[derive(Clone, Debug, PartialEq)]
pub enum TaskData {
    Seq2Seq {
        vocab_size: u64,
        pad_token_id: i64,
        /// Every text must end with this token.
        eos_token_id: i64,
    },
    /// One text or two, and a class or a number.
    Classification {
        vocab_size: u64,
        pad_token_id: i64,
        /// Tokens of a text at most.
        max_length: u32,
        /// Whether the model takes token types: which of two texts a token belongs to.
        token_types: bool,
        /// Absent when the data decides: the model's head is new.
        labels: Option<Labels>,
    },
    /// A picture and a text.
    Contrastive {
        vocab_size: u64,
        pad_token_id: i64,
        /// Every text must have this token, if the model looks for it.
        eos_token_id: Option<i64>,
        /// Tokens of a text at most.
        max_length: u32,
        num_channels: i64,
        /// Height and width of a picture.
        image_size: i64,
    },
    /// A window of a time series and a class.
    TimeSeries {
        features: i64,
        sequence_length: i64,
        classes: i64,
        /// The class names of a trained model; absent when the data decides.
        names: Option<Vec<String>>,
        /// How a trained model scales its features; absent when the data decides.
        scale: Option<Scale>,
    },
    /// A row of tokens.
    Language {
        vocab_size: u64,
        /// Tokens of a row at most.
        max_length: u32,
    },
}

impl TaskData {
    pub fn task(&self) -> Task {
        match self {
            Self::Seq2Seq { .. } => Task::Seq2Seq,
            Self::Classification { .. } => Task::Classification,
            Self::Contrastive { .. } => Task::Contrastive,
            Self::TimeSeries { .. } => Task::TimeSeries,
            Self::Language { .. } => Task::Language,
        }
    }
}

/// The mean and standard deviation of features.
#[derive(Clone, Debug, PartialEq)]
pub struct Scale {
    /// Their names, in order.
    pub names: Vec<String>,
    pub mean: Vec<f64>,
    pub std: Vec<f64>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Labels {
    /// Classes by number, each with its name.
    Classes(Vec<String>),
    /// One number is predicted.
    Number,
}

impl Default for Labels {
    /// As in transformers.
    fn default() -> Self {
        Self::numbered(2)
    }
}

impl Labels {
    /// Classes with the names that transformers gives to those that have none; one alone is a number.
    pub fn numbered(count: usize) -> Self {
        match count {
            1 => Self::Number,
            _ => Self::Classes((0..count).map(|number| format!("LABEL_{number}")).collect()),
        }
    }

    /// Reads `num_labels`, `id2label` and `problem_type` of a config.json. Absent where none of them is there.
    pub fn read(config: &Map<String, Value>) -> Result<Option<Self>, ConfigError> {
        let keys = ConfigKeys(config);
        let named = names(config)?;
        // Where the two differ the number decides, as in transformers.
        let labels = match (keys.size("num_labels")?, named) {
            (Some(count), Some(names)) if names.len() as i64 == count => Some(Self::of(names)),
            (Some(count), _) => Some(Self::numbered(count as usize)),
            (None, Some(names)) => Some(Self::of(names)),
            (None, None) => None,
        };
        let Some(problem) = keys.text("problem_type")? else { return Ok(labels) };
        let fits = match labels.clone().unwrap_or_default() {
            Self::Number => "regression",
            Self::Classes(_) => "single_label_classification",
        };
        if problem != fits {
            return Err(fail("problem_type", format!("found {problem:?}; with this number of labels: {fits:?}")));
        }
        Ok(labels)
    }

    /// How many logits the head has.
    pub fn count(&self) -> i64 {
        match self {
            Self::Classes(names) => names.len() as i64,
            Self::Number => 1,
        }
    }

    /// Writes them into a config.json.
    pub fn export(&self, config: &mut Map<String, Value>) {
        let one = ["LABEL_0".to_owned()];
        let (problem, names) = match self {
            Self::Classes(names) => ("single_label_classification", names.as_slice()),
            Self::Number => ("regression", one.as_slice()),
        };
        let id2label = names.iter().enumerate().map(|(number, name)| (number.to_string(), json!(name))).collect();
        let label2id = names.iter().enumerate().map(|(number, name)| (name.clone(), json!(number))).collect();
        config.insert("id2label".to_owned(), Value::Object(id2label));
        config.insert("label2id".to_owned(), Value::Object(label2id));
        config.insert("problem_type".to_owned(), json!(problem));
        config.remove("num_labels");
    }

    fn of(names: Vec<String>) -> Self {
        if names.len() == 1 { Self::Number } else { Self::Classes(names) }
    }
}

/// `id2label`: a name for every number from 0.
fn names(config: &Map<String, Value>) -> Result<Option<Vec<String>>, ConfigError> {
    let entries = match config.get("id2label") {
        None | Some(Value::Null) => return Ok(None),
        Some(Value::Object(entries)) if !entries.is_empty() => entries,
        Some(other) => return Err(fail("id2label", format!("found {other}; allowed: a name for every class"))),
    };
    let name = |number: usize| match entries.get(&number.to_string()) {
        Some(Value::String(name)) => Ok(name.clone()),
        Some(other) => Err(fail("id2label", format!("class {number} is {other}; allowed: a text"))),
        None => Err(fail("id2label", format!("{} classes, and none has the number {number}", entries.len()))),
    };
    (0..entries.len()).map(name).collect::<Result<_, _>>().map(Some)
}

fn fail(key: &str, message: String) -> ConfigError {
    ConfigError { key: key.to_owned(), message }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(config: Value) -> Result<Option<Labels>, ConfigError> {
        Labels::read(config.as_object().unwrap())
    }

    #[test]
    fn names_and_numbers_of_labels() {
        let classes = |names: &[&str]| Some(Labels::Classes(names.iter().map(|name| (*name).to_owned()).collect()));
        let cases = [
            (json!({}), None),
            (json!({"num_labels": 3}), classes(&["LABEL_0", "LABEL_1", "LABEL_2"])),
            (json!({"num_labels": 1}), Some(Labels::Number)),
            (json!({"id2label": {"1": "b", "0": "a"}}), classes(&["a", "b"])),
            (json!({"id2label": {"0": "score"}}), Some(Labels::Number)),
            (json!({"id2label": {"0": "a", "1": "b"}, "num_labels": 2}), classes(&["a", "b"])),
            (json!({"id2label": {"0": "a", "1": "b"}, "num_labels": 1}), Some(Labels::Number)),
            (json!({"id2label": null, "problem_type": null}), None),
        ];
        for (config, want) in cases {
            let labels = read(config.clone()).unwrap();
            assert_eq!(labels, want, "{config}");
            // An export is read back; the names of numbers do not matter.
            let Some(labels) = labels else { continue };
            let mut exported = config.as_object().unwrap().clone();
            labels.export(&mut exported);
            assert_eq!(Labels::read(&exported).unwrap(), Some(labels), "{exported:?}");
        }
    }

    #[test]
    fn what_makes_no_sense_is_named() {
        let cases = [
            (json!({"id2label": {"0": "a", "2": "b"}}), "id2label: 2 classes, and none has the number 1"),
            (json!({"id2label": {"0": 4}}), "id2label: class 0 is 4; allowed: a text"),
            (json!({"id2label": ["a"]}), "id2label: found [\"a\"]"),
            (json!({"num_labels": 0}), "num_labels: found 0"),
            (json!({"problem_type": "multi_label_classification"}), "problem_type: found \"multi_label"),
            (json!({"num_labels": 1, "problem_type": "single_label_classification"}), ": \"regression\""),
        ];
        for (config, want) in cases {
            let error = read(config).unwrap_err().to_string();
            assert!(error.contains(want), "{error}");
        }
    }
}

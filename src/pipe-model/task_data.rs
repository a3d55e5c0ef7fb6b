//! The data that a model needs: one variant for each task, and the labels of a classifier.

use pipe_spec::pipeline::{ModelTask, Task};
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
        /// Whether texts follow one another in rows of full length. Otherwise each has rows of its own.
        joins_texts: bool,
    },
    /// Two answers to a prompt, the better one first.
    Preference {
        vocab_size: u64,
        /// Tokens of a prompt with an answer at most.
        max_length: u32,
    },
    /// The words of a text, and a label for each.
    TokenLabels {
        vocab_size: u64,
        pad_token_id: i64,
        /// Tokens of a text at most.
        max_length: u32,
        token_types: bool,
        /// The labels by number; absent when the data decides.
        names: Option<Vec<String>>,
    },
    /// A row of numbers and categories, and a class or a number.
    Table {
        /// The columns of a trained model; absent when the data decides.
        columns: Option<TableColumns>,
        /// The labels of the config; absent when the data decides.
        labels: Option<Labels>,
    },
    /// A picture and a class.
    PictureClasses {
        num_channels: i64,
        /// Height and width of a picture. Absent where the model takes any: then preprocessor_config.json decides.
        image_size: Option<i64>,
        /// The classes of the trained head; absent when the data decides.
        labels: Option<Labels>,
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
            Self::Preference { .. } => Task::Preference,
            Self::TokenLabels { .. } => Task::TokenLabels,
            Self::Table { .. } => Task::Table,
            Self::PictureClasses { .. } => Task::PictureClasses,
        }
    }

    /// For a language model that learns which of two answers is the better one.
    pub fn of_pairs(self) -> Self {
        match self {
            Self::Language { vocab_size, max_length, .. } => Self::Preference { vocab_size, max_length },
            other => other,
        }
    }

    /// The texts of a classifier with a label for each token instead, where `labels_tokens`.
    pub(crate) fn per_token(self, labels_tokens: bool) -> Self {
        match self {
            Self::Classification { vocab_size, pad_token_id, max_length, token_types, labels } if labels_tokens => {
                let names = labels.and_then(|labels| match labels {
                    Labels::Classes(names) => Some(names),
                    Labels::Number | Labels::Several(_) => None,
                });
                Self::TokenLabels { vocab_size, pad_token_id, max_length, token_types, names }
            }
            other => other,
        }
    }
}

/// How the classes of transformers are called whose head labels tokens, and those whose head labels texts.
pub(crate) const TOKEN_CLASS: &str = "ForTokenClassification";
pub(crate) const TEXT_CLASS: &str = "ForSequenceClassification";
const CLASSES: &str = "architectures";

/// The task that `architectures` of a config.json names for an encoder of texts; nothing where it names another or none.
pub fn named_task(config: &Map<String, Value>) -> Option<ModelTask> {
    let class = config.get(CLASSES)?.as_array()?.first()?.as_str()?;
    match class {
        _ if class.ends_with(TOKEN_CLASS) => Some(ModelTask::TokenClassification),
        _ if class.ends_with(TEXT_CLASS) => Some(ModelTask::TextClassification),
        _ => None,
    }
}

/// The config of a model for `task`, which the pipeline may name beside it.
pub fn with_task(mut config: Map<String, Value>, task: Task) -> Map<String, Value> {
    if task == Task::TokenLabels && named_task(&config) != Some(ModelTask::TokenClassification) {
        config.insert(CLASSES.to_owned(), json!([TOKEN_CLASS]));
    }
    config
}

pub(crate) fn labels_tokens(config: &Map<String, Value>) -> bool {
    named_task(config) == Some(ModelTask::TokenClassification)
}

/// The mean and standard deviation of features.
#[derive(Clone, Debug, PartialEq)]
pub struct Scale {
    /// Their names, in order.
    pub names: Vec<String>,
    pub mean: Vec<f64>,
    pub std: Vec<f64>,
}

/// The columns of a table as a model was trained on them: `features`, `label_mean` and `label_std` of config.json.
#[derive(Clone, Debug, PartialEq)]
pub struct TableColumns {
    pub features: Vec<Feature>,
    pub unit: LabelUnit,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Feature {
    /// The column.
    pub name: String,
    pub kind: FeatureKind,
}

#[derive(Clone, Debug, PartialEq)]
pub enum FeatureKind {
    Number {
        mean: f64,
        std: f64,
        /// Whether rows without a value were trained on: then a second input says which these are.
        missing: bool,
    },
    /// Values by number from 1. Number 0 stands for no value, and for values that are not listed.
    Category { values: Vec<String> },
}

/// The unit of a number that is predicted: a model predicts it with mean 0 and deviation 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LabelUnit {
    pub mean: f64,
    pub std: f64,
}

impl Default for LabelUnit {
    fn default() -> Self {
        Self { mean: 0.0, std: 1.0 }
    }
}

impl LabelUnit {
    /// A prediction of the model in the unit of the data.
    pub fn restore(self, standardised: f64) -> f64 {
        standardised * self.std + self.mean
    }
}

impl TableColumns {
    /// Inputs that are numbers: the standardised values, and for some whether they are missing.
    pub fn numbers(&self) -> usize {
        let inputs = |feature: &Feature| match feature.kind {
            FeatureKind::Number { missing, .. } => 1 + usize::from(missing),
            FeatureKind::Category { .. } => 0,
        };
        self.features.iter().map(inputs).sum()
    }

    /// The categories of each column that has some, number 0 included.
    pub fn categories(&self) -> Vec<i64> {
        let count = |feature: &Feature| match &feature.kind {
            FeatureKind::Number { .. } => None,
            FeatureKind::Category { values } => Some(values.len() as i64 + 1),
        };
        self.features.iter().filter_map(count).collect()
    }

    /// The keys of config.json.
    pub fn export(&self) -> Map<String, Value> {
        let feature = |Feature { name, kind }: &Feature| match kind {
            FeatureKind::Number { mean, std, missing } => {
                json!({ "name": name, "kind": "number", "mean": mean, "std": std, "missing": missing })
            }
            FeatureKind::Category { values } => json!({ "name": name, "kind": "category", "values": values }),
        };
        let features = self.features.iter().map(feature).collect();
        Map::from_iter([
            ("features".to_owned(), Value::Array(features)),
            ("label_mean".to_owned(), json!(self.unit.mean)),
            ("label_std".to_owned(), json!(self.unit.std)),
        ])
    }

    /// Absent where the config has none.
    pub(crate) fn read(keys: &ConfigKeys<'_>) -> Result<Option<Self>, ConfigError> {
        let allowed = "a list of features with name, kind, and mean and std or values";
        let Some(features) = keys.list("features", allowed, read_feature)? else { return Ok(None) };
        let unit = LabelUnit {
            mean: keys.number("label_mean")?.unwrap_or(0.0),
            std: keys.number("label_std")?.unwrap_or(1.0),
        };
        let stds = features.iter().filter_map(|feature| match feature.kind {
            FeatureKind::Number { std, .. } => Some(("features", std)),
            FeatureKind::Category { .. } => None,
        });
        if let Some((key, std)) = stds.chain([("label_std", unit.std)]).find(|(_, std)| *std <= 0.0) {
            return Err(fail(key, format!("found a standard deviation of {std}; allowed: numbers above 0")));
        }
        Ok(Some(Self { features, unit }))
    }
}

fn read_feature(value: &Value) -> Option<Feature> {
    let kind = match value.get("kind")?.as_str()? {
        "number" => FeatureKind::Number {
            mean: value.get("mean")?.as_f64()?,
            std: value.get("std")?.as_f64()?,
            missing: value.get("missing")?.as_bool()?,
        },
        "category" => {
            let values = value.get("values")?.as_array()?.iter();
            FeatureKind::Category {
                values: values.map(|value| value.as_str().map(str::to_owned)).collect::<Option<_>>()?,
            }
        }
        _ => return None,
    };
    Some(Feature { name: value.get("name")?.as_str()?.to_owned(), kind })
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Labels {
    /// Classes by number, each with its name.
    Classes(Vec<String>),
    /// One number is predicted.
    Number,
    /// Any number of these apply.
    Several(Vec<String>),
}

const SEVERAL: &str = "multi_label_classification";

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
            _ => Self::Classes(numbered_names(count)),
        }
    }

    /// Reads `num_labels`, `id2label` and `problem_type` of a config.json. Absent where none of them is there.
    pub fn read(config: &Map<String, Value>) -> Result<Option<Self>, ConfigError> {
        let keys = ConfigKeys(config);
        let named = names(config)?;
        let count = keys.size("num_labels")?;
        let problem = keys.text("problem_type")?;
        if problem == Some(SEVERAL) {
            let fits = |names: &Vec<String>| count.is_none_or(|count| names.len() as i64 == count);
            let numbered = || count.map(|count| numbered_names(count as usize));
            return Ok(named.filter(fits).or_else(numbered).map(Self::Several));
        }
        // Where the two differ the number decides, as in transformers.
        let labels = match (count, named) {
            (Some(count), Some(names)) if names.len() as i64 == count => Some(Self::of(names)),
            (Some(count), _) => Some(Self::numbered(count as usize)),
            (None, Some(names)) => Some(Self::of(names)),
            (None, None) => None,
        };
        let Some(problem) = problem else { return Ok(labels) };
        let fits = match labels.clone().unwrap_or_default() {
            Self::Number => "regression",
            Self::Classes(_) | Self::Several(_) => "single_label_classification",
        };
        if problem != fits {
            return Err(fail("problem_type", format!("found {problem:?}; with this number of labels: {fits:?}")));
        }
        Ok(labels)
    }

    /// Whether these are classes without names of their own.
    pub fn are_unnamed(&self) -> bool {
        matches!(self, Self::Classes(_)) && *self == Self::numbered(self.count() as usize)
    }

    /// How many logits the head has.
    pub fn count(&self) -> i64 {
        match self {
            Self::Classes(names) | Self::Several(names) => names.len() as i64,
            Self::Number => 1,
        }
    }

    /// Writes them into a config.json.
    pub fn export(&self, config: &mut Map<String, Value>) {
        let one = ["LABEL_0".to_owned()];
        let (problem, names) = match self {
            Self::Classes(names) => ("single_label_classification", names.as_slice()),
            Self::Number => ("regression", one.as_slice()),
            Self::Several(names) => (SEVERAL, names.as_slice()),
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

/// The names that transformers gives to labels that have none.
fn numbered_names(count: usize) -> Vec<String> {
    (0..count).map(|number| format!("LABEL_{number}")).collect()
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
        let several = |names: &[&str]| Some(Labels::Several(names.iter().map(|name| (*name).to_owned()).collect()));
        let cases = [
            (json!({}), None),
            (json!({"num_labels": 3}), classes(&["LABEL_0", "LABEL_1", "LABEL_2"])),
            (json!({"num_labels": 1}), Some(Labels::Number)),
            (json!({"id2label": {"1": "b", "0": "a"}}), classes(&["a", "b"])),
            (json!({"id2label": {"0": "score"}}), Some(Labels::Number)),
            (json!({"id2label": {"0": "a", "1": "b"}, "num_labels": 2}), classes(&["a", "b"])),
            (json!({"id2label": {"0": "a", "1": "b"}, "num_labels": 1}), Some(Labels::Number)),
            (json!({"id2label": null, "problem_type": null}), None),
            (json!({"problem_type": "multi_label_classification"}), None),
            (json!({"problem_type": "multi_label_classification", "num_labels": 1}), several(&["LABEL_0"])),
            (
                json!({"problem_type": "multi_label_classification", "id2label": {"0": "a", "1": "b"}}),
                several(&["a", "b"]),
            ),
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
    fn the_class_of_transformers_names_the_task() {
        let of = |config: Value| named_task(config.as_object().unwrap());
        for (class, want) in [
            ("XLMRobertaForTokenClassification", Some(ModelTask::TokenClassification)),
            ("BertForSequenceClassification", Some(ModelTask::TextClassification)),
            ("BertForMaskedLM", None),
        ] {
            assert_eq!(of(json!({"architectures": [class]})), want);
        }
        let config = json!({"architectures": ["BertModel"]}).as_object().unwrap().clone();
        assert!(labels_tokens(&with_task(config.clone(), Task::TokenLabels)));
        assert_eq!(with_task(config.clone(), Task::Classification), config);
    }

    #[test]
    fn what_makes_no_sense_is_named() {
        let cases = [
            (json!({"id2label": {"0": "a", "2": "b"}}), "id2label: 2 classes, and none has the number 1"),
            (json!({"id2label": {"0": 4}}), "id2label: class 0 is 4; allowed: a text"),
            (json!({"id2label": ["a"]}), "id2label: found [\"a\"]"),
            (json!({"num_labels": 0}), "num_labels: found 0"),
            (json!({"problem_type": "several"}), "problem_type: found \"several"),
            (json!({"num_labels": 1, "problem_type": "single_label_classification"}), ": \"regression\""),
        ];
        for (config, want) in cases {
            let error = read(config).unwrap_err().to_string();
            assert!(error.contains(want), "{error}");
        }
    }
}

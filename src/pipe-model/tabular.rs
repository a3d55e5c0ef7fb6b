//! A table: rows of numbers and categories, with a class or a number to predict. Numbers are standardised, categories are embedded, and
//! residual blocks with layer norm follow (the ResNet of Gorishniy et al. 2021, https://arxiv.org/abs/2106.11959, whose batch norm would
//! make a training depend on its batch). The data decides the features; config.json keeps them.

use serde_json::{Map, Value, json};

use crate::adaptable::Adaptable;
use crate::architecture::{
    Architecture, ModelConfig, ModelSize, Starter, StarterSizes, StarterTraining, joined, number_of_labels,
};
use crate::config_keys::{ConfigError, ConfigKeys, extended};
use crate::estimate::{Stage, StepMemory, Work};
use crate::parameter::{Init, Listed, Parameter};
use crate::task_data::{Labels, TableColumns, TaskData};

#[derive(Clone, Debug, PartialEq)]
pub struct TabularConfig {
    pub hidden_size: i64,
    pub num_layers: i64,
    /// Numbers that a category becomes.
    pub embedding_size: i64,
    pub dropout: f64,
    /// Absent until the data has decided them.
    pub columns: Option<TableColumns>,
    pub labels: Option<Labels>,
    /// Everything that was given, kept for the export.
    given: Map<String, Value>,
}

impl TabularConfig {
    pub fn read(given: &Map<String, Value>) -> Result<Self, ConfigError> {
        let keys = ConfigKeys(given);
        Ok(Self {
            hidden_size: keys.size("hidden_size")?.unwrap_or(256),
            num_layers: keys.size("num_layers")?.unwrap_or(2),
            embedding_size: keys.size("embedding_size")?.unwrap_or(16),
            dropout: keys.dropout("dropout")?.unwrap_or(0.1),
            columns: TableColumns::read(&keys)?,
            labels: Labels::read(given)?,
            given: given.clone(),
        })
    }

    /// config.json: what was given, with every default filled in.
    pub fn export(&self) -> Map<String, Value> {
        let filled = json!({
            "model_type": "tabular",
            "hidden_size": self.hidden_size,
            "num_layers": self.num_layers,
            "embedding_size": self.embedding_size,
            "dropout": self.dropout,
        });
        let mut config = extended(&self.given, filled);
        config.extend(self.columns.as_ref().map(TableColumns::export).unwrap_or_default());
        if let Some(labels) = &self.labels {
            labels.export(&mut config);
        }
        config
    }

    /// Inputs of the first layer.
    fn inputs(&self) -> i64 {
        let inputs =
            |columns: &TableColumns| columns.numbers() as i64 + columns.categories().len() as i64 * self.embedding_size;
        self.columns.as_ref().map_or(0, inputs)
    }
}

pub const ARCHITECTURE: Architecture = Architecture {
    read: |config| Ok(Box::new(TabularConfig::read(config)?)),
    starter: Starter {
        fine_tuning: StarterTraining { lr: 3.0e-4, epochs: 5, steps: 100 },
        scratch: StarterTraining { lr: 1.0e-3, epochs: 10, steps: 400 },
        base_lr: 3.0e-4,
        effective_batch: 256,
        schedule: "cosine",
        hub: None,
        vocabulary: 0,
        config: |StarterSizes { model, classes, .. }| {
            let (hidden, layers) = match model {
                ModelSize::Small => (128, 2),
                ModelSize::Medium => (256, 2),
                ModelSize::Base => (512, 3),
            };
            let sizes = json!({ "hidden_size": hidden, "num_layers": layers, "embedding_size": 16, "dropout": 0.1 });
            joined([sizes, number_of_labels(*classes)])
        },
    },
    tokenization: None,
    in_transformers: false,
    generation_keys: &[],
    adapts: Adaptable::NONE,
};

impl ModelConfig for TabularConfig {
    fn parameters(&self) -> Vec<Parameter> {
        parameters(self)
    }

    fn task_data(&self, _: Option<Labels>) -> TaskData {
        TaskData::Table { columns: self.columns.clone(), labels: self.labels.clone() }
    }

    fn drops(&self) -> bool {
        self.dropout > 0.0
    }

    fn step_memory(&self) -> Option<&dyn StepMemory> {
        Some(self)
    }
}

/// The bytes that products take beside their results, as measured: those of layers that are at least so wide, and of others.
const WIDE: u128 = 512;
const PRODUCTS: u128 = 64 << 20;
const NARROW_PRODUCTS: u128 = 2 << 20;

impl StepMemory for TabularConfig {
    /// Without the inputs as long as the data has not decided them.
    fn stages(&self, work: &Work) -> Vec<Stage> {
        let (hidden, inputs) = (self.hidden_size as u128, self.inputs() as u128);
        let state = work.batch * hidden * work.compute();
        // A gradient of the norm and what it took are in fp32 for a moment.
        let widened = if work.compute() < 4 { 2 * state } else { 0 };
        let products = if hidden >= WIDE { PRODUCTS } else { NARROW_PRODUCTS };
        let stage = |name: String, kept: u128, inside: u128, weights: u128| Stage {
            name,
            kept,
            forward: kept + inside + work.narrow_copy(weights),
            backward: kept + 2 * inside + work.narrow_copy(weights) + widened + products,
            gradients: weights * work.weight(),
            logits: 0,
        };
        let rows = work.batch * inputs * (4 + work.compute());
        let mut stages = vec![stage("input".to_owned(), rows, state, hidden * (inputs + 1))];
        let weights = 4 * hidden * hidden + 5 * hidden;
        // A block keeps its hidden numbers, those that are normed, and the input of relu, twice as wide.
        let block = |number: i64| stage(format!("block {number}"), 4 * state, 3 * state, weights);
        stages.extend((0..self.num_layers).map(block));
        let labels = self.labels.as_ref().map_or(2, Labels::count) as u128;
        stages.push(stage("head".to_owned(), 2 * state, state, (hidden + 1) * labels + 2 * hidden));
        stages
    }
}

pub fn parameters(config: &TabularConfig) -> Vec<Parameter> {
    let (hidden, inputs) = (config.hidden_size, config.inputs());
    let labels = config.labels.as_ref().map_or(2, Labels::count);
    let normal = |size: i64| Init::Normal { std: (size.max(1) as f64).powf(-0.5) };
    let mut list = Listed::default();
    let categories: i64 = config.columns.as_ref().map_or(0, |columns| columns.categories().iter().sum());
    if categories > 0 {
        // Small, so that a value that no row of the training has says little.
        list.push("embedding.weight", &[categories, config.embedding_size], Init::Normal { std: 0.1 });
    }
    list.linear("input", &[hidden, inputs], normal(inputs));
    for layer in 0..config.num_layers {
        list.norm(&format!("layers.{layer}.norm"), hidden);
        list.linear(&format!("layers.{layer}.up"), &[2 * hidden, hidden], normal(hidden));
        list.linear(&format!("layers.{layer}.down"), &[hidden, 2 * hidden], normal(2 * hidden));
    }
    list.norm("norm", hidden);
    list.linear("head", &[labels, hidden], normal(hidden));
    list.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::task_data::LabelUnit;

    fn read(config: Value) -> Result<TabularConfig, ConfigError> {
        TabularConfig::read(config.as_object().unwrap())
    }

    fn features() -> Value {
        json!([
            { "name": "age", "kind": "number", "mean": 41.5, "std": 7.0, "missing": true },
            { "name": "income", "kind": "number", "mean": 3e4, "std": 1e4, "missing": false },
            { "name": "city", "kind": "category", "values": ["Bonn", "Ulm"] },
        ])
    }

    #[test]
    fn a_wrong_key_is_named() {
        let cases = [
            (json!({"hidden_size": 0}), "hidden_size: found 0"),
            (json!({"dropout": 1.0}), "dropout: found 1; allowed: at least 0 and below 1"),
            (json!({"features": [{"name": "a", "kind": "text"}]}), "features: found [{"),
            (json!({"features": [], "label_std": 0}), "label_std: found a standard deviation of 0"),
            (
                json!({"features": [{"name": "a", "kind": "number", "mean": 1, "std": -1, "missing": false}]}),
                "features: found a standard deviation of -1; allowed: numbers above 0",
            ),
        ];
        for (given, want) in cases {
            let error = read(given).unwrap_err().to_string();
            assert!(error.contains(want), "{error}");
        }
    }

    #[test]
    fn the_export_reads_back_with_its_features() {
        let config =
            json!({"features": features(), "label_mean": 2.5, "label_std": 0.5, "num_labels": 1, "author": "me"});
        let config = read(config).unwrap();
        let exported = config.export();
        assert_eq!((&exported["author"], &exported["features"]), (&json!("me"), &features()));
        let again = read(Value::Object(exported)).unwrap();
        assert_eq!(again.columns.as_ref().unwrap().unit, LabelUnit { mean: 2.5, std: 0.5 });
        assert_eq!(TabularConfig { given: config.given.clone(), ..again }, config);
    }

    #[test]
    fn features_decide_the_inputs() {
        let sizes = json!({"features": features(), "hidden_size": 8, "num_layers": 1, "embedding_size": 4});
        let config = read(sizes).unwrap();
        let columns = config.columns.as_ref().unwrap();
        assert_eq!((columns.numbers(), columns.categories()), (3, vec![3]));
        let shape = |name: &str| {
            let list = parameters(&config);
            list.iter().find(|parameter| parameter.name == name).map(|parameter| parameter.shape.clone())
        };
        assert_eq!(shape("embedding.weight"), Some(vec![3, 4]));
        assert_eq!((shape("input.weight"), shape("head.weight")), (Some(vec![8, 7]), Some(vec![2, 8])));
        assert!(parameters(&read(json!({})).unwrap()).iter().all(|parameter| parameter.name != "embedding.weight"));
    }
}

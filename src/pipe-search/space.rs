//! The space of a study: parameters, the values that each may have, and under which conditions there is one at all.

use std::collections::BTreeMap;

use serde_json::Value;

/// The values of one trial. A parameter whose conditions do not hold has none.
pub type Point = BTreeMap<String, Value>;

#[derive(Clone, Debug, PartialEq)]
pub struct Space {
    /// Those that conditions name come before those that have them.
    pub parameters: Vec<Parameter>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Parameter {
    /// The path of a setting, such as `train.optimizer.lr`.
    pub name: String,
    pub domain: Domain,
    /// All must hold.
    pub when: Vec<Condition>,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Domain {
    /// Numbers, texts, true, false or null, in no order.
    Choices(Vec<Value>),
    /// From `low` to `high`, both among them; with `step` only `low` and what is a whole number of steps above it.
    Float {
        low: f64,
        high: f64,
        log: bool,
        step: Option<f64>,
    },
    Int {
        low: i64,
        high: i64,
        log: bool,
        step: i64,
    },
}

/// Something that must hold of another parameter. One that has no value fulfils nothing.
#[derive(Clone, Debug, PartialEq)]
pub struct Condition {
    pub parameter: String,
    pub test: Test,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Test {
    Above(f64),
    Below(f64),
    OneOf(Vec<Value>),
}

impl Space {
    pub fn parameter(&self, name: &str) -> Option<&Parameter> {
        self.parameters.iter().find(|parameter| parameter.name == name)
    }
}

impl Parameter {
    /// Whether it has a value where the parameters before it have those of `point`.
    pub fn applies(&self, point: &Point) -> bool {
        self.when
            .iter()
            .all(|condition| point.get(&condition.parameter).is_some_and(|value| condition.test.holds(value)))
    }
}

impl Test {
    pub fn holds(&self, value: &Value) -> bool {
        match self {
            Self::Above(bound) => value.as_f64().is_some_and(|value| value > *bound),
            Self::Below(bound) => value.as_f64().is_some_and(|value| value < *bound),
            Self::OneOf(values) => values.iter().any(|one| same(one, value)),
        }
    }
}

/// Whether two values are the same: 1 and 1.0 are.
pub fn same(left: &Value, right: &Value) -> bool {
    match (left.as_f64(), right.as_f64()) {
        (Some(left), Some(right)) => left == right,
        _ => left == right,
    }
}

impl Domain {
    pub fn contains(&self, value: &Value) -> bool {
        match self {
            Self::Choices(values) => values.iter().any(|one| same(one, value)),
            Self::Float { low, high, .. } => value.as_f64().is_some_and(|value| *low <= value && value <= *high),
            Self::Int { low, high, .. } => value.as_i64().is_some_and(|value| *low <= value && value <= *high),
        }
    }

    /// How many values there are; absent where they are not counted.
    pub fn count(&self) -> Option<u64> {
        match self {
            Self::Choices(values) => Some(values.len() as u64),
            Self::Float { low, high, step: Some(step), .. } => Some(((high - low) / step + 1e-9).floor() as u64 + 1),
            Self::Float { low, high, .. } => (low == high).then_some(1),
            Self::Int { low, high, step, .. } => Some(((high - low) / step) as u64 + 1),
        }
    }
}

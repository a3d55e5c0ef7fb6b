//! `space`: the settings that are tried, and the values that each may have.

use std::collections::BTreeMap;

use serde_json::{Number, Value, json};

use super::file::{self, Described, Domain};
use crate::yaml::Problems;
use crate::yaml::{Node, NodeKind, nearest};

/// A setting of the pipeline that trials differ in.
#[derive(Clone, Debug, PartialEq)]
pub struct Parameter {
    /// Its path in the pipeline.
    pub name: String,
    pub values: Values,
    /// All must hold; otherwise the setting is left as the pipeline has it.
    pub when: Vec<Condition>,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Values {
    Choices(Vec<Choice>),
    Float { low: f64, high: f64, log: bool, step: Option<f64> },
    Int { low: i64, high: i64, log: bool, step: i64 },
}

/// One of several values: what the search calls it, and what the pipeline gets.
#[derive(Clone, Debug, PartialEq)]
pub struct Choice {
    pub label: Value,
    pub value: Value,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Condition {
    pub parameter: String,
    pub test: Test,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Test {
    Above(f64),
    Below(f64),
    AnyOf(Vec<Value>),
}

impl Parameter {
    /// The value in the pipeline for a value of the search.
    pub fn written(&self, value: &Value) -> Value {
        match &self.values {
            Values::Choices(choices) => {
                let found = choices.iter().find(|choice| choice.label == *value);
                found.map_or_else(|| value.clone(), |choice| choice.value.clone())
            }
            Values::Float { .. } | Values::Int { .. } => value.clone(),
        }
    }
}

impl Values {
    /// Values that stand for all: every choice, or both ends of a range.
    pub fn examples(&self) -> Vec<Value> {
        match self {
            Self::Choices(choices) => choices.iter().map(|choice| choice.label.clone()).collect(),
            Self::Float { low, high, .. } => vec![json!(low), json!(high)],
            Self::Int { low, high, .. } => vec![json!(low), json!(high)],
        }
    }
}

/// The line of a setting in `space`.
pub(super) fn line(tree: &Node, name: &str) -> Option<u64> {
    let NodeKind::Map(entries) = &tree.find("space")?.kind else { return None };
    entries.iter().find(|entry| entry.key == name)?.line
}

/// The settings of a space, in an order in which conditions can be decided.
pub(super) fn read(space: &BTreeMap<String, Domain>, tree: &Node, problems: &mut Problems) -> Vec<Parameter> {
    let mut parameters = Vec::new();
    for (name, domain) in space {
        let mut found = Vec::new();
        let parameter = parameter(name, domain, space, &mut found);
        for message in found {
            problems.push(line(tree, name), &format!("space.{name}"), message);
        }
        parameters.push(parameter);
    }
    in_order(parameters, tree, problems)
}

fn parameter(name: &str, domain: &Domain, space: &BTreeMap<String, Domain>, problems: &mut Vec<String>) -> Parameter {
    if ["name", "version", "engine", "notify", "track"].contains(&name.split('.').next().unwrap_or_default()) {
        problems.push("cannot be searched: it changes no training".to_owned());
    }
    for other in space.keys().filter(|other| other.starts_with(&format!("{name}."))) {
        problems.push(format!("holds {other}, which is searched too; name one of them"));
    }
    let (values, when) = match domain {
        Domain::List(values) => (choices(values, problems), Vec::new()),
        Domain::Described(described) => {
            (described_values(described, problems), conditions(name, described, space, problems))
        }
    };
    Parameter { name: name.to_owned(), values, when }
}

fn choices(values: &[Value], problems: &mut Vec<String>) -> Values {
    for (index, value) in values.iter().enumerate() {
        if value.is_array() || value.is_object() {
            problems
                .push("values that are lists or maps need names: `values: {small: {...}, large: {...}}`".to_owned());
            break;
        }
        if values[..index].contains(value) {
            problems.push(format!("{value} is given twice"));
        }
    }
    if values.is_empty() {
        problems.push("no value in it".to_owned());
    }
    Values::Choices(values.iter().map(|value| Choice { label: value.clone(), value: value.clone() }).collect())
}

fn described_values(described: &Described, problems: &mut Vec<String>) -> Values {
    let Described { low, high, step, log, values, .. } = described;
    match (values, low, high) {
        (Some(values), None, None) => {
            if step.is_some() || *log {
                problems.push("`step` and `log` are for a range: give `low` and `high`, or `values`".to_owned());
            }
            match values {
                file::Values::List(values) => choices(values, problems),
                file::Values::Named(named) => {
                    if named.is_empty() {
                        problems.push("no value in it".to_owned());
                    }
                    let choice =
                        |(label, value): (&String, &Value)| Choice { label: json!(label), value: value.clone() };
                    Values::Choices(named.iter().map(choice).collect())
                }
            }
        }
        (None, Some(low), Some(high)) => range(low, high, step.as_ref(), *log, problems),
        _ => {
            problems.push("give `low` and `high`, or `values`".to_owned());
            Values::Choices(Vec::new())
        }
    }
}

fn range(low: &Number, high: &Number, step: Option<&Number>, log: bool, problems: &mut Vec<String>) -> Values {
    let float = |number: &Number| number.as_f64().unwrap_or(f64::NAN);
    let (from, to, by) = (float(low), float(high), step.map(float));
    if from >= to {
        problems.push(format!("low ({low}) must be below high ({high})"));
    }
    if log && from <= 0.0 {
        problems.push(format!("with `log` low must be above 0; found {low}"));
    }
    if by.is_some_and(|by| by <= 0.0) {
        problems.push("step must be above 0".to_owned());
    }
    if log && step.is_some() {
        problems.push("give `log` or `step`, not both".to_owned());
    }
    match (low.as_i64(), high.as_i64(), step.map(Number::as_i64)) {
        (Some(low), Some(high), None) => Values::Int { low, high, log, step: 1 },
        (Some(low), Some(high), Some(Some(step))) => {
            // The last value is a whole number of steps from the first.
            let high = low + (high - low).max(0) / step.max(1) * step.max(1);
            Values::Int { low, high, log, step }
        }
        _ => {
            let high = by.map_or(to, |by| from + ((to - from) / by + 1e-9).floor() * by);
            Values::Float { low: from, high, log, step: by }
        }
    }
}

fn conditions(
    name: &str,
    described: &Described,
    space: &BTreeMap<String, Domain>,
    problems: &mut Vec<String>,
) -> Vec<Condition> {
    let mut conditions = Vec::new();
    for (parameter, when) in &described.when {
        if parameter == name || !space.contains_key(parameter) {
            let others: Vec<&str> = space.keys().map(String::as_str).filter(|other| *other != name).collect();
            let near = nearest(parameter, &others);
            problems.push(format!(
                "when: {parameter} is not another setting of the space{near}; allowed: {}",
                others.join(", ")
            ));
            continue;
        }
        let file::When { above, below, any_of } = when;
        let tests =
            [above.map(Test::Above), below.map(Test::Below), (!any_of.is_empty()).then(|| Test::AnyOf(any_of.clone()))];
        let before = conditions.len();
        conditions.extend(tests.into_iter().flatten().map(|test| Condition { parameter: parameter.clone(), test }));
        if conditions.len() == before {
            problems.push(format!("when: {parameter} has no condition; allowed: above, below, any_of"));
        }
    }
    conditions
}

/// Those that conditions name first.
fn in_order(mut rest: Vec<Parameter>, tree: &Node, problems: &mut Problems) -> Vec<Parameter> {
    let mut ordered: Vec<Parameter> = Vec::new();
    while !rest.is_empty() {
        let is_ready = |parameter: &Parameter| {
            parameter.when.iter().all(|condition| ordered.iter().any(|before| before.name == condition.parameter))
        };
        let (ready, waiting): (Vec<_>, Vec<_>) = rest.into_iter().partition(is_ready);
        if ready.is_empty() {
            for parameter in &waiting {
                let path = format!("space.{}", parameter.name);
                problems.push(line(tree, &parameter.name), &path, "the conditions depend on each other in a circle");
            }
            return ordered;
        }
        ordered.extend(ready);
        rest = waiting;
    }
    ordered
}

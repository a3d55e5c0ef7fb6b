//! The operations of the log: what a line says, and the lines that we write.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::{distribution, python};
use crate::axis::Domain;
use crate::trial::{Direction, Trial, TrialState};

/// The system attribute that Optuna 4 and 5 read constraints from. Optuna 5 writes them one by one too, as `constraints:NAME`.
pub const CONSTRAINTS: &str = "constraints";

const CREATE_STUDY: u64 = 0;
const DELETE_STUDY: u64 = 1;
const SET_STUDY_USER_ATTR: u64 = 2;
const CREATE_TRIAL: u64 = 4;
const SET_TRIAL_PARAM: u64 = 5;
const SET_TRIAL_STATE_VALUES: u64 = 6;
const SET_TRIAL_INTERMEDIATE_VALUE: u64 = 7;
const SET_TRIAL_USER_ATTR: u64 = 8;
const SET_TRIAL_SYSTEM_ATTR: u64 = 9;

/// One line, as far as it can be understood without knowing which study it is of.
#[derive(Debug)]
pub enum Op {
    CreateStudy {
        name: String,
        directions: Vec<Direction>,
    },
    DeleteStudy {
        study: u64,
    },
    StudyAttrs {
        study: u64,
        attrs: Map<String, Value>,
    },
    CreateTrial {
        study: u64,
        worker: String,
        fields: Map<String, Value>,
    },
    Param {
        trial: u64,
        name: String,
        kept: Value,
        distribution: String,
    },
    State {
        trial: u64,
        state: TrialState,
        values: Option<Vec<f64>>,
        at: Option<f64>,
    },
    Intermediate {
        trial: u64,
        step: Option<u64>,
        value: f64,
    },
    UserAttrs {
        trial: u64,
        attrs: Map<String, Value>,
    },
    SystemAttrs {
        trial: u64,
        attrs: Map<String, Value>,
    },
    /// Something that does not concern us, or that a later Optuna added.
    Other,
}

impl Op {
    pub fn parse(line: Value) -> Result<Self, String> {
        let Value::Object(mut fields) = line else { return Err("it is not an object".into()) };
        let code = fields.get("op_code").and_then(Value::as_u64).ok_or("it has no op_code")?;
        Ok(match code {
            CREATE_STUDY => Self::CreateStudy {
                name: take_text(&mut fields, "study_name")?,
                directions: take_array(&mut fields, "directions")?.iter().map(direction).collect::<Result<_, _>>()?,
            },
            DELETE_STUDY => Self::DeleteStudy { study: id(&fields, "study_id")? },
            SET_STUDY_USER_ATTR => {
                Self::StudyAttrs { study: id(&fields, "study_id")?, attrs: take_object(&mut fields, "user_attr")? }
            }
            CREATE_TRIAL => Self::CreateTrial {
                study: id(&fields, "study_id")?,
                worker: take_text(&mut fields, "worker_id").unwrap_or_default(),
                fields,
            },
            SET_TRIAL_PARAM => Self::Param {
                trial: id(&fields, "trial_id")?,
                name: take_text(&mut fields, "param_name")?,
                kept: fields.remove("param_value_internal").ok_or("it has no param_value_internal")?,
                distribution: take_text(&mut fields, "distribution")?,
            },
            SET_TRIAL_STATE_VALUES => Self::State {
                trial: id(&fields, "trial_id")?,
                state: state(fields.get("state").ok_or("it has no state")?)?,
                values: optional_values(fields.get("values"))?,
                at: ["datetime_start", "datetime_complete"].into_iter().find_map(|key| read_time(&fields, key)),
            },
            SET_TRIAL_INTERMEDIATE_VALUE => Self::Intermediate {
                trial: id(&fields, "trial_id")?,
                step: fields.get("step").and_then(Value::as_u64),
                value: fields
                    .get("intermediate_value")
                    .and_then(python::number)
                    .ok_or("it has no intermediate_value")?,
            },
            SET_TRIAL_USER_ATTR => {
                Self::UserAttrs { trial: id(&fields, "trial_id")?, attrs: take_object(&mut fields, "user_attr")? }
            }
            SET_TRIAL_SYSTEM_ATTR => {
                Self::SystemAttrs { trial: id(&fields, "trial_id")?, attrs: take_object(&mut fields, "system_attr")? }
            }
            _ => Self::Other,
        })
    }
}

/// The trial that a line creates.
pub fn parse_trial(number: u64, mut fields: Map<String, Value>) -> Result<Trial, String> {
    let mut trial = Trial::new(number, BTreeMap::new());
    trial.state = fields.get("state").map_or(Ok(TrialState::Running), state)?;
    for (name, distribution) in take_object(&mut fields, "distributions").unwrap_or_default() {
        let text = distribution.as_str().ok_or("a distribution is not a text")?;
        trial.domains.insert(name, distribution::parse(text)?);
    }
    for (name, kept) in take_object(&mut fields, "params").unwrap_or_default() {
        let domain = trial.domains.get(&name).ok_or_else(|| format!("parameter {name} has no distribution"))?;
        trial.point.insert(name, distribution::parse_value(domain, &kept)?);
    }
    trial.values = match optional_values(fields.get("values"))? {
        Some(values) => values,
        None => fields.get("value").filter(|value| !value.is_null()).and_then(python::number).into_iter().collect(),
    };
    for (step, value) in take_object(&mut fields, "intermediate_values").unwrap_or_default() {
        let value = python::number(&value).ok_or("an intermediate value is not a number")?;
        if let Ok(step) = step.parse() {
            trial.intermediate.insert(step, value);
        }
    }
    trial.user_attrs.extend(take_object(&mut fields, "user_attrs").unwrap_or_default());
    trial.system_attrs.extend(take_object(&mut fields, "system_attrs").unwrap_or_default());
    trial.constraints = constraints(&trial.system_attrs);
    trial.began = read_time(&fields, "datetime_start");
    trial.ended = read_time(&fields, "datetime_complete");
    Ok(trial)
}

/// The constraints that the system attributes of a trial say, in both forms.
pub fn constraints(attrs: &BTreeMap<String, Value>) -> Vec<f64> {
    let list = attrs.get(CONSTRAINTS).and_then(Value::as_array).into_iter().flatten();
    let mut found: Vec<(String, f64)> =
        list.enumerate().map(|(at, value)| (at.to_string(), python::number(value).unwrap_or(f64::NAN))).collect();
    for (key, value) in attrs {
        let Some(name) = key.strip_prefix(CONSTRAINTS).and_then(|rest| rest.strip_prefix(':')) else { continue };
        let value = python::number(value).unwrap_or(f64::NAN);
        match found.iter_mut().find(|(other, _)| other == name) {
            Some(known) => known.1 = value,
            None => found.push((name.into(), value)),
        }
    }
    found.into_iter().map(|(_, value)| value).collect()
}

pub fn create_study(worker: &str, name: &str, directions: &[Direction]) -> String {
    let directions = directions.iter().map(|direction| match direction {
        Direction::Minimize => "1".to_string(),
        Direction::Maximize => "2".to_string(),
    });
    let directions = python::write_array(directions);
    line(CREATE_STUDY, worker, [("study_name", python::write_text(name)), ("directions", directions)])
}

pub fn set_study_attr(worker: &str, study: u64, key: &str, value: &Value) -> String {
    let attr = python::write_object([(key, value.to_string())]);
    line(SET_STUDY_USER_ATTR, worker, [("study_id", study.to_string()), ("user_attr", attr)])
}

/// All of a trial in one line. The error is the parameter that cannot be written, and why.
pub fn create_trial(worker: &str, study: u64, trial: &Trial) -> Result<String, (String, String)> {
    let mut distributions = Vec::new();
    let mut params = Vec::new();
    for (name, value) in &trial.point {
        let failed = |reason| (name.clone(), reason);
        let domain = trial.domains.get(name).ok_or_else(|| failed("it has no domain".into()))?;
        let text = distribution::write(domain).map_err(failed)?;
        distributions.push((name.as_str(), python::write_text(&text)));
        params.push((name.as_str(), distribution::write_value(domain, value).map_err(failed)?));
    }
    let (value, values) = match trial.values.as_slice() {
        [] => ("null".into(), "null".into()),
        [value] => (python::write_number(*value), "null".into()),
        values => ("null".into(), numbers(values)),
    };
    let began = match trial.state {
        TrialState::Waiting => trial.began,
        _ => Some(trial.began.unwrap_or_else(python::now)),
    };
    let steps: Vec<(String, String)> =
        trial.intermediate.iter().map(|(step, value)| (step.to_string(), python::write_number(*value))).collect();
    let mut fields = vec![
        ("study_id", study.to_string()),
        ("datetime_start", began.map_or_else(|| "null".into(), write_time)),
        ("state", state_code(trial.state).to_string()),
        ("value", value),
        ("values", values),
    ];
    if trial.state.has_ended() {
        fields.push(("datetime_complete", write_time(trial.ended.unwrap_or_else(python::now))));
    }
    fields.extend([
        ("distributions", python::write_object(distributions)),
        ("params", python::write_object(params)),
        ("user_attrs", attrs(&trial.user_attrs)),
        ("system_attrs", system_attrs(trial)),
        ("intermediate_values", python::write_object(steps.iter().map(|(step, value)| (step.as_str(), value.clone())))),
    ]);
    Ok(line(CREATE_TRIAL, worker, fields))
}

pub fn set_param(worker: &str, trial: u64, name: &str, value: &Value, domain: &Domain) -> Result<String, String> {
    let fields = [
        ("trial_id", trial.to_string()),
        ("param_name", python::write_text(name)),
        ("param_value_internal", distribution::write_value(domain, value)?),
        ("distribution", python::write_text(&distribution::write(domain)?)),
    ];
    Ok(line(SET_TRIAL_PARAM, worker, fields))
}

pub fn set_state(worker: &str, trial: u64, state: TrialState, values: &[f64], at: f64) -> String {
    let values = if values.is_empty() { "null".into() } else { numbers(values) };
    let mut fields =
        vec![("trial_id", trial.to_string()), ("state", state_code(state).to_string()), ("values", values)];
    match state {
        TrialState::Waiting => {}
        TrialState::Running => fields.push(("datetime_start", write_time(at))),
        _ => fields.push(("datetime_complete", write_time(at))),
    }
    line(SET_TRIAL_STATE_VALUES, worker, fields)
}

pub fn set_intermediate(worker: &str, trial: u64, step: u64, value: f64) -> String {
    let fields = [
        ("trial_id", trial.to_string()),
        ("step", step.to_string()),
        ("intermediate_value", python::write_number(value)),
    ];
    line(SET_TRIAL_INTERMEDIATE_VALUE, worker, fields)
}

pub fn set_attr(worker: &str, trial: u64, key: &str, value: &Value) -> String {
    let attr = python::write_object([(key, value.to_string())]);
    line(SET_TRIAL_USER_ATTR, worker, [("trial_id", trial.to_string()), ("user_attr", attr)])
}

pub fn set_constraints(worker: &str, trial: u64, constraints: &[f64]) -> String {
    let attr = python::write_object([(CONSTRAINTS, numbers(constraints))]);
    line(SET_TRIAL_SYSTEM_ATTR, worker, [("trial_id", trial.to_string()), ("system_attr", attr)])
}

fn line<'a>(code: u64, worker: &str, fields: impl IntoIterator<Item = (&'a str, String)>) -> String {
    let head = [("op_code", code.to_string()), ("worker_id", python::write_text(worker))];
    python::write_object(head.into_iter().chain(fields)) + "\n"
}

fn attrs(attrs: &BTreeMap<String, Value>) -> String {
    python::write_object(attrs.iter().map(|(key, value)| (key.as_str(), value.to_string())))
}

/// Constraints are a field of ours and a system attribute of Optuna.
fn system_attrs(trial: &Trial) -> String {
    if trial.constraints.is_empty() || trial.system_attrs.contains_key(CONSTRAINTS) {
        return attrs(&trial.system_attrs);
    }
    let others = trial.system_attrs.iter().map(|(key, value)| (key.as_str(), value.to_string()));
    python::write_object(others.chain([(CONSTRAINTS, numbers(&trial.constraints))]))
}

fn numbers(numbers: &[f64]) -> String {
    python::write_array(numbers.iter().map(|number| python::write_number(*number)))
}

fn write_time(at: f64) -> String {
    python::write_text(&python::write_time(at))
}

fn read_time(fields: &Map<String, Value>, key: &str) -> Option<f64> {
    fields.get(key).and_then(Value::as_str).and_then(python::parse_time)
}

fn state_code(state: TrialState) -> u64 {
    match state {
        TrialState::Running => 0,
        TrialState::Complete => 1,
        TrialState::Pruned => 2,
        TrialState::Failed => 3,
        TrialState::Waiting => 4,
    }
}

fn state(value: &Value) -> Result<TrialState, String> {
    Ok(match value.as_u64() {
        Some(0) => TrialState::Running,
        Some(1) => TrialState::Complete,
        Some(2) => TrialState::Pruned,
        Some(3) => TrialState::Failed,
        Some(4) => TrialState::Waiting,
        _ => return Err(format!("{value} is no state")),
    })
}

/// Optuna treats a direction that is not set (0) as the first.
fn direction(value: &Value) -> Result<Direction, String> {
    match value.as_u64() {
        Some(0 | 1) => Ok(Direction::Minimize),
        Some(2) => Ok(Direction::Maximize),
        _ => Err(format!("{value} is no direction")),
    }
}

fn optional_values(value: Option<&Value>) -> Result<Option<Vec<f64>>, String> {
    match value {
        None | Some(Value::Null) => Ok(None),
        Some(Value::Array(values)) => {
            let values: Option<Vec<f64>> = values.iter().map(python::number).collect();
            values.map(Some).ok_or_else(|| "its values are not numbers".into())
        }
        Some(_) => Err("its values are not a list".into()),
    }
}

fn id(fields: &Map<String, Value>, key: &str) -> Result<u64, String> {
    fields.get(key).and_then(Value::as_u64).ok_or_else(|| format!("it has no {key}"))
}

fn take_text(fields: &mut Map<String, Value>, key: &str) -> Result<String, String> {
    match fields.remove(key) {
        Some(Value::String(text)) => Ok(text),
        _ => Err(format!("it has no {key}")),
    }
}

fn take_array(fields: &mut Map<String, Value>, key: &str) -> Result<Vec<Value>, String> {
    match fields.remove(key) {
        Some(Value::Array(items)) => Ok(items),
        _ => Err(format!("it has no {key}")),
    }
}

fn take_object(fields: &mut Map<String, Value>, key: &str) -> Result<Map<String, Value>, String> {
    match fields.remove(key) {
        Some(Value::Object(fields)) => Ok(fields),
        _ => Err(format!("it has no {key}")),
    }
}

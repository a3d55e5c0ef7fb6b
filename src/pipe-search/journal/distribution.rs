//! Domains as Optuna writes its distributions, and the values of parameters as it keeps them: the index of a
//! choice, or the number.

use serde_json::Value;

use super::python;
use crate::axis::{Domain, same};

/// The distribution of a domain, as JSON. Says what is wrong where Optuna would refuse it, for it would then refuse the whole file.
pub fn write(domain: &Domain) -> Result<String, String> {
    let (name, attributes) = match domain {
        Domain::Choices(choices) => {
            if choices.is_empty() {
                return Err("it has no choices".into());
            }
            let choices = python::write_array(choices.iter().map(Value::to_string));
            ("CategoricalDistribution", python::write_object([("choices", choices)]))
        }
        Domain::Float { low, high, log, step } => {
            if !(low.is_finite() && high.is_finite() && low <= high) || (*log && *low <= 0.0) {
                return Err(format!("{low} to {high} is no range{}", if *log { " of logarithms" } else { "" }));
            }
            if step.is_some_and(|step| *log || !step.is_finite() || step <= 0.0) {
                return Err("its step is not possible".into());
            }
            let high = step.map_or(*high, |step| last_step(*low, *high, step));
            let step = step.map_or_else(|| "null".into(), python::write_number);
            let (low, high) = (python::write_number(*low), python::write_number(high));
            let attributes = [("step", step), ("low", low), ("high", high), ("log", log.to_string())];
            ("FloatDistribution", python::write_object(attributes))
        }
        Domain::Int { low, high, log, step } => {
            if low > high || (*log && *low < 1) {
                return Err(format!("{low} to {high} is no range{}", if *log { " of logarithms" } else { "" }));
            }
            if *step < 1 || (*log && *step != 1) {
                return Err("its step is not possible".into());
            }
            let high =
                (i128::from(*high) - i128::from(*low)) / i128::from(*step) * i128::from(*step) + i128::from(*low);
            let (low, high) = (low.to_string(), high.to_string());
            let attributes = [("log", log.to_string()), ("step", step.to_string()), ("low", low), ("high", high)];
            ("IntDistribution", python::write_object(attributes))
        }
    };
    Ok(python::write_object([("name", python::write_text(name)), ("attributes", attributes)]))
}

/// The domain of a distribution: of the three classes, of those that Optuna had before them, and of its short form.
pub fn parse(text: &str) -> Result<Domain, String> {
    let value = python::parse(text.as_bytes())?;
    let name = value.get("name").or_else(|| value.get("type")).and_then(Value::as_str).unwrap_or_default();
    let attributes = value.get("attributes").unwrap_or(&value);
    let number = |key: &str| attributes.get(key).and_then(python::number).filter(|number| !number.is_nan());
    let float = |log: bool, step: Option<f64>| {
        let (Some(low), Some(high)) = (number("low"), number("high")) else { return Err(unknown(text)) };
        Ok(Domain::Float { low, high, log, step })
    };
    let int = |log: bool| {
        let whole = |key: &str| attributes.get(key).and_then(whole);
        let (Some(low), Some(high)) = (whole("low"), whole("high")) else { return Err(unknown(text)) };
        Ok(Domain::Int { low, high, log, step: whole("step").unwrap_or(1).max(1) })
    };
    let log = attributes.get("log").and_then(Value::as_bool).unwrap_or(false);
    match name {
        "CategoricalDistribution" | "categorical" => match attributes.get("choices") {
            Some(Value::Array(choices)) if !choices.is_empty() => Ok(Domain::Choices(choices.clone())),
            _ => Err(unknown(text)),
        },
        "FloatDistribution" | "float" => float(log, number("step")),
        "UniformDistribution" => float(false, None),
        "LogUniformDistribution" => float(true, None),
        "DiscreteUniformDistribution" => float(false, number("q")),
        "IntDistribution" | "int" => int(log),
        "IntUniformDistribution" => int(false),
        "IntLogUniformDistribution" => int(true),
        _ => Err(unknown(text)),
    }
}

/// The value of a parameter as the journal keeps it, as JSON.
pub fn write_value(domain: &Domain, value: &Value) -> Result<String, String> {
    let found = match domain {
        Domain::Choices(choices) => choices
            .iter()
            .position(|choice| choice == value)
            .or_else(|| choices.iter().position(|choice| same(choice, value)))
            .map(|index| index.to_string()),
        Domain::Float { .. } => value.as_f64().map(python::write_number),
        Domain::Int { .. } => whole(value).map(|number| number.to_string()),
    };
    found.ok_or_else(|| format!("{value} is no value of it"))
}

/// The same the other way.
pub fn parse_value(domain: &Domain, kept: &Value) -> Result<Value, String> {
    let found = match domain {
        Domain::Choices(choices) => {
            whole(kept).and_then(|index| usize::try_from(index).ok()).and_then(|index| choices.get(index).cloned())
        }
        // A number that JSON does not have stays the text that stands for it.
        Domain::Float { .. } => match kept {
            Value::String(_) => python::number(kept).map(|_| kept.clone()),
            _ => kept.as_f64().map(Value::from),
        },
        Domain::Int { .. } => whole(kept).map(Value::from),
    };
    found.ok_or_else(|| format!("{kept} is no value of {domain:?}"))
}

/// Whether Optuna takes a value from `new` for a parameter whose earlier ones were from `old`.
pub fn are_compatible(old: &Domain, new: &Domain) -> bool {
    match (old, new) {
        (Domain::Choices(old), Domain::Choices(new)) => {
            old.len() == new.len() && old.iter().zip(new).all(|(old, new)| are_equal_in_python(old, new))
        }
        (Domain::Float { log: old, .. }, Domain::Float { log: new, .. })
        | (Domain::Int { log: old, .. }, Domain::Int { log: new, .. }) => old == new,
        _ => false,
    }
}

/// In Python, 1 and 1.0 and True are equal.
fn are_equal_in_python(left: &Value, right: &Value) -> bool {
    let number =
        |value: &Value| value.as_bool().map_or_else(|| value.as_f64(), |value| Some(f64::from(u8::from(value))));
    match (number(left), number(right)) {
        (Some(left), Some(right)) => left == right,
        _ => left == right,
    }
}

/// A whole number, also where it is written as 3.0; what is after the point is cut off, as Python's `int` does.
fn whole(value: &Value) -> Option<i64> {
    value.as_i64().or_else(|| value.as_f64().filter(|value| value.abs() < 9.2e18).map(|value| value as i64))
}

/// The last value that is a whole number of steps above `low`. Optuna counts in decimal and warns about any other end.
fn last_step(low: f64, high: f64, step: f64) -> f64 {
    let steps = (high - low) / step;
    if (steps - steps.round()).abs() < 1e-9 {
        return high;
    }
    let last = low + steps.floor() * step;
    format!("{last:.12e}").parse().unwrap_or(last)
}

fn unknown(text: &str) -> String {
    format!("the distribution {text:?} is not known")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn domains_come_back() {
        let domains = [
            Domain::Choices(vec![json!("adamw"), json!(1), json!(1.5), json!(true), json!(null)]),
            Domain::Float { low: 1e-6, high: 0.1, log: true, step: None },
            Domain::Float { low: 0.0, high: 0.5, log: false, step: Some(0.1) },
            Domain::Int { low: -3, high: 12, log: false, step: 5 },
            Domain::Int { low: 1, high: i64::MAX, log: true, step: 1 },
        ];
        for domain in domains {
            assert_eq!(parse(&write(&domain).unwrap()).unwrap(), domain);
        }
        let uneven = Domain::Float { low: 0.1, high: 0.35, log: false, step: Some(0.1) };
        assert_eq!(
            parse(&write(&uneven).unwrap()),
            Ok(Domain::Float { low: 0.1, high: 0.3, log: false, step: Some(0.1) })
        );
        let uneven = Domain::Int { low: i64::MIN, high: i64::MAX, log: false, step: i64::MAX };
        assert!(parse(&write(&uneven).unwrap()).is_ok());
    }

    #[test]
    fn domains_that_optuna_refuses_are_not_written() {
        let domains = [
            Domain::Choices(vec![]),
            Domain::Float { low: 1.0, high: 0.0, log: false, step: None },
            Domain::Float { low: 0.0, high: 1.0, log: true, step: None },
            Domain::Float { low: 0.1, high: 1.0, log: true, step: Some(0.1) },
            Domain::Float { low: 0.0, high: f64::INFINITY, log: false, step: None },
            Domain::Float { low: 0.0, high: 1.0, log: false, step: Some(0.0) },
            Domain::Int { low: 0, high: 8, log: true, step: 1 },
            Domain::Int { low: 1, high: 8, log: true, step: 2 },
            Domain::Int { low: 1, high: 8, log: false, step: 0 },
        ];
        for domain in domains {
            assert!(write(&domain).is_err(), "{domain:?}");
        }
    }

    #[test]
    fn old_and_short_forms_are_read() {
        let table = [
            (
                r#"{"name":"DiscreteUniformDistribution","attributes":{"low":0.0,"high":1.0,"q":0.5}}"#,
                Domain::Float { low: 0.0, high: 1.0, log: false, step: Some(0.5) },
            ),
            (
                r#"{"name":"IntUniformDistribution","attributes":{"low":1,"high":9,"step":2}}"#,
                Domain::Int { low: 1, high: 9, log: false, step: 2 },
            ),
            (r#"{"type":"int","low":1,"high":9,"log":true}"#, Domain::Int { low: 1, high: 9, log: true, step: 1 }),
            (r#"{"type":"categorical","choices":["a",NaN]}"#, Domain::Choices(vec![json!("a"), json!("NaN")])),
        ];
        for (text, domain) in table {
            assert_eq!(parse(text).unwrap(), domain, "{text}");
        }
        for text in ["", "[]", "{}", r#"{"name":"Other"}"#, r#"{"type":"float","low":NaN,"high":1}"#] {
            assert!(parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn values_come_back() {
        let choices = Domain::Choices(vec![json!(1), json!(true), json!("x")]);
        assert_eq!(write_value(&choices, &json!(true)).unwrap(), "1");
        assert_eq!(write_value(&choices, &json!(1.0)).unwrap(), "0");
        assert!(write_value(&choices, &json!("y")).is_err());
        assert_eq!(parse_value(&choices, &json!(2.0)).unwrap(), json!("x"));
        for kept in [json!(3), json!(-1), json!("x"), json!(null), json!(1e300)] {
            assert!(parse_value(&choices, &kept).is_err(), "{kept}");
        }
        let int = Domain::Int { low: 0, high: 9, log: false, step: 1 };
        assert_eq!(parse_value(&int, &json!(3.0)).unwrap(), json!(3));
        let float = Domain::Float { low: 0.0, high: 9.0, log: false, step: None };
        assert_eq!(write_value(&float, &json!(3)).unwrap(), "3.0");
    }
}

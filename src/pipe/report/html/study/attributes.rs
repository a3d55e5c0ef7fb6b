//! What the runner notes on a trial. Any of it may be absent: Optuna notes nothing.

use pipe_search::Trial;
use serde_json::Value;

/// Numbers beyond this are not drawn: the difference of two would be infinite.
const LARGEST: f64 = 1e200;

/// The number, if it can be drawn.
pub fn usable(number: f64) -> Option<f64> {
    (number.abs() <= LARGEST).then_some(number)
}

/// The value of an objective, if it can be drawn.
pub fn value(trial: &Trial, objective: usize) -> Option<f64> {
    trial.values.get(objective).copied().and_then(usable)
}

/// The last of the values on the way that can be drawn.
pub fn last_intermediate(trial: &Trial) -> Option<f64> {
    trial.intermediate.values().rev().find_map(|value| usable(*value))
}

pub fn number(trial: &Trial, name: &str) -> Option<f64> {
    trial.user_attrs.get(name).and_then(Value::as_f64).and_then(usable).filter(|number| *number >= 0.0)
}

pub fn text<'a>(trial: &'a Trial, name: &str) -> Option<&'a str> {
    trial.user_attrs.get(name).and_then(Value::as_str)
}

pub fn flag(trial: &Trial, name: &str) -> bool {
    trial.user_attrs.get(name).and_then(Value::as_bool).unwrap_or(false)
}

pub fn seconds(trial: &Trial) -> Option<f64> {
    let between = || Some(trial.ended? - trial.began?).filter(|seconds| seconds.is_finite() && *seconds >= 0.0);
    number(trial, "seconds").or_else(between)
}

/// Whether it ran more than once because memory ran out.
pub fn was_retried(trial: &Trial) -> bool {
    number(trial, "attempts").is_some_and(|attempts| attempts > 1.0)
}

/// The trial whose training this one would have repeated.
pub fn same_as(trial: &Trial) -> Option<u64> {
    trial.user_attrs.get("same_as").and_then(Value::as_u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::html::study::samples::trial;
    use serde_json::json;

    #[test]
    fn attributes_of_any_kind() {
        let mut one = trial(0, f64::NAN);
        assert_eq!((value(&one, 0), value(&one, 7), seconds(&one)), (None, None, None));
        (one.began, one.ended) = (Some(10.0), Some(12.5));
        assert_eq!(seconds(&one), Some(2.5));
        for (name, value) in [("seconds", json!("soon")), ("attempts", json!(2)), ("same_as", json!(-1))] {
            one.user_attrs.insert(name.to_owned(), value);
        }
        assert_eq!((seconds(&one), was_retried(&one), same_as(&one)), (Some(2.5), true, None));
        one.intermediate = [(1, 3.0), (2, f64::NAN)].into();
        assert_eq!(last_intermediate(&one), Some(3.0));
    }
}

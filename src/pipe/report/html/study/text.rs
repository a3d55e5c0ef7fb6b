//! Numbers, settings and sentences of the page as text. What is text of a user comes back escaped.

use pipe_search::Direction;
use serde_json::Value;

use crate::report::html::escape::escape;
use crate::report::{bounded, figure};

/// Characters of a title.
const TITLE: usize = 80;
/// Characters of a setting in a table.
const SETTING: usize = 40;

/// A value of an objective.
pub fn number(value: f64) -> String {
    match value {
        value if value.is_nan() => "NaN".to_owned(),
        f64::INFINITY => "infinite".to_owned(),
        f64::NEG_INFINITY => "-infinite".to_owned(),
        value if value < 0.0 => format!("-{}", figure(-value)),
        value => figure(value),
    }
}

/// A number to four digits, without zeros at its end.
pub fn short(value: f64) -> String {
    let rounded: f64 = format!("{value:.3e}").parse().unwrap_or(value);
    match rounded.abs() {
        0.0 => "0".to_owned(),
        size if (1e-3..1e6).contains(&size) => rounded.to_string(),
        _ => format!("{rounded:e}"),
    }
}

/// The value of a parameter as plain text, shortened to `most` characters.
pub fn plain_setting(value: &Value, most: usize) -> String {
    let text = match value {
        Value::String(text) => text.clone(),
        Value::Number(number) if number.is_f64() => short(number.as_f64().unwrap_or(0.0)),
        other => other.to_string(),
    };
    bounded(&text, most)
}

/// The value of a parameter, escaped; `-` where it has none.
pub fn setting(value: Option<&Value>) -> String {
    value.map_or("-".to_owned(), |value| escape(&plain_setting(value, SETTING)))
}

/// A name in a title, escaped.
pub fn title(name: &str) -> String {
    escape(&bounded(name, TITLE))
}

/// `less is better`, as a reader of a chart needs it.
pub fn better(direction: Direction) -> &'static str {
    match direction {
        Direction::Minimize => "less is better",
        Direction::Maximize => "more is better",
    }
}

/// A path of a setting as what leads to it, and its own name: `train.optimizer` and `lr`.
pub fn path_parts(name: &str) -> (&str, &str) {
    name.rsplit_once('.').filter(|(_, leaf)| !leaf.is_empty()).unwrap_or(("", name))
}

/// The end of `text`, which tells names apart better than their beginning.
pub fn end_of(text: &str, most: usize) -> String {
    let length = text.chars().count();
    match length > most {
        true => std::iter::once('…').chain(text.chars().skip(length + 1 - most)).collect(),
        false => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn numbers_and_settings() {
        for (value, want) in [(f64::NAN, "NaN"), (-5000.0, "-5,000"), (0.25, "0.2500"), (f64::INFINITY, "infinite")] {
            assert_eq!(number(value), want);
        }
        for (value, want) in [
            (json!(0.000_312_345_6), "3.123e-4"),
            (json!(0.1), "0.1"),
            (json!(64), "64"),
            (json!(null), "null"),
            (json!(true), "true"),
            (json!("a<b"), "a&lt;b"),
            (json!(1.0), "1"),
        ] {
            assert_eq!(setting(Some(&value)), want);
        }
        assert_eq!(setting(None), "-");
        assert_eq!(setting(Some(&json!("x".repeat(100)))).chars().count(), SETTING);
    }

    #[test]
    fn paths() {
        assert_eq!(path_parts("train.optimizer.lr"), ("train.optimizer", "lr"));
        assert_eq!(path_parts("lr"), ("", "lr"));
        assert_eq!((path_parts("x."), path_parts("")), (("", "x."), ("", "")));
        assert_eq!((end_of("abcdef", 4), end_of("abcd", 4)), ("…def".to_owned(), "abcd".to_owned()));
    }
}

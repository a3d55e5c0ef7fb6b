//! Lines of YAML with comments in a column of their own.

use serde_json::Value;

/// Where comments begin.
const MARGIN: usize = 33;

#[derive(Default)]
pub struct Page(pub String);

impl Page {
    pub fn text(&mut self, line: &str) {
        self.0.push_str(line);
        self.0.push('\n');
    }

    pub fn line(&mut self, text: &str, comment: &str) {
        match comment.is_empty() {
            true => self.text(text),
            false => self.text(&format!("{:<MARGIN$}# {comment}", format!("{text}  "))),
        }
    }
}

/// A text as a value of YAML: as it is where nothing in it means anything.
pub fn scalar(text: &str) -> String {
    let plain = |letter: char| letter.is_alphanumeric() || matches!(letter, '/' | '.' | '_' | '-');
    let is_plain = text.starts_with(|letter: char| letter.is_alphabetic() || matches!(letter, '/' | '.' | '_'))
        && text.chars().all(plain)
        && text.parse::<f64>().is_err()
        && !["true", "false", "null", "yes", "no", "on", "off", "y", "n"].contains(&text.to_ascii_lowercase().as_str());
    if is_plain { text.to_owned() } else { Value::from(text).to_string() }
}

/// A value on one line, such as `{a: 1, b: [2, 3]}`.
pub fn inline(value: &Value) -> String {
    match value {
        Value::Object(keys) => {
            let pairs: Vec<String> = keys.iter().map(|(key, value)| format!("{key}: {}", inline(value))).collect();
            format!("{{{}}}", pairs.join(", "))
        }
        Value::Array(items) => format!("[{}]", items.iter().map(inline).collect::<Vec<_>>().join(", ")),
        Value::String(text) => scalar(text),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_that_mean_something_are_quoted() {
        for (text, want) in [
            ("data/train.jsonl", "data/train.jsonl"),
            ("../x", "../x"),
            ("no", "\"no\""),
            ("a b", "\"a b\""),
            ("a: b", "\"a: b\""),
            ("1", "\"1\""),
            ("-x", "\"-x\""),
            ("$HOME\"", "\"$HOME\\\"\""),
        ] {
            assert_eq!(scalar(text), want);
        }
    }

    #[test]
    fn values_stand_on_one_line() {
        let value = serde_json::json!({"sizes": [1, 2.5], "kind": "gated-gelu", "inner": {"on": true, "off": "no"}});
        assert_eq!(inline(&value), r#"{sizes: [1, 2.5], kind: gated-gelu, inner: {on: true, off: "no"}}"#);
    }
}

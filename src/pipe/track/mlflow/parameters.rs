//! The settings of a run as MLflow's parameters: one level, with dotted names.

use pipe_spec::Pipeline;
use serde_json::Value;

use super::MAX_VALUE_LENGTH;
use crate::track::settings::settings;
use crate::track::shortened;

/// Every setting with its value. A list is one value.
pub fn from_pipeline(pipeline: &Pipeline) -> Vec<(String, String)> {
    let mut parameters = Vec::new();
    settings(pipeline).iter().for_each(|(name, section)| flatten(name, section, &mut parameters));
    parameters
}

fn flatten(path: &str, value: &Value, parameters: &mut Vec<(String, String)>) {
    let text = match value {
        Value::Object(map) => {
            return map.iter().for_each(|(key, value)| flatten(&format!("{path}.{key}"), value, parameters));
        }
        Value::Null => return,
        Value::String(text) => text.clone(),
        Value::Bool(_) | Value::Number(_) | Value::Array(_) => value.to_string(),
    };
    parameters.push((named(path), shortened(&text, MAX_VALUE_LENGTH)));
}

/// With the characters that MLflow takes, at most 250 of them.
fn named(path: &str) -> String {
    let allowed = |c: char| if c.is_ascii_alphanumeric() || "_-. /".contains(c) { c } else { '_' };
    path.chars().map(allowed).take(250).collect()
}

#[cfg(test)]
mod tests {
    use pipe_spec::Variables;

    use super::*;

    #[test]
    fn settings_are_flat_and_short_and_no_secrets() {
        let text = format!(
            "version: 1\nname: x\nmodel: {{arch: t5, config: {{d_model: 8, 'odd key!': {}}}}}\n\
             data: {{train: [a.jsonl, b.jsonl]}}\ntrain: {{batch: 4, accum: 2}}\n\
             container: {{env: {{TOKEN: s3cret}}}}\nnotify: [{{webhook: https://s3cret}}]\n",
            "y".repeat(1000)
        );
        let pipeline = Pipeline::parse(&text, &[], &Variables::default()).unwrap();
        let parameters = from_pipeline(&pipeline);
        let value = |key: &str| parameters.iter().find(|(name, _)| name == key).map(|(_, value)| value.as_str());
        assert_eq!(value("train.batch"), Some("4"));
        assert_eq!(value("model.arch"), Some("t5"));
        assert_eq!(value("train.optimizer.betas"), Some("[0.9,0.999]"));
        assert_eq!(value("data.train"), Some("[\"a.jsonl\",\"b.jsonl\"]"));
        assert_eq!(value("model.config.odd key_").map(str::len), Some(MAX_VALUE_LENGTH));
        assert!(parameters.iter().all(|(_, value)| !value.contains("s3cret")), "{parameters:?}");
    }
}

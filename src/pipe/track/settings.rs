//! The settings of a run as trackers get them: what the training is about, and no secret.

use pipe_spec::Pipeline;
use serde_json::{Map, Value};

/// Sections that are not about the training, or that may hold secrets.
const LEFT_OUT: [&str; 4] = ["version", "name", "notify", "track"];

/// Every section of the resolved pipeline but those, and `container` without its variables. `${VAR}` stays as it is written.
pub fn settings(pipeline: &Pipeline) -> Map<String, Value> {
    match serde_json::to_value(pipeline) {
        Ok(Value::Object(mut sections)) => {
            LEFT_OUT.iter().for_each(|name| drop(sections.remove(*name)));
            if let Some(Value::Object(container)) = sections.get_mut("container") {
                container.remove("env");
            }
            sections
        }
        _ => Map::new(),
    }
}

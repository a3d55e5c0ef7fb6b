//! Which settings two runs do not share, by their dotted paths.

use std::collections::{BTreeMap, BTreeSet};

use pipe_spec::{Pipeline, Variables, variables};
use serde::Serialize;
use serde_json::Value;

use crate::engine::registry;

/// The settings that may change when a run is resumed, besides the sections of engines. None of them changes the training result.
const CHANGEABLE: [&str; 12] = [
    "checkpoints",
    "container",
    "data.prefetch",
    "data.workers",
    "evaluate.batch",
    "memory",
    "notify",
    "on_oom",
    "track",
    "train.rank_timeout",
    "train.ranks",
    "train.shard",
];

/// The settings that may change when a run is resumed.
pub fn changeable_settings() -> Vec<&'static str> {
    let mut all: Vec<&str> = CHANGEABLE.into_iter().chain(registry::section_names()).collect();
    all.sort_unstable();
    all
}

/// A setting that differs; absent where a run has none.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Setting {
    pub path: String,
    pub first: Option<String>,
    pub second: Option<String>,
}

/// Those of two `resolved.yaml` that differ; nothing where one of them cannot be read.
pub fn differing(first: Option<&str>, second: Option<&str>) -> Option<Vec<Setting>> {
    let (first, second) = (flat_settings(first?)?, flat_settings(second?)?);
    let paths: BTreeSet<&String> = first.keys().chain(second.keys()).collect();
    let setting = |path: &&String| Setting {
        path: (*path).clone(),
        first: first.get(*path).cloned(),
        second: second.get(*path).cloned(),
    };
    Some(paths.iter().map(setting).filter(|setting| setting.first != setting.second).collect())
}

/// Every setting of a `resolved.yaml` by its dotted path.
pub fn flat_settings(resolved: &str) -> Option<BTreeMap<String, String>> {
    // The names of variables are compared, so that none need be set here.
    let named = variables::names(resolved).map(|name| (name.to_owned(), String::new()));
    let pipeline = registry::parse_pipeline(resolved, &[], &Variables::new(None, named)).ok()?;
    Some(flat(&pipeline))
}

/// Every setting by its dotted path.
pub fn flat(pipeline: &Pipeline) -> BTreeMap<String, String> {
    let mut flat = BTreeMap::new();
    flatten("", &serde_json::to_value(pipeline).unwrap_or_default(), &mut flat);
    flat
}

/// The paths of the settings that two pipelines do not share.
pub fn paths_that_differ(first: &Pipeline, second: &Pipeline) -> Vec<String> {
    let (first, second) = (flat(first), flat(second));
    let paths: BTreeSet<&String> = first.keys().chain(second.keys()).collect();
    paths.into_iter().filter(|path| first.get(*path) != second.get(*path)).cloned().collect()
}

/// Whether the setting at this path may change on resume, where those `allowed` may.
pub fn may_change(path: &str, allowed: &[&str]) -> bool {
    let under =
        |allowed: &&str| path.strip_prefix(*allowed).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'));
    allowed.iter().any(under) && path != "container.image"
}

fn flatten(path: &str, value: &Value, into: &mut BTreeMap<String, String>) {
    match value {
        Value::Object(fields) => {
            for (key, value) in fields {
                let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
                flatten(&path, value, into);
            }
        }
        Value::String(text) => drop(into.insert(path.to_owned(), text.clone())),
        other => drop(into.insert(path.to_owned(), other.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: &str =
        "version: 1\nname: a\nmodel: {arch: t5, config: {d_model: 8}}\ndata: {train: \"${DIR}/t.jsonl\"}\n";

    #[test]
    fn only_what_differs() {
        let other = PLAIN.replace("name: a", "name: b").replace("d_model: 8", "d_ff: 9");
        let found = differing(Some(PLAIN), Some(&other)).unwrap();
        let seen: Vec<(&str, Option<&str>, Option<&str>)> =
            found.iter().map(|one| (one.path.as_str(), one.first.as_deref(), one.second.as_deref())).collect();
        assert_eq!(
            seen,
            [
                ("model.config.d_ff", None, Some("9")),
                ("model.config.d_model", Some("8"), None),
                ("name", Some("a"), Some("b"))
            ]
        );
        assert_eq!(differing(Some(PLAIN), Some(PLAIN)), Some(Vec::new()));
    }

    #[test]
    fn what_cannot_be_read_is_not_known() {
        for text in [None, Some("version: [")] {
            assert_eq!(differing(Some(PLAIN), text), None);
        }
    }
}

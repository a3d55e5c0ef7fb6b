//! A tree against a JSON schema: unknown keys, missing keys, wrong types and values, all of them.
//!
//! It knows the part of JSON schema that `schemars` writes for the pipeline types, and nothing about pipelines.

use serde_json::Value;

use super::Problems;
use super::node::{Node, NodeKind, join};
use crate::text::satisfies_format;

pub(crate) struct Structure<'a> {
    root: &'a Value,
    names: &'a dyn OtherNames,
}

/// The names that keys and values have elsewhere, for suggestions.
pub(crate) trait OtherNames {
    fn key(&self, name: &str) -> Option<&OtherName>;

    /// The value to write instead of `value` at a dotted path.
    fn value(&self, path: &str, value: &str) -> Option<&str>;
}

/// A key that others have.
pub(crate) struct OtherName {
    pub name: &'static str,
    /// The dotted paths of keys that do the same, the best one first.
    pub paths: &'static [&'static str],
    /// A remark, or nothing.
    pub note: &'static str,
}

impl<'a> Structure<'a> {
    pub fn new(root: &'a Value, names: &'a dyn OtherNames) -> Self {
        Self { root, names }
    }

    pub fn check(&self, tree: &Node) -> Problems {
        let mut problems = Problems::default();
        self.node(tree, self.root, "", &mut problems);
        problems
    }

    fn node(&self, node: &Node, schema: &Value, path: &str, problems: &mut Problems) {
        let schema = self.resolve(schema);
        if let Some(variants) = variants(schema) {
            return self.any_of(node, schema, variants, path, problems);
        }
        if !matches_type(node, schema) || !matches_value(node, schema) {
            let hint = self.hint(node, schema, path);
            return problems.push(
                node.line,
                path,
                format!("found {}; allowed: {}{hint}", found(node), self.describe(schema)),
            );
        }
        match &node.kind {
            NodeKind::Scalar(_) => {}
            NodeKind::List(items) => {
                let count = |key| schema.get(key).and_then(Value::as_u64).map(|n| n as usize);
                if count("minItems").is_some_and(|least| items.len() < least)
                    || count("maxItems").is_some_and(|most| items.len() > most)
                {
                    problems.push(
                        node.line,
                        path,
                        format!("found {} values; allowed: {}", items.len(), self.describe(schema)),
                    );
                }
                if let Some(of) = schema.get("items") {
                    for (index, item) in items.iter().enumerate() {
                        self.node(item, of, &join(path, &index.to_string()), problems);
                    }
                }
            }
            NodeKind::Map(_) => self.map(node, schema, path, problems),
        }
    }

    fn map(&self, node: &Node, schema: &Value, path: &str, problems: &mut Problems) {
        let NodeKind::Map(entries) = &node.kind else { return };
        let properties = schema.get("properties").and_then(Value::as_object);
        let closed = schema.get("additionalProperties") == Some(&Value::Bool(false));
        for entry in entries {
            let key_path = join(path, &entry.key);
            match properties.and_then(|known| known.get(&entry.key)) {
                Some(of) => self.node(&entry.value, of, &key_path, problems),
                None if closed => {
                    let known: Vec<&str> =
                        properties.into_iter().flat_map(|map| map.keys()).map(String::as_str).collect();
                    problems.push(
                        entry.line,
                        &key_path,
                        format!("unknown key{}; allowed: {}", self.key_hint(&entry.key, &known), known.join(", ")),
                    );
                }
                None => {
                    if let Some(of) = schema.get("additionalProperties").filter(|of| of.is_object()) {
                        self.node(&entry.value, of, &key_path, problems);
                    }
                }
            }
        }
        for key in schema.get("required").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str) {
            if !entries.iter().any(|entry| entry.key == key) {
                let allowed = properties.and_then(|known| known.get(key)).map_or(String::new(), |of| self.describe(of));
                problems.push(node.line, &join(path, key), format!("missing; allowed: {allowed}"));
            }
        }
    }

    /// A value that may be one of several things. When only one of them is of its type, its problems are reported.
    fn any_of(&self, node: &Node, schema: &Value, variants: &[Value], path: &str, problems: &mut Problems) {
        let mut of_its_type = Vec::new();
        for variant in variants {
            let mut found = Problems::default();
            self.node(node, variant, path, &mut found);
            if found.is_empty() {
                return;
            }
            if !matches!(node.kind, NodeKind::Scalar(_)) && matches_type(node, self.resolve(variant)) {
                of_its_type.push(found);
            }
        }
        if let [only] = of_its_type.as_slice() {
            problems.0.extend(only.0.iter().cloned());
        } else {
            let hint = self.hint(node, schema, path);
            problems.push(node.line, path, format!("found {}; allowed: {}{hint}", found(node), self.describe(schema)));
        }
    }

    fn resolve(&self, schema: &'a Value) -> &'a Value {
        let Some(reference) = schema.get("$ref").and_then(Value::as_str) else { return schema };
        reference.strip_prefix('#').and_then(|pointer| self.root.pointer(pointer)).unwrap_or(schema)
    }

    /// The values that the schema allows, as text.
    fn describe(&self, schema: &Value) -> String {
        let schema = self.resolve_owned(schema);
        if let Some(variants) = variants(&schema) {
            let texts: Vec<String> =
                variants.iter().map(|v| self.describe(v)).filter(|text| text != "nothing").collect();
            return texts.join(", or ");
        }
        if let Some(values) = enum_values(&schema) {
            return if values.len() == 1 { values[0].clone() } else { format!("one of {}", values.join(", ")) };
        }
        match types(&schema).first().copied() {
            Some("integer") => format!("a whole number{}", bounds(&schema)),
            Some("number") => match schema.get("description").and_then(Value::as_str) {
                Some(text) if text.starts_with("a ") => text.to_owned(),
                _ => format!("a number{}", bounds(&schema)),
            },
            Some("boolean") => "true or false".to_owned(),
            Some("string") => match (schema.get("format"), schema.get("description").and_then(Value::as_str)) {
                (Some(_), Some(rule)) => rule.to_owned(),
                _ => "text".to_owned(),
            },
            Some("array") => match schema.get("description").and_then(Value::as_str) {
                Some(text) if text.starts_with("a ") => text.to_owned(),
                _ => match schema.get("items") {
                    Some(of) => format!("a list of {}", self.describe(of).trim_start_matches("a ")),
                    None => "a list".to_owned(),
                },
            },
            Some("object") => match schema.get("properties").and_then(Value::as_object) {
                Some(known) => format!("keys {}", known.keys().map(String::as_str).collect::<Vec<_>>().join(", ")),
                None => "keys with values".to_owned(),
            },
            Some("null") => "nothing".to_owned(),
            _ => "any value".to_owned(),
        }
    }

    fn resolve_owned(&self, schema: &Value) -> Value {
        let Some(reference) = schema.get("$ref").and_then(Value::as_str) else { return schema.clone() };
        reference.strip_prefix('#').and_then(|pointer| self.root.pointer(pointer)).unwrap_or(schema).clone()
    }

    /// The key that does what `key` does elsewhere, or the nearest of those that are known here.
    fn key_hint(&self, key: &str, known: &[&str]) -> String {
        let Some(OtherName { paths, note, .. }) = self.names.key(key) else { return nearest(key, known) };
        let named = paths.iter().find(|path| self.has(path));
        match (named, paths.is_empty()) {
            (Some(path), _) if note.is_empty() => format!("; did you mean `{path}`?"),
            (Some(path), _) => format!("; did you mean `{path}`? ({note})"),
            (None, true) => format!("; {note}"),
            (None, false) => nearest(key, known),
        }
    }

    /// Whether the schema has a key at this dotted path.
    fn has(&self, path: &str) -> bool {
        let mut at = self.root;
        for key in path.split('.') {
            let some = variants(at).into_iter().flatten().chain([at]).map(|schema| self.resolve(schema));
            let Some(next) = some.filter_map(|schema| schema.get("properties")?.get(key)).next() else { return false };
            at = self.resolve(next);
        }
        true
    }

    /// The nearest allowed value, or why a variable is not allowed.
    fn hint(&self, node: &Node, schema: &Value, path: &str) -> String {
        let NodeKind::Scalar(value) = &node.kind else { return String::new() };
        let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        if let Some(other) = self.names.value(path, &text) {
            return format!("; did you mean {other}?");
        }
        let Value::String(text) = value else { return String::new() };
        if text.contains("${") {
            return "; a variable can stand in a text alone, use --set for other values".to_owned();
        }
        let mut allowed = Vec::new();
        self.collect_values(schema, &mut allowed);
        nearest(text, &allowed.iter().map(String::as_str).collect::<Vec<_>>())
    }

    fn collect_values(&self, schema: &Value, into: &mut Vec<String>) {
        let schema = self.resolve_owned(schema);
        into.extend(enum_values(&schema).into_iter().flatten());
        for variant in variants(&schema).into_iter().flatten() {
            self.collect_values(variant, into);
        }
    }
}

/// `; did you mean ...?` for the allowed value that is nearest to `text`, if one is near.
pub(crate) fn nearest(text: &str, allowed: &[&str]) -> String {
    allowed
        .iter()
        .map(|word| (strsim::damerau_levenshtein(text, word), word))
        .filter(|(distance, word)| *distance <= word.len().min(text.len()).div_ceil(3) || word.starts_with(text))
        // A word that it is the beginning of is nearer than any other.
        .min_by_key(|(distance, word)| (!word.starts_with(text), *distance))
        .map_or(String::new(), |(_, word)| format!("; did you mean `{word}`?"))
}

fn variants(schema: &Value) -> Option<&[Value]> {
    schema.get("anyOf").or_else(|| schema.get("oneOf")).and_then(Value::as_array).map(Vec::as_slice)
}

/// The values of an enumeration.
fn enum_values(schema: &Value) -> Option<Vec<String>> {
    let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    if let Some(one) = schema.get("const") {
        return Some(vec![text(one)]);
    }
    let all = schema.get("enum")?.as_array()?;
    Some(all.iter().filter(|value| !value.is_null()).map(text).collect())
}

fn types(schema: &Value) -> Vec<&str> {
    match schema.get("type") {
        Some(Value::String(one)) => vec![one],
        Some(Value::Array(all)) => all.iter().filter_map(Value::as_str).collect(),
        _ => Vec::new(),
    }
}

fn matches_type(node: &Node, schema: &Value) -> bool {
    let types = types(schema);
    if types.is_empty() {
        return matches!(node.kind, NodeKind::Scalar(_)) || enum_values(schema).is_none();
    }
    types.iter().any(|name| match (*name, &node.kind) {
        ("null", NodeKind::Scalar(Value::Null))
        | ("boolean", NodeKind::Scalar(Value::Bool(_)))
        | ("number", NodeKind::Scalar(Value::Number(_)))
        | ("string", NodeKind::Scalar(Value::String(_)))
        | ("array", NodeKind::List(_))
        | ("object", NodeKind::Map(_)) => true,
        ("integer", NodeKind::Scalar(Value::Number(number))) => number.is_i64() || number.is_u64(),
        _ => false,
    })
}

fn matches_value(node: &Node, schema: &Value) -> bool {
    let NodeKind::Scalar(value) = &node.kind else {
        return schema.get("enum").is_none() && schema.get("const").is_none();
    };
    if schema.get("const").is_some_and(|only| only != value)
        || schema.get("enum").and_then(Value::as_array).is_some_and(|all| !all.contains(value))
    {
        return false;
    }
    if let Some(number) = value.as_f64() {
        let bound = |key| schema.get(key).and_then(Value::as_f64);
        return bound("minimum").is_none_or(|least| number >= least)
            && bound("exclusiveMinimum").is_none_or(|below| number > below)
            && bound("maximum").is_none_or(|most| number <= most)
            && bound("exclusiveMaximum").is_none_or(|above| number < above);
    }
    match (value.as_str(), schema.get("format").and_then(Value::as_str)) {
        (Some(text), Some(format)) => satisfies_format(format, text),
        _ => true,
    }
}

fn bounds(schema: &Value) -> String {
    let bound = |key| schema.get(key).and_then(Value::as_f64);
    // Bounds that only say how wide the integer type is would be noise.
    let most = bound("maximum").filter(|most| *most < f64::from(u32::MAX));
    let least = match (bound("minimum"), bound("exclusiveMinimum")) {
        (Some(least), _) => Some(format!("of at least {least}")),
        (None, Some(below)) => Some(format!("above {below}")),
        (None, None) => None,
    };
    match (least, most) {
        (Some(least), Some(most)) => format!(" {least} and at most {most}"),
        (Some(least), None) => format!(" {least}"),
        (None, Some(most)) => format!(" of at most {most}"),
        (None, None) => String::new(),
    }
}

/// Characters of a text that a message repeats: a file that is no pipeline may be one long text.
const REPEATED: usize = 120;

fn shortened(text: &str) -> String {
    match text.char_indices().nth(REPEATED) {
        None => format!("{text:?}"),
        Some((end, _)) => format!("{:?}... ({} characters)", &text[..end], text.chars().count()),
    }
}

fn found(node: &Node) -> String {
    match &node.kind {
        NodeKind::Scalar(Value::Null) => "nothing".to_owned(),
        NodeKind::Scalar(Value::String(text)) => format!("the text {}", shortened(text)),
        NodeKind::Scalar(other) => other.to_string(),
        NodeKind::List(_) => "a list".to_owned(),
        NodeKind::Map(_) => "keys with values".to_owned(),
    }
}

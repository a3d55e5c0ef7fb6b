//! A YAML document as a tree in which every node knows its line.

use std::fmt;

use serde::de::{self, Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};
use serde_saphyr::Spanned;
use serde_saphyr::options::DuplicateKeyPolicy;

use super::Problems;

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Node {
    /// `None` for what did not come from the file.
    pub line: Option<u64>,
    pub kind: NodeKind,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum NodeKind {
    /// Null, a bool, a number or a text.
    Scalar(Value),
    List(Vec<Node>),
    Map(Vec<Entry>),
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Entry {
    pub line: Option<u64>,
    pub key: String,
    pub value: Node,
}

impl Node {
    pub fn parse(text: &str) -> Result<Self, Problems> {
        // Far above any real pipeline, far below what an alias bomb needs to hurt.
        let options = serde_saphyr::options! {
            duplicate_keys: DuplicateKeyPolicy::LastWins,
            strict_booleans: true,
            with_snippet: false,
            budget: serde_saphyr::budget! {
                max_events: 200_000,
                max_nodes: 100_000,
                max_depth: 64,
                max_aliases: 1_000,
                max_documents: 1,
            },
            alias_limits: serde_saphyr::alias_limits! { max_total_replayed_events: 10_000 },
        };
        if text.trim().is_empty() {
            return Err(Problems::one(
                None,
                "",
                "the file is empty; it must hold a pipeline (version, name, model, data)",
            ));
        }
        let tree: Spanned<NodeKind> = serde_saphyr::from_str_with_options(text, options).map_err(|error| {
            let line = error.location().map(|location| location.line());
            Problems::one(line, "", format!("YAML syntax: {}", first_line(&error.to_string())))
        })?;
        let tree = Self::from(tree);
        let mut problems = Problems::default();
        tree.duplicate_keys("", &mut problems);
        if problems.is_empty() { Ok(tree) } else { Err(problems) }
    }

    /// Replaces the value at a dotted path: `train.batch=64`. What is on the right is read as YAML.
    pub fn set(&mut self, pair: &str) -> Result<(), Problems> {
        let usage = |message: String| Problems::one(None, "--set", message);
        let (path, value) = pair
            .split_once('=')
            .ok_or_else(|| usage(format!("found {pair:?}; allowed: path=value, as in train.batch=64")))?;
        let value = if value.trim().is_empty() {
            NodeKind::Scalar(Value::Null)
        } else {
            Self::parse(value).map_err(|error| usage(format!("{path}: {error}")))?.kind
        };
        self.put(path, value).ok_or_else(|| usage(format!("{path}: no such key")))
    }

    /// Replaces the value at a dotted path; nothing where there is no such key.
    pub fn put(&mut self, path: &str, value: NodeKind) -> Option<()> {
        let mut node = self;
        for key in path.split('.') {
            node = node.child_or_insert(key)?;
        }
        *node = Self { line: None, kind: value.without_lines() };
        Some(())
    }

    /// Removes what is at a dotted path, if anything is.
    pub fn remove(&mut self, path: &str) {
        let (parent, key) = path.rsplit_once('.').unwrap_or(("", path));
        let mut node = self;
        for key in parent.split('.').filter(|key| !key.is_empty()) {
            let NodeKind::Map(entries) = &mut node.kind else { return };
            let Some(entry) = entries.iter_mut().find(|entry| entry.key == key) else { return };
            node = &mut entry.value;
        }
        if let NodeKind::Map(entries) = &mut node.kind {
            entries.retain(|entry| entry.key != key);
        }
    }

    fn child_or_insert(&mut self, key: &str) -> Option<&mut Self> {
        if self.kind == NodeKind::Scalar(Value::Null) {
            self.kind = NodeKind::Map(Vec::new());
        }
        match &mut self.kind {
            NodeKind::Map(entries) => {
                let at = entries.iter().position(|entry| entry.key == key).unwrap_or_else(|| {
                    let value = Self { line: None, kind: NodeKind::Scalar(Value::Null) };
                    entries.push(Entry { line: None, key: key.to_owned(), value });
                    entries.len() - 1
                });
                Some(&mut entries[at].value)
            }
            NodeKind::List(items) => items.get_mut(key.parse::<usize>().ok()?),
            NodeKind::Scalar(_) => None,
        }
    }

    fn child(&self, key: &str) -> Option<(Option<u64>, &Self)> {
        match &self.kind {
            NodeKind::Map(entries) => {
                entries.iter().find(|entry| entry.key == key).map(|entry| (entry.line, &entry.value))
            }
            NodeKind::List(items) => items.get(key.parse::<usize>().ok()?).map(|item| (item.line, item)),
            NodeKind::Scalar(_) => None,
        }
    }

    /// The line of the node at a dotted path, or of its nearest parent.
    pub fn line_of(&self, path: &str) -> Option<u64> {
        let mut at = (self.line, self);
        for key in path.split('.') {
            match at.1.child(key) {
                Some(next) => at = next,
                None => break,
            }
        }
        at.0
    }

    /// The node at a dotted path.
    pub fn find(&self, path: &str) -> Option<&Self> {
        path.split('.').try_fold(self, |node, key| Some(node.child(key)?.1))
    }

    /// The keys of a map; none of anything else.
    pub fn keys(&self) -> Vec<&str> {
        match &self.kind {
            NodeKind::Map(entries) => entries.iter().map(|entry| entry.key.as_str()).collect(),
            NodeKind::Scalar(_) | NodeKind::List(_) => Vec::new(),
        }
    }

    pub fn to_json(&self) -> Value {
        match &self.kind {
            NodeKind::Scalar(value) => value.clone(),
            NodeKind::List(items) => items.iter().map(Self::to_json).collect(),
            NodeKind::Map(entries) => Value::Object(
                entries.iter().map(|entry| (entry.key.clone(), entry.value.to_json())).collect::<Map<_, _>>(),
            ),
        }
    }

    /// Calls `f` with line, path and text of every text value.
    pub fn for_each_text(&self, f: &mut impl FnMut(Option<u64>, &str, &str)) {
        self.walk("", &mut |node, path| {
            if let NodeKind::Scalar(Value::String(text)) = &node.kind {
                f(node.line, path, text);
            }
        });
    }

    fn duplicate_keys(&self, path: &str, problems: &mut Problems) {
        self.walk(path, &mut |node, path| {
            let NodeKind::Map(entries) = &node.kind else { return };
            for (index, entry) in entries.iter().enumerate() {
                if let Some(first) = entries[..index].iter().find(|earlier| earlier.key == entry.key) {
                    let at = first.line.map_or(String::new(), |line| format!(" at line {line}"));
                    problems.push(entry.line, &join(path, &entry.key), format!("given twice; the first is{at}"));
                }
            }
        });
    }

    fn walk(&self, path: &str, f: &mut impl FnMut(&Self, &str)) {
        f(self, path);
        match &self.kind {
            NodeKind::Scalar(_) => {}
            NodeKind::List(items) => {
                for (index, item) in items.iter().enumerate() {
                    item.walk(&join(path, &index.to_string()), f);
                }
            }
            NodeKind::Map(entries) => {
                for entry in entries {
                    entry.value.walk(&join(path, &entry.key), f);
                }
            }
        }
    }
}

impl NodeKind {
    /// A value that did not come from a file.
    pub fn of_json(value: &Value) -> Self {
        let node = |value: &Value| Node { line: None, kind: Self::of_json(value) };
        match value {
            Value::Array(items) => Self::List(items.iter().map(node).collect()),
            Value::Object(map) => Self::Map(
                map.iter().map(|(key, value)| Entry { line: None, key: key.clone(), value: node(value) }).collect(),
            ),
            scalar => Self::Scalar(scalar.clone()),
        }
    }

    fn without_lines(self) -> Self {
        let strip = |node: Node| Node { line: None, kind: node.kind.without_lines() };
        match self {
            Self::Scalar(value) => Self::Scalar(value),
            Self::List(items) => Self::List(items.into_iter().map(strip).collect()),
            Self::Map(entries) => Self::Map(
                entries.into_iter().map(|entry| Entry { line: None, value: strip(entry.value), ..entry }).collect(),
            ),
        }
    }
}

pub(super) fn join(path: &str, key: &str) -> String {
    if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") }
}

fn first_line(message: &str) -> &str {
    message.lines().next().unwrap_or_default()
}

impl From<Spanned<NodeKind>> for Node {
    fn from(spanned: Spanned<NodeKind>) -> Self {
        Self { line: line(&spanned), kind: spanned.value }
    }
}

fn line<T>(spanned: &Spanned<T>) -> Option<u64> {
    Some(spanned.referenced.line()).filter(|line| *line > 0)
}

impl<'de> Deserialize<'de> for NodeKind {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(KindVisitor)
    }
}

struct KindVisitor;

impl<'de> Visitor<'de> for KindVisitor {
    type Value = NodeKind;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a YAML value")
    }

    fn visit_unit<E>(self) -> Result<NodeKind, E> {
        Ok(NodeKind::Scalar(Value::Null))
    }

    fn visit_bool<E>(self, value: bool) -> Result<NodeKind, E> {
        Ok(NodeKind::Scalar(Value::Bool(value)))
    }

    fn visit_i64<E>(self, value: i64) -> Result<NodeKind, E> {
        Ok(NodeKind::Scalar(value.into()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<NodeKind, E> {
        Ok(NodeKind::Scalar(value.into()))
    }

    fn visit_f64<E: de::Error>(self, value: f64) -> Result<NodeKind, E> {
        Number::from_f64(value)
            .map(|number| NodeKind::Scalar(Value::Number(number)))
            .ok_or_else(|| E::custom("a number must be finite"))
    }

    fn visit_str<E>(self, value: &str) -> Result<NodeKind, E> {
        Ok(NodeKind::Scalar(Value::String(value.to_owned())))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<NodeKind, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = seq.next_element::<Spanned<NodeKind>>()? {
            items.push(Node::from(item));
        }
        Ok(NodeKind::List(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<NodeKind, A::Error> {
        let mut entries = Vec::new();
        while let Some((key, value)) = map.next_entry::<Spanned<String>, Spanned<NodeKind>>()? {
            entries.push(Entry { line: line(&key), key: key.value, value: value.into() });
        }
        Ok(NodeKind::Map(entries))
    }
}

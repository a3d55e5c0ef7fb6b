//! YAML for people: values in block style, the keys in a given order, each with its comment.

use serde_json::{Map, Number, Value};

use super::node::join;
use crate::text::ByteSize;

/// The column in which comments begin.
const COMMENT_COLUMN: usize = 33;
/// A section without comments inside is written on one line, unless the line would be longer.
const MAX_LINE: usize = 80;

/// A comment on a key of a file. The keys of a section are written in the order of their notes.
#[derive(Clone, Debug, Default)]
pub struct Note {
    /// The dotted path of the key.
    pub path: String,
    /// The comment behind the value.
    pub comment: String,
    /// The lines of comment above the key.
    pub above: Vec<String>,
    /// A value to try, which is written as a comment where the key has none.
    pub example: String,
    /// The value as the lines of a folded text, where that reads better than the value itself.
    pub folded: Vec<String>,
}

impl Note {
    pub fn new(path: &str, comment: impl Into<String>) -> Self {
        Self { path: path.to_owned(), comment: comment.into(), ..Self::default() }
    }

    pub fn example(self, example: impl Into<String>) -> Self {
        Self { example: example.into(), ..self }
    }

    pub fn above(self, above: Vec<String>) -> Self {
        Self { above, ..self }
    }

    pub fn folded(self, folded: Vec<String>) -> Self {
        Self { folded, ..self }
    }
}

/// Removes what need not be written: keys without a value, and keys that have the default value and no note.
pub(crate) fn without_defaults(map: &mut Map<String, Value>, defaults: &Value, notes: &[Note]) {
    prune(map, defaults, notes, "");
}

fn prune(map: &mut Map<String, Value>, defaults: &Value, notes: &[Note], path: &str) {
    map.retain(|key, value| {
        let path = join(path, key);
        let default = defaults.get(key).unwrap_or(&Value::Null);
        if let Value::Object(section) = value {
            prune(section, default, notes, &path);
            return !section.is_empty();
        }
        !value.is_null() && (value != default || notes.iter().any(|note| note.path == path))
    });
}

/// The text of a file with these keys and values.
pub(crate) fn write(file: &Map<String, Value>, notes: &[Note]) -> String {
    let mut writer = Writer { notes, text: String::new() };
    writer.section(file, "", 0);
    writer.text
}

struct Writer<'a> {
    notes: &'a [Note],
    text: String,
}

impl Writer<'_> {
    fn section(&mut self, section: &Map<String, Value>, path: &str, indent: usize) {
        for key in self.keys(section, path) {
            let path = join(path, &key);
            let note = self.notes.iter().find(|note| note.path == path).cloned().unwrap_or_default();
            if let Some(value) = section.get(&key) {
                note.above.iter().for_each(|line| self.line(indent, &format!("# {line}"), ""));
                self.entry(&key, value, &note, &path, indent);
            } else if !note.example.is_empty() {
                self.line(indent, &format!("# {key}: {}", note.example), &note.comment);
            }
        }
    }

    /// The keys that have notes in the order of the notes, then the others.
    fn keys(&self, section: &Map<String, Value>, path: &str) -> Vec<String> {
        let inside = |note: &Note| match path {
            "" => Some(note.path.clone()),
            _ => note.path.strip_prefix(path)?.strip_prefix('.').map(str::to_owned),
        };
        let noted = self.notes.iter().filter_map(inside);
        let noted = noted.map(|path| path.split('.').next().unwrap_or_default().to_owned());
        let mut keys: Vec<String> = Vec::new();
        for key in noted.chain(section.keys().cloned()) {
            if !keys.contains(&key) {
                keys.push(key);
            }
        }
        keys
    }

    fn entry(&mut self, key: &str, value: &Value, note: &Note, path: &str, indent: usize) {
        let key = scalar(key);
        if !note.folded.is_empty() {
            self.line(indent, &format!("{key}: >-"), &note.comment);
            note.folded.iter().for_each(|line| self.line(indent + 2, line, ""));
            return;
        }
        let line = format!("{key}: {}", self.inline(value, path));
        match value {
            Value::Object(section) if self.has_comments(path) || indent + line.len() > MAX_LINE => {
                self.line(indent, &format!("{key}:"), &note.comment);
                self.section(section, path, indent + 2);
            }
            _ => self.line(indent, &line, &note.comment),
        }
    }

    /// Whether there are comments inside a section.
    fn has_comments(&self, path: &str) -> bool {
        let is_inside = |note: &&Note| note.path.strip_prefix(path).is_some_and(|rest| rest.starts_with('.'));
        self.notes.iter().filter(is_inside).any(|note| !note.comment.is_empty() || !note.above.is_empty())
    }

    fn inline(&self, value: &Value, path: &str) -> String {
        match value {
            Value::Object(section) => {
                let keys = self.keys(section, path);
                let pairs = keys.iter().filter_map(|key| {
                    Some(format!("{}: {}", scalar(key), self.inline(section.get(key)?, &join(path, key))))
                });
                format!("{{{}}}", pairs.collect::<Vec<_>>().join(", "))
            }
            Value::Array(items) => {
                let items: Vec<String> = items.iter().map(|item| self.inline(item, path)).collect();
                format!("[{}]", items.join(", "))
            }
            Value::String(text) => scalar(text),
            Value::Number(number) => decimal(number),
            Value::Bool(_) | Value::Null => value.to_string(),
        }
    }

    fn line(&mut self, indent: usize, text: &str, comment: &str) {
        let text = format!("{:indent$}{text}", "");
        match comment {
            "" => self.text += &text,
            comment => self.text += &format!("{:<COMMENT_COLUMN$}# {comment}", format!("{text}  ")),
        }
        self.text.push('\n');
    }
}

/// A text without quotes where YAML reads it as that text, inside of lists too.
fn scalar(text: &str) -> String {
    let is_plain = |letter: char| letter.is_alphanumeric() || matches!(letter, '/' | '.' | '_' | '-');
    let starts_plain = text.starts_with(|letter: char| letter.is_alphabetic() || matches!(letter, '/' | '.' | '_'));
    let is_text = (starts_plain || text.parse::<ByteSize>().is_ok())
        && text.chars().all(is_plain)
        && text.parse::<f64>().is_err()
        && !["true", "false", "null", "yes", "no", "on", "off", "y", "n"].contains(&text.to_ascii_lowercase().as_str());
    if is_text { text.to_owned() } else { Value::from(text).to_string() }
}

/// A number as people write it: `3`, `0.1`, `2.0e-5`.
fn decimal(number: &Number) -> String {
    let Some(value) = number.as_f64().filter(|_| number.is_f64()) else { return number.to_string() };
    let text = match value.abs() {
        size if size > 0.0 && size < 1.0e-3 => format!("{value:e}"),
        _ => return value.to_string(),
    };
    if text.contains('.') { text } else { text.replacen('e', ".0e", 1) }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn texts_that_mean_something_are_quoted() {
        for (text, want) in [
            ("data/train.jsonl", "data/train.jsonl"),
            ("../x", "../x"),
            ("24g", "24g"),
            ("no", "\"no\""),
            ("a b", "\"a b\""),
            ("a: b", "\"a: b\""),
            ("1", "\"1\""),
            ("2025-11-27", "\"2025-11-27\""),
            ("-x", "\"-x\""),
            ("$HOME\"", "\"$HOME\\\"\""),
        ] {
            assert_eq!(scalar(text), want);
        }
    }

    #[test]
    fn numbers_as_people_write_them() {
        for (number, want) in
            [(json!(3), "3"), (json!(3.0), "3"), (json!(0.12), "0.12"), (json!(2.0e-5), "2.0e-5"), (json!(0.0), "0")]
        {
            assert_eq!(Writer { notes: &[], text: String::new() }.inline(&number, ""), want);
        }
    }

    #[test]
    fn notes_decide_order_comments_and_defaults() {
        let value = json!({"a": null, "b": 1, "c": {"x": 1, "v": "z", "w": 0}, "d": [1, "u v"], "e": {"f": 2.5}});
        let Value::Object(mut file) = value else { panic!() };
        let notes = [
            Note::new("c.v", "why"),
            Note::new("c.q", "could be").example("7"),
            Note::new("c.x", ""),
            Note::new("b", "").above(vec!["one".to_owned()]),
            Note::new("d", "text").folded(vec!["1".to_owned(), "u v".to_owned()]),
        ];
        without_defaults(&mut file, &json!({"b": 1, "c": {"w": 0, "x": 1}, "e": {"f": 3}}), &notes);
        let text = write(&file, &notes);
        let want = [
            "c:",
            "  v: z                           # why",
            "  # q: 7                         # could be",
            "  x: 1",
            "# one",
            "b: 1",
            "d: >-                            # text",
            "  1",
            "  u v",
            "e: {f: 2.5}",
            "",
        ];
        assert_eq!(text, want.join("\n"));
    }
}

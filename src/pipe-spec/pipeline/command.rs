//! `command`: a program of the user in place of our trainer, with values of the attempt in its arguments.

use std::collections::BTreeMap;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

use super::{DEFAULT_SEED, Memory, Precision};

/// A program of the user, and what `pipe` may change about it.
#[derive(Clone, Debug, PartialEq)]
pub struct Command {
    pub line: CommandLine,
    pub vars: BTreeMap<String, VarValue>,
    pub train: CommandTrain,
    pub memory: Memory,
    pub checkpoints: Option<Checkpoints>,
    pub metrics: MetricsFormat,
}

/// The settings of `train` that a command gets.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CommandTrain {
    pub batch: u32,
    pub effective_batch: u32,
    pub precision: Precision,
    #[serde(skip_serializing_if = "is_default_seed")]
    pub seed: u64,
}

fn is_default_seed(seed: &u64) -> bool {
    *seed == DEFAULT_SEED
}

impl CommandTrain {
    /// The keys that a command has.
    pub const KEYS: [&str; 5] = ["batch", "accum", "effective_batch", "precision", "seed"];
}

/// A program and its arguments: a list, or one text that is cut into words as a shell does.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct CommandLine(pub Vec<String>);

impl CommandLine {
    /// The words of a text, as a shell cuts it; none where a quote is left open.
    pub fn split(text: &str) -> Self {
        Self(shlex::split(text).unwrap_or_default())
    }

    /// A word as `split` reads it back.
    pub fn quoted(word: &str) -> String {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "_-./=:,+@%{}".contains(c);
        match !word.is_empty() && word.chars().all(is_plain) {
            true => word.to_owned(),
            // A zero byte, which no argument can have, is the only thing that cannot be quoted.
            false => shlex::try_quote(word).map_or_else(|_| word.replace('\0', ""), |quoted| quoted.into_owned()),
        }
    }

    /// A word in which only known placeholders are replaced: other names between braces get a second pair.
    pub fn escape_braces(word: &str) -> String {
        let text = |piece: &Piece<'_>| match piece {
            Piece::Text(text) => (*text).to_owned(),
            Piece::Placeholder(name) if PLACEHOLDERS.contains(name) => format!("{{{name}}}"),
            Piece::Placeholder(name) => format!("{{{{{name}}}}}"),
        };
        pieces(word).iter().map(text).collect()
    }
}

impl<'de> Deserialize<'de> for CommandLine {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match Value::deserialize(deserializer)? {
            // The checks refuse a text with an open quote, as they do a command without words.
            Value::String(text) => Ok(Self::split(&text)),
            words => {
                let words: Vec<VarValue> = serde_json::from_value(words).map_err(serde::de::Error::custom)?;
                Ok(Self(words.into_iter().map(|word| word.0).collect()))
            }
        }
    }
}

impl JsonSchema for CommandLine {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "CommandLine".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "anyOf": [
                { "type": "string", "minLength": 1, "description": "a command line" },
                { "type": "array", "items": generator.subschema_for::<VarValue>(), "minItems": 1, "description": "a list of words" }
            ]
        })
    }
}

/// A text, a number or a truth value, as text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct VarValue(pub String);

impl<'de> Deserialize<'de> for VarValue {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(Self(match Value::deserialize(deserializer)? {
            Value::String(text) => text,
            other => other.to_string(),
        }))
    }
}

impl JsonSchema for VarValue {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "VarValue".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": ["string", "number", "boolean"], "description": "a text or a number" })
    }
}

/// How the metrics of a command are read from its log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum MetricsFormat {
    None,
    /// Lines such as `{"step": 3, "loss": 1.5}`.
    #[default]
    Json,
    Transformers,
    Lightning,
    Ultralytics,
    Keras,
    /// Regular expressions with groups named `step`, `steps`, `loss` and so on.
    Patterns(Vec<String>),
}

impl MetricsFormat {
    const NAMED: [(&str, Self); 6] = [
        ("none", Self::None),
        ("json", Self::Json),
        ("transformers", Self::Transformers),
        ("lightning", Self::Lightning),
        ("ultralytics", Self::Ultralytics),
        ("keras", Self::Keras),
    ];
}

impl Serialize for MetricsFormat {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Patterns(patterns) => patterns.serialize(serializer),
            named => {
                let found = Self::NAMED.iter().find(|(_, format)| format == named);
                found.map_or("none", |(name, _)| *name).serialize(serializer)
            }
        }
    }
}

impl<'de> Deserialize<'de> for MetricsFormat {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match Value::deserialize(deserializer)? {
            Value::String(text) => {
                let found = Self::NAMED.into_iter().find(|(name, _)| *name == text);
                found
                    .map(|(_, format)| format)
                    .ok_or_else(|| serde::de::Error::custom(format!("{text} is no format of metrics")))
            }
            patterns => serde_json::from_value(patterns).map(Self::Patterns).map_err(serde::de::Error::custom),
        }
    }
}

impl JsonSchema for MetricsFormat {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "MetricsFormat".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        let names: Vec<&str> = Self::NAMED.iter().map(|(name, _)| *name).collect();
        json_schema!({
            "anyOf": [
                { "enum": names },
                { "type": "array", "items": { "type": "string" }, "minItems": 1, "description": "a list of regular expressions" }
            ]
        })
    }
}

/// Where a command keeps what it can resume from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Checkpoints {
    /// A folder below `{run}`.
    pub folder: String,
    /// Files or folders in it, such as `checkpoint-*`. The newest is the one with the largest number in its name.
    pub pattern: String,
    /// A file that a checkpoint has once it is complete, such as `trainer_state.json`. Default: any that is not empty is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub complete: Option<String>,
}

impl Default for Checkpoints {
    fn default() -> Self {
        Self { folder: ".".to_owned(), pattern: "checkpoint-*".to_owned(), complete: None }
    }
}

/// Values of an attempt that stand in a command as `{name}`, besides `{vars.NAME}`.
pub const PLACEHOLDERS: [&str; 8] =
    ["batch", "accum", "effective_batch", "run", "attempt", "resume", "precision", "seed"];

/// A piece of a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Piece<'a> {
    Text(&'a str),
    /// `{name}`.
    Placeholder(&'a str),
}

/// The pieces of a word. `{{name}}` is the text `{name}`; anything else between braces, as in JSON, is text, and so is `${NAME}`.
pub fn pieces(word: &str) -> Vec<Piece<'_>> {
    let mut pieces = Vec::new();
    let mut rest = word;
    while let Some(at) = rest.find('{') {
        let (before, from) = rest.split_at(at);
        let is_variable = before.ends_with('$');
        let name = name_at(&from[1..]).filter(|name| from[1 + name.len()..].starts_with('}') && !is_variable);
        let (piece, length) = match (escaped(from), name) {
            (Some(text), _) => (Piece::Text(text), text.len() + 2),
            (None, Some(name)) => (Piece::Placeholder(name), name.len() + 2),
            (None, None) => (Piece::Text(&from[..1]), 1),
        };
        pieces.extend((!before.is_empty()).then_some(Piece::Text(before)));
        pieces.push(piece);
        rest = &from[length..];
    }
    pieces.extend((!rest.is_empty()).then_some(Piece::Text(rest)));
    pieces
}

/// `{name}`, where the text begins with `{{name}}`.
fn escaped(text: &str) -> Option<&str> {
    let inner = text.strip_prefix("{{")?;
    let name = name_at(inner)?;
    inner[name.len()..].starts_with("}}").then(|| &text[1..name.len() + 3])
}

/// The name that a text begins with.
fn name_at(text: &str) -> Option<&str> {
    let end = text.find(|c: char| !c.is_ascii_alphanumeric() && c != '_' && c != '.').unwrap_or(text.len());
    Some(&text[..end]).filter(|name| name.starts_with(|first: char| first.is_ascii_alphabetic()))
}

impl Command {
    /// The placeholders of the command that there are no values for.
    pub fn unknown_placeholders(&self) -> impl Iterator<Item = &str> {
        let known = |name: &str| match name.strip_prefix("vars.") {
            Some(var) => self.vars.contains_key(var),
            None => PLACEHOLDERS.contains(&name),
        };
        self.line.0.iter().flat_map(|word| pieces(word)).filter_map(move |piece| match piece {
            Piece::Placeholder(name) if !known(name) => Some(name),
            _ => None,
        })
    }

    pub fn resumes(&self) -> bool {
        self.names("resume")
    }

    /// Whether its words have something that a retry changes. Its program may also read the variable.
    pub fn has_batch(&self) -> bool {
        self.names("batch") || self.names("accum")
    }

    /// Whether its words show that it keeps its effective batch with a smaller batch: they have `{accum}`, or the size of a step from
    /// which it computes that itself, or name the variable of one of them.
    pub fn accumulates(&self) -> bool {
        let is_named = |variable: &str| self.line.0.iter().any(|word| word.contains(variable));
        self.names("accum")
            || self.names("effective_batch")
            || is_named("PIPE_ACCUM")
            || is_named("PIPE_EFFECTIVE_BATCH")
    }

    fn names(&self, placeholder: &str) -> bool {
        self.line.0.iter().any(|word| pieces(word).contains(&Piece::Placeholder(placeholder)))
    }

    /// The words with their values. A word with `{resume}` is left out where there is nothing to resume from, and the option
    /// before it where the word is nothing else.
    pub fn words(&self, value: impl Fn(&str) -> String) -> Vec<String> {
        let mut words: Vec<String> = Vec::new();
        for word in &self.line.0 {
            let pieces = pieces(word);
            // A word of several words is a script of its own.
            let resumes = pieces.contains(&Piece::Placeholder("resume")) && !word.contains(char::is_whitespace);
            if resumes && value("resume").is_empty() {
                if pieces.len() == 1 && words.last().is_some_and(|last| last.starts_with('-')) {
                    words.pop();
                }
                continue;
            }
            let text = |piece: &Piece<'_>| match piece {
                Piece::Text(text) => (*text).to_owned(),
                Piece::Placeholder(name) => match name.strip_prefix("vars.").and_then(|var| self.vars.get(var)) {
                    Some(var) => var.0.clone(),
                    None => value(name),
                },
            };
            words.push(pieces.iter().map(text).collect());
        }
        words
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn command(line: &str) -> Command {
        Command {
            line: serde_json::from_value(Value::String(line.to_owned())).unwrap(),
            vars: BTreeMap::from([("lr".to_owned(), VarValue("3e-4".to_owned()))]),
            train: CommandTrain { batch: 8, effective_batch: 32, precision: Precision::Fp32, seed: DEFAULT_SEED },
            memory: Memory::default(),
            checkpoints: None,
            metrics: MetricsFormat::default(),
        }
    }

    fn filled(line: &str, resume: &str) -> String {
        let value = |name: &str| if name == "resume" { resume.to_owned() } else { format!("<{name}>") };
        command(line).words(value).join("|")
    }

    #[test]
    fn words_with_values() {
        for (line, want) in [
            ("python train.py --batch {batch}", "python|train.py|--batch|<batch>"),
            ("a '--lr={vars.lr}' b{accum}c{attempt}", "a|--lr=3e-4|b<accum>c<attempt>"),
            (r#"a '{"x": {"y": 1}}' "{{batch}}" ${HOME} {}"#, r#"a|{"x": {"y": 1}}|{batch}|${HOME}|{}"#),
            (r#"a '{"x":{"y":{batch}}}' {{{batch}}}"#, r#"a|{"x":{"y":<batch>}}|{{batch}}"#),
            ("a --out {run}/x 'two words'", "a|--out|<run>/x|two words"),
        ] {
            assert_eq!(filled(line, ""), want);
        }
    }

    /// Eight times the text takes about eight times as long, and not 64 times.
    #[test]
    fn time_grows_with_the_length_of_the_text() {
        for (text, of_each) in [("{vars.a} ", 2), ("{", 1), ("{{a", 3)] {
            let time = |count: usize| {
                let began = std::time::Instant::now();
                assert_eq!(pieces(&text.repeat(count)).len(), of_each * count);
                began.elapsed()
            };
            let ratio = || time(80_000).as_secs_f64() / time(10_000).as_secs_f64();
            let ratios = [ratio(), ratio(), ratio()];
            assert!(ratios.iter().any(|ratio| *ratio < 30.0), "{text:?}: {ratios:?}");
        }
    }

    #[test]
    fn without_a_checkpoint_nothing_speaks_of_one() {
        for (line, without, with) in [
            ("a --resume {resume} -b", "a|-b", "a|--resume|/c|-b"),
            ("a --resume={resume} b", "a|b", "a|--resume=/c|b"),
            ("a {resume}", "a", "a|/c"),
            ("a -q resume={resume}", "a|-q", "a|-q|resume=/c"),
            ("sh -c 'a --resume \"{resume}\"'", "sh|-c|a --resume \"\"", "sh|-c|a --resume \"/c\""),
        ] {
            assert_eq!((filled(line, ""), filled(line, "/c")), (without.to_owned(), with.to_owned()));
        }
    }

    #[test]
    fn commands_that_keep_their_effective_batch() {
        for (line, want) in [
            ("a --batch {batch} --accum {accum}", true),
            ("megatron --micro-batch-size {batch} --global-batch-size {effective_batch}", true),
            ("sh -c 'a --accum $PIPE_ACCUM'", true),
            ("sh -c 'a --step $PIPE_EFFECTIVE_BATCH'", true),
            ("a --batch {batch}", false),
            ("a --batch {batch} {{accum}}", false),
            ("a", false),
        ] {
            assert_eq!(command(line).accumulates(), want, "{line}");
        }
    }

    #[test]
    fn placeholders_without_a_value_are_found() {
        let found = |line: &str| command(line).unknown_placeholders().map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(found("a {bach} {vars.lr} {vars.no} {{x}} ${Y} {1} {a b}"), ["bach", "vars.no"]);
        assert!(found("a {batch} {accum} {effective_batch} {run} {attempt} {resume} {precision} {seed}").is_empty());
    }
}

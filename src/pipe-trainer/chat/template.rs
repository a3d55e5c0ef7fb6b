//! A model's chat template: where it is kept, and conversations rendered with it.
//!
//! Found and rendered as transformers 5 does it. `spoken` are the ranges that the template marks with `{% generation %}`.

use std::collections::{BTreeMap, BTreeSet};
use std::error::Error as _;
use std::io::{self, Write};
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use minijinja::{Environment, Error, Value};
use serde_json::{Map, Value as Json};

use super::marks;
use super::messages::ChatError;
use super::python::{self, Raised};
use crate::{host, storage};

/// A template for models that are trained from scratch.
pub const CHAT_ML: &str = "\
{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\\n' }}
    {%- if message.role == 'assistant' %}
        {%- generation %}{{- message.content + '<|im_end|>' }}{% endgeneration %}
    {%- else %}
        {{- message.content + '<|im_end|>' }}
    {%- endif %}
    {{- '\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{% endif %}";

/// Bytes of a downloaded file at most.
const LARGEST_FILE: u64 = 16 << 20;

/// Bytes that a template may hold while it renders a conversation: in a loop a text can double with each turn.
const MOST_MEMORY: usize = 512 << 20;
const TOO_MUCH_MEMORY: &str = "the chat template of the model takes more than 512 MiB of memory for one conversation";

const FILE: &str = "chat_template.jinja";
const CONFIG: &str = "tokenizer_config.json";
const TOKENS: &str = "special_tokens_map.json";
/// The special tokens that templates know by name.
const NAMED: [&str; 7] = ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];

pub struct ChatTemplate {
    /// The file that it was read from, for messages.
    name: String,
    environment: Environment<'static>,
    variables: BTreeMap<String, Value>,
    has_marks: bool,
    used: BTreeSet<char>,
}

/// A conversation as text.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Rendered {
    pub text: String,
    /// The byte ranges that the assistant wrote, in order.
    pub spoken: Vec<Range<usize>>,
    /// Whether the template marked them itself.
    pub is_marked: bool,
}

impl ChatTemplate {
    /// The template of the model in `folder`: chat_template.jinja, else `chat_template` in tokenizer_config.json.
    pub fn read(folder: &Path) -> Result<Self, ChatError> {
        let config = read_object(folder, CONFIG)?;
        let tokens = special_tokens(folder, &config)?;
        if let Some(source) = read_text(folder, FILE)? {
            return Self::new(&folder.join(FILE).to_string_lossy(), &source, tokens);
        }
        let named = |list: &Vec<Json>| {
            list.iter().find(|entry| entry["name"] == "default")?["template"].as_str().map(str::to_owned)
        };
        let source = match config.get("chat_template") {
            Some(Json::String(source)) => Some(source.clone()),
            Some(Json::Array(list)) => named(list),
            _ => None,
        };
        let source = source.ok_or_else(|| ChatError::NoTemplate { folder: folder.to_owned() })?;
        Self::new(&folder.join(CONFIG).to_string_lossy(), &source, tokens)
    }

    /// `tokens` are the special tokens by their names, such as `bos_token`.
    pub fn new(
        name: &str,
        source: &str,
        tokens: impl IntoIterator<Item = (String, String)>,
    ) -> Result<Self, ChatError> {
        let source = source.replace("\r\n", "\n").replace('\r', "\n");
        let mut used = BTreeSet::new();
        marks::collect_used(&source, &mut used);
        let (source, has_marks) = marks::replace_tags(&source);
        let mut template = Self {
            name: name.to_owned(),
            environment: python::environment(),
            variables: BTreeMap::new(),
            has_marks,
            used,
        };
        for (name, token) in tokens {
            template.set_variable(&name, &Json::String(token));
        }
        let added = template.environment.add_template_owned(FILE, source);
        added.map_err(|error| template.fail(&error))?;
        Ok(template)
    }

    /// Sets a variable that the template knows, such as `enable_thinking`.
    pub fn set_variable(&mut self, name: &str, value: &Json) {
        marks::collect_used_in(value, &mut self.used);
        self.variables.insert(name.to_owned(), Value::from_serialize(value));
    }

    /// Whether it marks the assistant's text itself.
    pub fn has_marks(&self) -> bool {
        self.has_marks
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// Runs the template with these variables and those of its own.
    pub(super) fn run(&self, mut variables: BTreeMap<String, Value>, output: &mut impl Write) -> Result<(), ChatError> {
        variables.extend(self.variables.clone());
        let compiled = self.environment.get_template(FILE).map_err(|error| self.fail(&error))?;
        // A template must not end the training: minijinja panics at some operations, such as `''[::-1]`.
        let run = || compiled.render_captured_to(Value::from(variables), output).map(drop);
        let bounded = || host::bounded(MOST_MEMORY, TOO_MUCH_MEMORY, run);
        let result = catch_unwind(AssertUnwindSafe(bounded)).map_err(|_| self.broken("the template engine failed"))?;
        result.map_err(|error| self.fail(&error))
    }

    /// Characters of the template and its variables that could be taken for marks.
    pub(super) fn used(&self) -> &BTreeSet<char> {
        &self.used
    }

    /// `eos_token`; empty where it is not known.
    pub(super) fn end_token(&self) -> &str {
        self.variables.get("eos_token").and_then(Value::as_str).unwrap_or_default()
    }

    pub(super) fn broken(&self, message: &str) -> ChatError {
        ChatError::Template { template: self.name.clone(), line: None, message: message.to_owned() }
    }

    fn fail(&self, error: &Error) -> ChatError {
        let template = self.name.clone();
        // An error inside of a macro is the source of one for its caller.
        let mut innermost = error;
        while let Some(source) = innermost.source() {
            if let Some(Raised(message)) = source.downcast_ref() {
                return ChatError::Refused { template, line: innermost.line(), message: message.clone() };
            }
            let Some(source) = source.downcast_ref::<Error>() else { break };
            innermost = source;
        }
        let kind = innermost.kind();
        let message = match innermost.detail() {
            Some(detail) => format!("{kind}: {detail}"),
            None => kind.to_string(),
        };
        ChatError::Template { template, line: innermost.line(), message }
    }
}

/// The special tokens by their names. special_tokens_map.json counts where the config does not list its added tokens.
fn special_tokens(folder: &Path, config: &Map<String, Json>) -> Result<BTreeMap<String, String>, ChatError> {
    let mut tokens = BTreeMap::new();
    let mut add = |settings: &Map<String, Json>| {
        for name in NAMED {
            let value = settings.get(name);
            if let Some(token) = value.and_then(|value| value.as_str().or_else(|| value.get("content")?.as_str())) {
                tokens.insert(name.to_owned(), token.to_owned());
            }
        }
    };
    add(config);
    if !config.get("added_tokens_decoder").is_some_and(Json::is_object) {
        add(&read_object(folder, TOKENS)?);
    }
    Ok(tokens)
}

/// The keys of a JSON file; none where there is no such file.
fn read_object(folder: &Path, name: &str) -> Result<Map<String, Json>, ChatError> {
    let Some(text) = read_text(folder, name)? else { return Ok(Map::new()) };
    let read = |error: serde_json::Error| ChatError::Read { path: folder.join(name), message: error.to_string() };
    serde_json::from_str(&text).map_err(read)
}

fn read_text(folder: &Path, name: &str) -> Result<Option<String>, ChatError> {
    let path = folder.join(name);
    let fail = |message: String| ChatError::Read { path: path.clone(), message };
    match storage::read(&path, LARGEST_FILE) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        read => {
            let text = read.map_err(|error| fail(error.to_string()))?;
            String::from_utf8(text).map(Some).map_err(|error| fail(error.to_string()))
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::messages::Conversation;
    use super::*;

    fn render(source: &str) -> Result<Rendered, String> {
        let messages =
            vec![json!({ "role": "user", "content": "Hi" }), json!({ "role": "assistant", "content": "Ho" })];
        let conversation = Conversation { messages, tools: None };
        let template = ChatTemplate::new("t", source, []).map_err(|error| error.to_string())?;
        template.render(&conversation, false).map_err(|error| error.to_string())
    }

    #[test]
    fn templates_are_found_as_transformers_finds_them() {
        let folder = tempfile::tempdir().unwrap();
        let text = |count: usize| {
            let conversation = Conversation { messages: vec![json!({ "role": "user" }); count], tools: None };
            Ok(ChatTemplate::read(folder.path())?.render(&conversation, false)?.text)
        };
        let write = |name: &str, value: Json| std::fs::write(folder.path().join(name), value.to_string()).unwrap();
        let missing: Result<String, ChatError> = text(1);
        assert!(matches!(missing, Err(ChatError::NoTemplate { .. })), "{missing:?}");
        write(TOKENS, json!({ "eos_token": { "content": "</s>" }, "bos_token": "<s>", "unk_token": null }));
        write(CONFIG, json!({ "bos_token": "<b>", "chat_template": "{{ bos_token }}{{ eos_token }}{{ unk_token }}" }));
        assert_eq!(text(1).unwrap(), "<s></s>");
        let list =
            json!([{ "name": "tool_use", "template": "no" }, { "name": "default", "template": "{{ bos_token }}" }]);
        write(CONFIG, json!({ "bos_token": "<b>", "added_tokens_decoder": {}, "chat_template": list }));
        assert_eq!(text(1).unwrap(), "<b>");
        std::fs::write(folder.path().join(FILE), "{{ messages | length }}\r\n\r\n").unwrap();
        assert_eq!(text(2).unwrap(), "2\n");
        write(CONFIG, json!([]));
        assert!(matches!(text(1), Err(ChatError::Read { .. })));
    }

    #[test]
    fn chat_ml_marks_the_assistant() {
        let Rendered { text, spoken, is_marked } = render(CHAT_ML).unwrap();
        assert_eq!(text, "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nHo<|im_end|>\n");
        assert_eq!((&text[spoken[0].clone()], spoken.len(), is_marked), ("Ho<|im_end|>", 1, true));
        let template = ChatTemplate::new("t", CHAT_ML, []).unwrap();
        let conversation = Conversation { messages: vec![json!({ "role": "user", "content": "" })], tools: None };
        let prompt = template.render(&conversation, true).unwrap();
        assert_eq!(prompt.text, "<|im_start|>user\n<|im_end|>\n<|im_start|>assistant\n");
    }

    #[test]
    fn variables_are_given_to_the_template() {
        let mut template = ChatTemplate::new("t", "{{ enable_thinking is false }}", []).unwrap();
        template.set_variable("enable_thinking", &json!(false));
        assert_eq!(template.render(&Conversation::default(), false).unwrap().text, "True");
    }

    #[test]
    fn marks_may_stand_anywhere() {
        let cases = [
            (
                "{% macro f(m) %}<{% generation %}{{ m.content[1:] }}{% endgeneration %}>{% endmacro %}{{ f(messages[1]) }}",
                "<o>",
                1..2,
            ),
            ("{% for m in messages[1:] %}{% generation %}{{ m.role[:1] }}{% endgeneration %}{% endfor %}.", "a.", 0..1),
            ("{% set x = 1 %}{% generation %}{% set x = 2 %}{{ x }}{% endgeneration %}{{ x }}", "21", 0..1),
            ("{% set x %}a{% generation %}b{% endgeneration %}{% endset %}>{{ x }}", ">ab", 2..3),
            ("{% generation %}a{% generation %}b{% endgeneration %}{% endgeneration %}c", "abc", 0..2),
        ];
        for (source, text, range) in cases {
            let rendered = render(source).unwrap();
            assert_eq!((rendered.text.as_str(), rendered.spoken), (text, vec![range]), "{source}");
        }
    }

    #[test]
    fn bad_templates_fail_with_their_line() {
        let cases = [
            ("a\n{% if %}", "t, line 2: syntax error: "),
            ("\n\n{{ messages[0].x.y }}", "t, line 3: undefined value"),
            (
                "{% generation %}\n{{ raise_exception('no') }}{% endgeneration %}",
                "t, line 2: the template refuses this conversation: no",
            ),
            ("{{ 'a'.nothing() }}", "t, line 1: unknown method"),
            ("{{ strftime_now('%Q') }}", "t, line 1: invalid operation: strftime_now does not know %Q"),
            ("{{ missing | tojson }}", "t, line 1: invalid operation: an undefined value has no JSON"),
            ("{% include 'other.jinja' %}", "t, line 1: "),
            ("{{ 'a' | _mark_generation }}", "t, line 1: invalid operation: the filter is only for {% generation %}"),
            ("{{ debug() }}", "t, line 1: unknown function"),
            ("{% set x %}{% generation %}a{% endgeneration %}{% endset %}{{ x[1:] }}", "t: it takes the text of"),
        ];
        for (source, want) in cases {
            let error = render(source).unwrap_err();
            assert!(error.starts_with(want), "{source}: {error}");
        }
    }

    #[test]
    fn hostile_templates_are_stopped() {
        let cases = [
            ("{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}", "ran out of fuel"),
            ("{% for a in range(99999) %}{{ 'x' * 1000000 }}{% endfor %}", "longer than 33554432 bytes"),
            ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "recursion limit"),
            ("{% include 'chat_template.jinja' %}", "recursion limit"),
            ("{{ ''[::-1] }}", "the template engine failed"),
            ("{{ 'a'.split('') }}", "empty separator"),
            (
                "{% set n = namespace(x=[]) %}{% for a in range(99999) %}{% set n.x = [n.x] %}{% endfor %}",
                "nested more than 200",
            ),
            (
                "{% set n = namespace(x={}) %}{% for a in range(99999) %}{%- set n.x = {'a': n.x} -%}{% endfor %}{{ n.x }}",
                "nested more than 200",
            ),
            (
                "{% set n = namespace(x=[0]) %}{% for a in range(150) %}{% set n.x = [n.x, n.x] %}{% endfor %}",
                "more than 1000000 others",
            ),
            (
                "{% set n = namespace(x=[]) %}{% set n.x = [n] %}{{ n.x | tojson }}",
                "a namespace cannot be kept in a namespace",
            ),
        ];
        for (source, want) in cases {
            let error = render(source).unwrap_err();
            assert!(error.contains(want), "{source}: {error}");
        }
        assert_eq!(render("{{ 'a'.count('') }}").unwrap().text, "2");
        // A slice of a slice is a list each time.
        let slices =
            "{% set n = namespace(x=[1, 2]) %}{% for a in range(9999) %}{% set n.x = n.x[:] %}{% endfor %}{{ n.x }}";
        assert_eq!(render(slices).unwrap().text, "[1, 2]");
    }

    #[test]
    fn assignments_are_what_they_are_in_jinja2() {
        for (source, want) in [
            ("{% set a, b = 1, 'x=y' %}{{ a }}{{ b }}", "1x=y"),
            ("{%- set x = 'a' if false -%}{{ x }}.", "."),
            ("{% set x | replace('a', 'b') %}aa{% endset %}{{ x }}", "bb"),
            ("{% set x = [1, [2]] + [3] %}{{ x }}", "[1, [2], 3]"),
            (
                "{% set n = namespace(found=false) %}{% if 1 == 1 %}{% set n.found = true %}{% endif %}{{ n.found }}",
                "True",
            ),
            ("{% set messages = messages[1:] %}{{ messages[0].role }}{{ messages | length }}", "assistant1"),
            ("{% set settings = {'a': {'b': 1}} %}{{ settings.a.b }}", "1"),
        ] {
            assert_eq!(render(source).unwrap().text, want, "{source}");
        }
    }
}

//! Rows of data sets as conversations: messages, ShareGPT, Alpaca, prompt and completion. And everything that can go wrong
//! between a row and its tokens.

use std::path::PathBuf;

use serde_json::{Map, Value as Json, json};

const ROLES: [&str; 5] = ["system", "developer", "user", "assistant", "tool"];

/// ShareGPT's speakers, and the roles that they have.
const SPEAKERS: [(&str, &str); 13] = [
    ("system", "system"),
    ("human", "user"),
    ("user", "user"),
    ("gpt", "assistant"),
    ("chatgpt", "assistant"),
    ("bing", "assistant"),
    ("bot", "assistant"),
    ("model", "assistant"),
    ("assistant", "assistant"),
    ("function_call", "assistant"),
    ("tool", "tool"),
    ("function_response", "tool"),
    ("observation", "tool"),
];

/// Messages with a role and a content each, as a template reads them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Conversation {
    pub messages: Vec<Json>,
    /// The JSON schemas of the tools that the assistant may call.
    pub tools: Option<Json>,
}

/// The columns of a row that make its conversation. `system` and `input` may be missing in a row, the others may not.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Columns<'a> {
    /// A list of messages with `role` and `content`.
    Messages { messages: &'a str, tools: &'a str },
    /// A list of turns with `from` and `value`.
    ShareGpt { conversations: &'a str, system: &'a str, tools: &'a str },
    /// `input` follows the instruction after a blank line.
    Alpaca { instruction: &'a str, input: &'a str, output: &'a str, system: &'a str },
    /// Two texts, or two lists of messages.
    Completion { prompt: &'a str, completion: &'a str, tools: &'a str },
}

impl Conversation {
    /// Every conversation has a turn of the assistant: there is nothing to train on without one.
    pub fn of(row: &Map<String, Json>, columns: Columns<'_>) -> Result<Self, ChatError> {
        let conversation = Self::read(row, columns)?;
        if !conversation.messages.iter().any(|message| message["role"] == "assistant") {
            return Err(fail("the conversation has no turn of the assistant; allowed: one or more"));
        }
        Ok(conversation)
    }

    /// The same for a row that may still wait for its answer.
    pub fn read(row: &Map<String, Json>, columns: Columns<'_>) -> Result<Self, ChatError> {
        let mut messages = Vec::new();
        let tools_column = match columns {
            Columns::Messages { messages: name, tools } => {
                add_messages(row, name, &mut messages)?;
                Some(tools)
            }
            Columns::ShareGpt { conversations, system, tools } => {
                add_system(row, system, &mut messages)?;
                add_turns(row, conversations, &mut messages)?;
                Some(tools)
            }
            Columns::Alpaca { instruction, input, output, system } => {
                add_system(row, system, &mut messages)?;
                let mut asked = text(row, instruction)?.to_owned();
                if row.get(input).is_some_and(|input| !input.is_null() && input != "") {
                    asked = format!("{asked}\n\n{}", text(row, input)?);
                }
                messages.push(json!({ "role": "user", "content": asked }));
                add_answer(row, output, &mut messages)?;
                None
            }
            Columns::Completion { prompt, completion, tools } => {
                for (name, role) in [(prompt, "user"), (completion, "assistant")] {
                    match row.get(name) {
                        Some(Json::String(text)) => messages.push(json!({ "role": role, "content": text })),
                        None | Some(Json::Null) if role == "assistant" => {}
                        _ => add_messages(row, name, &mut messages)?,
                    }
                }
                Some(tools)
            }
        };
        let tools = tools_column.and_then(|name| row.get(name)).filter(|tools| !tools.is_null());
        Ok(Self { messages, tools: tools.map(parse_tools).transpose()? })
    }
}

/// The answer of a row, where there is one.
fn add_answer(row: &Map<String, Json>, name: &str, messages: &mut Vec<Json>) -> Result<(), ChatError> {
    if row.get(name).is_some_and(|answer| !answer.is_null()) {
        messages.push(json!({ "role": "assistant", "content": text(row, name)? }));
    }
    Ok(())
}

fn fail(message: impl Into<String>) -> ChatError {
    ChatError::Row { message: message.into() }
}

/// A value in an error message: short, and with its kind.
fn shown(value: Option<&Json>) -> String {
    let text = match value {
        None => return "missing".to_owned(),
        Some(Json::Null) => return "null".to_owned(),
        Some(Json::Array(list)) => return format!("a list of {}", list.len()),
        Some(Json::Object(_)) => return "an object".to_owned(),
        Some(value) => value.to_string(),
    };
    match text.char_indices().nth(40) {
        None => text,
        Some((at, _)) => format!("{}…", &text[..at]),
    }
}

fn text<'a>(row: &'a Map<String, Json>, name: &str) -> Result<&'a str, ChatError> {
    let value = row.get(name);
    value.and_then(Json::as_str).ok_or_else(|| fail(format!("column {name:?} is {}; allowed: a text", shown(value))))
}

fn list<'a>(row: &'a Map<String, Json>, name: &str) -> Result<&'a [Json], ChatError> {
    match row.get(name) {
        Some(Json::Array(list)) if list.is_empty() => {
            Err(fail(format!("column {name:?} is an empty list; allowed: one message or more")))
        }
        Some(Json::Array(list)) => Ok(list),
        value => Err(fail(format!("column {name:?} is {}; allowed: a list of messages", shown(value)))),
    }
}

fn add_system(row: &Map<String, Json>, name: &str, messages: &mut Vec<Json>) -> Result<(), ChatError> {
    if row.get(name).is_some_and(|system| !system.is_null() && system != "") {
        messages.push(json!({ "role": "system", "content": text(row, name)? }));
    }
    Ok(())
}

fn add_messages(row: &Map<String, Json>, name: &str, messages: &mut Vec<Json>) -> Result<(), ChatError> {
    for (at, message) in (1..).zip(list(row, name)?) {
        let Json::Object(keys) = message else {
            let found = shown(Some(message));
            return Err(fail(format!("message {at} is {found}; allowed: an object with role and content")));
        };
        let role = keys.get("role");
        if !role.and_then(Json::as_str).is_some_and(|role| ROLES.contains(&role)) {
            let allowed = ROLES.join(", ");
            return Err(fail(format!("message {at}: its role is {}; allowed: {allowed}", shown(role))));
        }
        let has = |name: &str| keys.get(name).is_some_and(|value| !value.is_null());
        let mut keys = keys.clone();
        if has("content") || !has("tool_calls") {
            let content = content_text(keys.get("content"), at)?;
            keys.insert("content".to_owned(), Json::String(content));
        }
        messages.push(Json::Object(keys));
    }
    Ok(())
}

/// A text, or the parts of one put together.
fn content_text(content: Option<&Json>, at: usize) -> Result<String, ChatError> {
    match content {
        Some(Json::String(text)) => Ok(text.clone()),
        Some(Json::Array(parts)) => {
            let part = |part: &Json| match (part["type"].as_str(), part["text"].as_str()) {
                (Some("text"), Some(text)) => Ok(text.to_owned()),
                (kind, _) => {
                    let kind = kind.unwrap_or("without a type");
                    Err(fail(format!("message {at}: its content has a part {kind:?}; allowed: \"text\"")))
                }
            };
            parts.iter().map(part).collect()
        }
        other => {
            let found = shown(other);
            Err(fail(format!("message {at}: its content is {found}; allowed: a text or a list of text parts")))
        }
    }
}

fn add_turns(row: &Map<String, Json>, name: &str, messages: &mut Vec<Json>) -> Result<(), ChatError> {
    for (at, turn) in (1..).zip(list(row, name)?) {
        let (from, value) = (turn.get("from"), turn.get("value"));
        let speaker = from.and_then(Json::as_str);
        let Some((_, role)) = SPEAKERS.iter().find(|(name, _)| speaker == Some(*name)) else {
            let allowed = SPEAKERS.map(|(name, _)| name).join(", ");
            return Err(fail(format!("message {at}: \"from\" is {}; allowed: {allowed}", shown(from))));
        };
        let Some(content) = value.and_then(Json::as_str) else {
            return Err(fail(format!("message {at}: \"value\" is {}; allowed: a text", shown(value))));
        };
        messages.push(json!({ "role": role, "content": content }));
    }
    Ok(())
}

/// Data sets keep the schemas as a list, or as the JSON text of one.
fn parse_tools(tools: &Json) -> Result<Json, ChatError> {
    let parsed = match tools {
        Json::String(text) => serde_json::from_str(text).ok(),
        other => Some(other.clone()),
    };
    parsed.filter(Json::is_array).ok_or_else(|| {
        let found = shown(Some(tools));
        fail(format!("the tools are {found}; allowed: a list of JSON schemas"))
    })
}

#[derive(Debug, thiserror::Error)]
pub enum ChatError {
    #[error("{folder} has no chat template; hint: save the tokenizer with one (chat_template.jinja), or choose ChatML")]
    NoTemplate { folder: PathBuf },
    #[error("{path}: cannot read it: {message}")]
    Read { path: PathBuf, message: String },
    #[error("{template}{}: {message}", at_line(*line))]
    Template { template: String, line: Option<usize>, message: String },
    /// The template called `raise_exception`.
    #[error("{template}{}: the template refuses this conversation: {message}", at_line(*line))]
    Refused { template: String, line: Option<usize>, message: String },
    #[error("{template}: the conversation is longer than {limit} bytes of text; hint: split it into shorter ones")]
    TooLong { template: String, limit: usize },
    #[error(
        "{template}: cannot tell which text the assistant wrote in message {message}: {reason}; hint: add {{% generation %}} \
         to the template, or count all tokens"
    )]
    Unmarked { template: String, message: usize, reason: &'static str },
    /// The row is no conversation.
    #[error("{message}")]
    Row { message: String },
    #[error("the tokenizer failed: {message}")]
    Tokenizer { message: String },
}

fn at_line(line: Option<usize>) -> String {
    line.map(|line| format!(", line {line}")).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Columns<'static> {
        /// The columns by their usual names, for the first shape that a row has.
        pub fn of(row: &Map<String, Json>) -> Option<Self> {
            let has = |name: &str| row.get(name).is_some_and(|value| !value.is_null());
            let is_sharegpt = |name: &str| row.get(name).is_some_and(|turns| turns[0].get("from").is_some());
            let tools = "tools";
            let system = "system";
            for name in ["messages", "conversations", "conversation"] {
                if is_sharegpt(name) {
                    return Some(Columns::ShareGpt { conversations: name, system, tools });
                }
                if row.get(name).is_some_and(Json::is_array) {
                    return Some(Columns::Messages { messages: name, tools });
                }
            }
            if has("prompt") && has("completion") {
                return Some(Columns::Completion { prompt: "prompt", completion: "completion", tools });
            }
            let alpaca = Columns::Alpaca { instruction: "instruction", input: "input", output: "output", system };
            (has("instruction") && has("output")).then_some(alpaca)
        }
    }

    fn conversation(row: Json) -> Result<Conversation, String> {
        let row = row.as_object().unwrap();
        let columns = Columns::of(row).expect("a known shape");
        Conversation::of(row, columns).map_err(|error| error.to_string())
    }

    fn turns(conversation: &Conversation) -> Vec<(&str, &str)> {
        conversation
            .messages
            .iter()
            .map(|message| (message["role"].as_str().unwrap(), message["content"].as_str().unwrap_or("-")))
            .collect()
    }

    #[test]
    fn rows_of_every_shape_become_messages() {
        let asked = [("user", "Hi"), ("assistant", "Hello")];
        let cases = [
            json!({ "messages": [{ "role": "user", "content": "Hi" }, { "role": "assistant", "content": "Hello" }] }),
            json!({ "messages": [{ "role": "user", "content": [{ "type": "text", "text": "H" },
                { "type": "text", "text": "i" }] }, { "role": "assistant", "content": "Hello" }] }),
            json!({ "conversations": [{ "from": "human", "value": "Hi" }, { "from": "gpt", "value": "Hello" }] }),
            json!({ "conversations": [{ "role": "user", "content": "Hi" },
                { "role": "assistant", "content": "Hello" }] }),
            json!({ "instruction": "Hi", "output": "Hello" }),
            json!({ "instruction": "Hi", "input": "", "output": "Hello", "system": null }),
            json!({ "prompt": "Hi", "completion": "Hello" }),
            json!({ "prompt": [{ "role": "user", "content": "Hi" }],
                "completion": [{ "role": "assistant", "content": "Hello" }] }),
        ];
        for row in cases {
            assert_eq!(turns(&conversation(row.clone()).unwrap()), asked, "{row}");
        }
        let alpaca = json!({ "system": "Be.", "instruction": "Add", "input": "1 2", "output": "3" });
        let want = [("system", "Be."), ("user", "Add\n\n1 2"), ("assistant", "3")];
        assert_eq!(turns(&conversation(alpaca).unwrap()), want);
        let call = json!({ "tools": "[{\"name\": \"f\"}]", "messages": [{ "role": "user", "content": "Hi" },
            { "role": "assistant", "content": null, "tool_calls": [{ "name": "f" }] }] });
        let call = conversation(call).unwrap();
        assert_eq!(turns(&call), [("user", "Hi"), ("assistant", "-")]);
        assert_eq!(call.tools, Some(json!([{ "name": "f" }])));
    }

    #[test]
    fn rows_that_are_no_conversation_say_why() {
        let user = json!({ "role": "user", "content": "Hi" });
        let cases = [
            (json!({ "messages": [] }), "column \"messages\" is an empty list; allowed: one message or more"),
            (json!({ "messages": [user] }), "the conversation has no turn of the assistant; allowed: one or more"),
            (json!({ "messages": ["Hi"] }), "message 1 is \"Hi\"; allowed: an object with role and content"),
            (
                json!({ "messages": [{ "role": "boss", "content": "Hi" }] }),
                "message 1: its role is \"boss\"; allowed: system, developer, user, assistant, tool",
            ),
            (
                json!({ "messages": [user, { "role": "assistant", "content": 3 }] }),
                "message 2: its content is 3; allowed: a text or a list of text parts",
            ),
            (
                json!({ "messages": [{ "role": "user", "content": [{ "type": "image" }] }] }),
                "message 1: its content has a part \"image\"; allowed: \"text\"",
            ),
            (json!({ "conversations": [{ "from": "human" }] }), "message 1: \"value\" is missing; allowed: a text"),
            (json!({ "instruction": "Add", "output": ["3"] }), "column \"output\" is a list of 1; allowed: a text"),
            (
                json!({ "prompt": "Hi", "completion": {} }),
                "column \"completion\" is an object; allowed: a list of messages",
            ),
        ];
        for (row, want) in cases {
            assert_eq!(conversation(row.clone()).unwrap_err(), want, "{row}");
        }
        let unknown = conversation(json!({ "conversations": [{ "from": "alien", "value": "x" }] })).unwrap_err();
        assert!(
            unknown.starts_with("message 1: \"from\" is \"alien\"; allowed: system, human, user, gpt,"),
            "{unknown}"
        );
    }
}

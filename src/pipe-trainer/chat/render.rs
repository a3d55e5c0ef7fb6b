//! One conversation rendered with a template, whole or up to a message.
//!
//! The assistant's turns in the text of a template that does not mark them.
//!
//! A turn begins where the prompt for it ends: the messages before it, rendered with `add_generation_prompt`. It ends where the
//! rendering of the messages up to it ends. Both have to be beginnings of the whole text.
//!
//! Some templates write a turn differently once others follow: Qwen3's drops reasoning, Mistral's moves the system message. Then
//! the conversation is rendered again with marks around the turn's content. They count only where the rest of the text stays
//! exactly the same.
//!
//! From a rendered conversation to tokens, and which of them the loss counts.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::ops::Range;

use minijinja::Value;
use serde_json::{Map, Value as Json};
use tokenizers::Tokenizer;

use super::marks::{self, Marks};
use super::messages::{ChatError, Conversation};
use super::template::{ChatTemplate, Rendered};

/// Bytes of a conversation at most.
const LONGEST_TEXT: usize = 32 << 20;

/// The names of a message's reasoning. Templates read the first, gpt-oss's the second.
const REASONING: [&str; 3] = ["reasoning_content", "thinking", "reasoning"];

impl ChatTemplate {
    /// The whole conversation, with `spoken` as the template marks it.
    pub fn render(&self, conversation: &Conversation, add_generation_prompt: bool) -> Result<Rendered, ChatError> {
        Prepared::new(self, conversation)?.render(conversation.messages.len(), add_generation_prompt)
    }
}

/// A conversation in the template's own values.
#[derive(Clone)]
pub(super) struct Prepared<'a> {
    template: &'a ChatTemplate,
    conversation: &'a Conversation,
    messages: Vec<Value>,
    tools: Value,
    marks: Marks,
}

impl<'a> Prepared<'a> {
    pub fn new(template: &'a ChatTemplate, conversation: &'a Conversation) -> Result<Self, ChatError> {
        let mut used = template.used().clone();
        let texts = conversation.messages.iter().chain(&conversation.tools);
        texts.for_each(|value| marks::collect_used_in(value, &mut used));
        let all_used = "the conversation has every private-use character; remove some";
        let marks = Marks::free(&used).ok_or_else(|| template.broken(all_used))?;
        let messages = conversation.messages.iter().map(|message| Value::from_serialize(normalize(message))).collect();
        Ok(Self { template, conversation, messages, tools: Value::from_serialize(&conversation.tools), marks })
    }

    /// The first `count` messages.
    pub fn render(&self, count: usize, add_generation_prompt: bool) -> Result<Rendered, ChatError> {
        let Self { template, marks, .. } = self;
        let variables = BTreeMap::from([
            ("messages".to_owned(), Value::from(self.messages[..count].to_vec())),
            ("tools".to_owned(), self.tools.clone()),
            ("documents".to_owned(), Value::from(())),
            ("add_generation_prompt".to_owned(), Value::from(add_generation_prompt)),
            (marks::VARIABLE.to_owned(), marks.variable()),
        ]);
        let mut output = Bounded::default();
        let result = template.run(variables, &mut output);
        if output.is_full {
            return Err(ChatError::TooLong { template: template.name().to_owned(), limit: LONGEST_TEXT });
        }
        result?;
        let text = String::from_utf8(output.bytes).map_err(|_| template.broken("its text is not UTF-8"))?;
        if !template.has_marks() {
            return Ok(Rendered { text, ..Rendered::default() });
        }
        let apart = "it takes the text of {% generation %} apart";
        let (text, spoken) = marks.take_out(&text).ok_or_else(|| template.broken(apart))?;
        Ok(Rendered { text, spoken, is_marked: true })
    }

    pub fn template(&self) -> &ChatTemplate {
        self.template
    }

    pub fn len(&self) -> usize {
        self.messages.len()
    }

    /// The text of the message `at`; empty where it has none.
    pub fn content(&self, at: usize) -> &str {
        self.conversation.messages[at]["content"].as_str().unwrap_or_default()
    }

    /// The same with a mark behind the text of the message `at`, without its blanks, and one before it where `both`. Nothing
    /// for a message without text.
    pub fn with_marks_around(&self, at: usize, both: bool) -> Option<Self> {
        let content = self.content(at);
        let text = content.trim();
        if text.is_empty() {
            return None;
        }
        let (before, behind) = content.split_once(text)?;
        let mut message = normalize(&self.conversation.messages[at]);
        message["content"] = Json::String(format!("{before}{}{behind}", self.marks.around(text, both)));
        let mut marked = self.clone();
        marked.messages[at] = Value::from_serialize(message);
        Some(marked)
    }

    /// A text before, between and behind the marks.
    pub fn split(&self, text: &str) -> Option<[String; 3]> {
        self.marks.split(text)
    }
}

/// As transformers gives a message to a template: without keys that are null, and its reasoning by both names.
fn normalize(message: &Json) -> Json {
    let Json::Object(keys) = message else { return message.clone() };
    let mut keys: Map<String, Json> =
        keys.iter().filter(|(_, value)| !value.is_null()).map(|(key, value)| (key.clone(), value.clone())).collect();
    if let Some(reasoning) = REASONING.iter().find_map(|name| keys.get(*name)).cloned() {
        keys.entry("thinking").or_insert_with(|| reasoning.clone());
        keys.insert("reasoning_content".to_owned(), reasoning);
    }
    Json::Object(keys)
}

/// Output of at most `LONGEST_TEXT` bytes.
#[derive(Default)]
struct Bounded {
    bytes: Vec<u8>,
    is_full: bool,
}

impl Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.bytes.len() + bytes.len() > LONGEST_TEXT {
            self.is_full = true;
            return Err(io::Error::other("the text is too long"));
        }
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl ChatTemplate {
    /// The whole conversation with the assistant's turns: those that the template marks, else those that are found.
    pub fn render_spoken(&self, conversation: &Conversation) -> Result<Rendered, ChatError> {
        let prepared = Prepared::new(self, conversation)?;
        let mut rendered = prepared.render(conversation.messages.len(), false)?;
        if self.has_marks() {
            return Ok(rendered);
        }
        for (at, message) in conversation.messages.iter().enumerate() {
            if message["role"] == "assistant" {
                let fail = |reason| ChatError::Unmarked { template: self.name().to_owned(), message: at + 1, reason };
                rendered.spoken.push(find_turn(&prepared, at, &rendered.text).map_err(fail)?);
            }
        }
        if rendered.spoken.windows(2).any(|pair| pair[0].end > pair[1].start) {
            let reason = "turns overlap";
            return Err(ChatError::Unmarked { template: self.name().to_owned(), message: 1, reason });
        }
        Ok(rendered)
    }
}

/// The range of the message `at` in the whole text, or why there is none.
fn find_turn(prepared: &Prepared<'_>, at: usize, whole: &str) -> Result<Range<usize>, &'static str> {
    // Templates refuse beginnings of conversations that they take as a whole, above all the one without any message.
    let prompt = prepared.render(at, true).map(|prompt| prompt.text).unwrap_or_default();
    let turn = prepared.render(at + 1, false).map_err(|_| "the template refuses the messages up to it")?.text;
    let start = (!prompt.is_empty() && whole.starts_with(&prompt)).then_some(prompt.len());
    if let Some(written) = turn.strip_prefix(&prompt).filter(|_| start.is_some()) {
        let content = prepared.content(at).trim_end();
        let has_ending = content.is_empty() || !written.trim_end().ends_with(content);
        let end = prompt.len() + if has_ending { written.trim_end().len() } else { written.len() };
        if whole.starts_with(&turn[..end]) {
            return Ok(prompt.len()..end);
        }
    }
    find_content(prepared, at, whole, start).ok_or("the template writes it differently once messages follow")
}

/// The range of a turn by marks around its content; from `start` on where that is known.
fn find_content(prepared: &Prepared<'_>, at: usize, whole: &str, start: Option<usize>) -> Option<Range<usize>> {
    let marked = prepared.with_marks_around(at, start.is_none())?;
    let split = |count: usize| -> Option<[String; 3]> { marked.split(&marked.render(count, false).ok()?.text) };
    let [before, content, behind] = split(prepared.len())?;
    if [&before, &content, &behind].map(String::as_str).concat() != whole {
        return None;
    }
    // Behind the content of the last message there is only the end of the turn. Phi-3 ends the whole text with one more token.
    let [_, _, rest] = split(at + 1)?;
    let turn_only = rest.strip_suffix(prepared.template().end_token()).unwrap_or(&rest);
    let trim = |ending: &str| if ending.trim_end().is_empty() { ending.len() } else { ending.trim_end().len() };
    let mut endings = [rest.as_str(), turn_only].into_iter().map(|ending| &ending[..trim(ending)]);
    let ending = endings.find(|ending| behind.starts_with(ending))?;
    let end = before.len() + content.len();
    let start = start.unwrap_or(before.len());
    (start <= end).then_some(start..end + ending.len())
}

#[derive(Clone, Debug, PartialEq)]
pub struct Encoded {
    pub ids: Vec<u32>,
    /// One for each token: whether the assistant wrote it.
    pub is_counted: Vec<bool>,
    /// Whether there were more than `max_length` tokens.
    pub was_cut: bool,
}

/// The tokens of a conversation, the first `max_length` of them. The template has written all special tokens already.
/// `tokenizer` must neither truncate nor pad.
pub fn encode(tokenizer: &Tokenizer, rendered: &Rendered, max_length: usize) -> Result<Encoded, ChatError> {
    // Offsets in characters are the ones that Python sees: all tokens of one character have the same.
    let encoding = tokenizer
        .encode_char_offsets(rendered.text.as_str(), false)
        .map_err(|error| ChatError::Tokenizer { message: error.to_string() })?;
    let was_cut = encoding.len() > max_length;
    let length = encoding.len().min(max_length);
    let offsets = &encoding.get_offsets()[..length];
    let mut is_counted = vec![false; length];
    for range in in_chars(&rendered.text, &rendered.spoken) {
        if let Some(tokens) = tokens_inside(offsets, range) {
            is_counted[tokens].fill(true);
        }
    }
    Ok(Encoded { ids: encoding.get_ids()[..length].to_vec(), is_counted, was_cut })
}

/// Byte ranges in order, as ranges of characters.
fn in_chars(text: &str, ranges: &[Range<usize>]) -> Vec<Range<usize>> {
    let (mut byte, mut count) = (0, 0);
    let mut position = |at: usize| {
        count += text[byte..at].chars().count();
        byte = at;
        count
    };
    ranges.iter().map(|range| position(range.start)..position(range.end)).collect()
}

/// The first token that holds the character `at`: transformers' `char_to_token`.
fn token_at(offsets: &[(usize, usize)], at: usize) -> Option<usize> {
    offsets.iter().position(|(start, end)| (*start..*end).contains(&at))
}

/// The tokens of a range of characters: those that transformers' `return_assistant_tokens_mask` counts. Where a tokenizer trims its offsets
/// (`trim_offsets`) and the range begins or ends with a blank that has no token, transformers would count tokens of other turns too, or
/// none any more; here that changes nothing.
fn tokens_inside(offsets: &[(usize, usize)], range: Range<usize>) -> Option<Range<usize>> {
    let is_inside = |(start, end): &(usize, usize)| start < end && *start < range.end && *end > range.start;
    let first = offsets.iter().position(is_inside)?;
    let last = token_at(offsets, range.end - 1).or_else(|| offsets.iter().rposition(is_inside))?;
    Some(first..last + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_become_tokens() {
        // A word, a blank without offsets, a character of two tokens, a word.
        let offsets = [(0, 3), (4, 4), (4, 5), (4, 5), (5, 9)];
        let cases = [
            (0..3, Some(0..1)),
            (3..5, Some(2..3)),
            (4..5, Some(2..3)),
            (4..9, Some(2..5)),
            (4..20, Some(2..5)),
            (1..4, Some(0..1)),
            (3..4, None),
            (5..5, None),
            (20..30, None),
        ];
        for (range, inside) in cases {
            assert_eq!(tokens_inside(&offsets, range.clone()), inside, "{range:?}");
        }
    }

    #[test]
    fn bytes_become_characters() {
        assert_eq!(in_chars("aé🙂b", &[0..1, 1..3, 3..8]), [0..1, 1..2, 2..4]);
    }
}

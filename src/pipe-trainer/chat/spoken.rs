//! The assistant's turns in the text of a template that does not mark them.
//!
//! A turn begins where the prompt for it ends: the messages before it, rendered with `add_generation_prompt`. It ends where the
//! rendering of the messages up to it ends. Both have to be beginnings of the whole text.
//!
//! Some templates write a turn differently once others follow: Qwen3's drops reasoning, Mistral's moves the system message. Then
//! the conversation is rendered again with marks around the turn's content. They count only where the rest of the text stays
//! exactly the same.

use std::ops::Range;

use super::error::ChatError;
use super::messages::Conversation;
use super::render::Prepared;
use super::template::{ChatTemplate, Rendered};

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

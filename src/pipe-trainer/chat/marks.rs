//! `{% generation %}`: the tag with which a template marks the text that the assistant writes.
//!
//! minijinja does not know the tag. It becomes a filter block, and the filter puts a character before the text and another
//! behind it. Both are private-use characters that occur nowhere in the input.

use std::collections::BTreeSet;
use std::ops::Range;

use minijinja::{Error, ErrorKind, State, Value};

/// The filter, and the variable of a rendering that has its marks.
pub const FILTER: &str = "_mark_generation";
pub const VARIABLE: &str = "_marks";

/// The filter of every value that is assigned: one that is nested too deeply would end the program.
pub const SHALLOW: &str = "_shallow";
/// The same for what a namespace keeps.
pub const SHALLOW_MEMBER: &str = "_shallow_member";

/// The tags in place of the two. Assignments inside do not reach the text behind, and a macro knows `VARIABLE` only where it
/// reads it. A call block, which jinja2 makes of the tag, would lose variables: minijinja forgets those that are only sliced.
const OPEN: &str = "with _generation = _marks %}{% filter _mark_generation";
const CLOSE: &str = "endfilter %}{% endwith";

/// Characters from here on have no meaning of their own.
const FIRST: char = '\u{f0000}';

/// The template with filter blocks in place of the tag and with checks of what is assigned, and whether it has the tag.
pub fn replace_tags(template: &str) -> (String, bool) {
    let mut replaced = String::with_capacity(template.len());
    let mut rest = template;
    let mut has_tags = false;
    while let Some(at) = next_tag(rest) {
        let (before, tag) = rest.split_at(at);
        replaced.push_str(before);
        let length = tag_length(tag);
        let (tag, behind) = tag.split_at(length);
        rest = behind;
        let word = block_word(tag);
        let new = match &tag[word.clone()] {
            "generation" => OPEN,
            "endgeneration" => CLOSE,
            "raw" => {
                let end = end_of_raw(rest);
                replaced.push_str(tag);
                replaced.push_str(&rest[..end]);
                rest = &rest[end..];
                continue;
            }
            block => {
                match assigned(block) {
                    Some(value) => {
                        let target = &block[..value.start];
                        let filter = if target.contains('.') { SHALLOW_MEMBER } else { SHALLOW };
                        let value = word.start + value.start..word.start + value.end;
                        let [before, behind] = [&tag[..value.start], &tag[value.end..]];
                        replaced.push_str(&format!("{before}({})|{filter}{behind}", &tag[value.clone()]));
                    }
                    None => replaced.push_str(tag),
                }
                continue;
            }
        };
        has_tags = true;
        replaced.push_str(&tag[..word.start]);
        replaced.push_str(new);
        replaced.push_str(&tag[word.end..]);
    }
    replaced.push_str(rest);
    (replaced, has_tags)
}

/// Where the value of an assignment is in a block tag; nothing for other tags, and for a block whose text is assigned.
fn assigned(block: &str) -> Option<Range<usize>> {
    let rest = block.strip_prefix("set").filter(|rest| rest.starts_with(char::is_whitespace))?;
    let at = rest.find('=')?;
    let is_target = |c: char| c.is_alphanumeric() || c.is_whitespace() || matches!(c, '_' | '.' | ',' | '(' | ')');
    rest[..at].chars().all(is_target).then(|| block.len() - rest.len() + at + 1..block.len())
}

fn next_tag(text: &str) -> Option<usize> {
    text.as_bytes().windows(2).position(|pair| pair[0] == b'{' && matches!(pair[1], b'{' | b'%' | b'#'))
}

/// The length of the tag at the beginning of `text`. Its end does not count inside of a string or of brackets.
fn tag_length(text: &str) -> usize {
    let close = match &text[..2] {
        "{#" => return text.find("#}").map_or(text.len(), |at| at + 2),
        "{%" => "%}",
        _ => "}}",
    };
    let mut depth = 0_usize;
    let mut quote = None;
    let mut is_escaped = false;
    for (at, c) in text.char_indices().skip(2) {
        match quote {
            Some(_) if is_escaped => is_escaped = false,
            Some(_) if c == '\\' => is_escaped = true,
            Some(open) if c == open => quote = None,
            Some(_) => {}
            None if depth == 0 && text[at..].starts_with(close) => return at + 2,
            None => match c {
                '"' | '\'' => quote = Some(c),
                '(' | '[' | '{' => depth += 1,
                ')' | ']' | '}' => depth = depth.saturating_sub(1),
                _ => {}
            },
        }
    }
    text.len()
}

/// Where the only word of a block tag is; nowhere for other tags.
fn block_word(tag: &str) -> Range<usize> {
    let inner = tag.strip_prefix("{%").and_then(|tag| tag.strip_suffix("%}"));
    let Some(inner) = inner else { return 0..0 };
    let inner = inner.strip_prefix(['-', '+']).unwrap_or(inner);
    let inner = inner.strip_suffix(['-', '+']).unwrap_or(inner);
    let word = inner.trim();
    let start = tag.find(word).unwrap_or_default();
    start..start + word.len()
}

/// Where `{% endraw %}` begins.
fn end_of_raw(text: &str) -> usize {
    let mut from = 0;
    while let Some(at) = text[from..].find("{%") {
        let tag = &text[from + at..];
        let inner = tag[2..].trim_start_matches(['-', '+']).trim_start();
        if inner.starts_with("endraw") {
            return from + at;
        }
        from += at + 2;
    }
    text.len()
}

/// The text of a filter block between the marks of this rendering.
pub fn filter(state: &State, text: &str) -> Result<String, Error> {
    let variable = state.lookup("_generation");
    let mut marks = variable.as_ref().and_then(Value::as_str).unwrap_or_default().chars();
    match (marks.next(), marks.next()) {
        (Some(open), Some(close)) => Ok(format!("{open}{text}{close}")),
        _ => Err(Error::new(ErrorKind::InvalidOperation, "the filter is only for {% generation %}")),
    }
}

/// The characters around the marked text of one rendering.
#[derive(Clone, Copy)]
pub struct Marks {
    open: char,
    close: char,
}

impl Marks {
    /// Two characters that are not in `used`; nothing where it has all of them.
    pub fn free(used: &BTreeSet<char>) -> Option<Self> {
        let mut free = (FIRST..=char::MAX).filter(|c| !used.contains(c));
        Some(Self { open: free.next()?, close: free.next()? })
    }

    /// The value of `VARIABLE`.
    pub fn variable(self) -> Value {
        Value::from(String::from_iter([self.open, self.close]))
    }

    /// `text` with a mark behind it, and one before it where `both`.
    pub fn around(self, text: &str, both: bool) -> String {
        let open = if both { self.open.to_string() } else { String::new() };
        format!("{open}{text}{}", self.close)
    }

    /// A text before, between and behind the marks, without them; nothing where one occurs twice or the second not at all.
    pub fn split(self, text: &str) -> Option<[String; 3]> {
        let (written, behind) = text.split_once(self.close)?;
        let (before, between) = written.split_once(self.open).unwrap_or((written, ""));
        let parts = [before, between, behind];
        let is_left = parts.iter().any(|part| part.contains([self.open, self.close]));
        (!is_left).then(|| parts.map(str::to_owned))
    }

    /// The text without the marks, and the ranges between them; nothing where they do not match.
    pub fn take_out(self, text: &str) -> Option<(String, Vec<Range<usize>>)> {
        let mut plain = String::with_capacity(text.len());
        let mut ranges = Vec::new();
        let mut depth = 0_usize;
        let mut start = 0;
        for c in text.chars() {
            if c == self.open {
                if depth == 0 {
                    start = plain.len();
                }
                depth += 1;
            } else if c == self.close {
                depth = depth.checked_sub(1)?;
                if depth == 0 {
                    ranges.push(start..plain.len());
                }
            } else {
                plain.push(c);
            }
        }
        (depth == 0).then_some((plain, ranges))
    }
}

/// Adds the characters of `text` that could be taken for marks.
pub fn collect_used(text: &str, used: &mut BTreeSet<char>) {
    used.extend(text.chars().filter(|c| *c >= FIRST));
}

/// The same for all texts and keys in a JSON value.
pub fn collect_used_in(value: &serde_json::Value, used: &mut BTreeSet<char>) {
    match value {
        serde_json::Value::String(text) => collect_used(text, used),
        serde_json::Value::Array(list) => list.iter().for_each(|value| collect_used_in(value, used)),
        serde_json::Value::Object(keys) => keys.iter().for_each(|(key, value)| {
            collect_used(key, used);
            collect_used_in(value, used);
        }),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_tag_itself_is_replaced() {
        let cases = [
            ("{% generation %}a{% endgeneration %}", format!("{{% {OPEN} %}}a{{% {CLOSE} %}}")),
            ("{%- generation -%} a {%+endgeneration-%}", format!("{{%- {OPEN} -%}} a {{%+{CLOSE}-%}}")),
            ("{%-\n generation\n%}{% endgeneration %}", format!("{{%-\n {OPEN}\n%}}{{% {CLOSE} %}}")),
        ];
        for (template, want) in cases {
            assert_eq!(replace_tags(template), (want, true));
        }
        let same = [
            "generation {# {% generation %} #} text",
            "{{ '{% generation %}' ~ \"\\\"{% generation %}\" }}",
            "{% raw %}{% generation %}{{{% endraw %}{% if generation %}{% endif %}",
            "{% unclosed '",
            "{",
        ];
        for template in same {
            assert_eq!(replace_tags(template), (template.to_owned(), false));
        }
        let assigned = replace_tags("{% set generation = {'a': {'b': '%}'}} %}{{ {'generation': {}} }}");
        let checked = "{% set generation =( {'a': {'b': '%}'}})|_shallow %}{{ {'generation': {}} }}";
        assert_eq!(assigned, (checked.to_owned(), false));
    }

    #[test]
    fn marks_are_not_those_of_the_input() {
        let mut used = BTreeSet::new();
        collect_used_in(&serde_json::json!([{ "a\u{f0000}": ["\u{f0001}"] }]), &mut used);
        let marks = Marks::free(&used).unwrap();
        assert_eq!((marks.open, marks.close), ('\u{f0002}', '\u{f0003}'));
        let text = "\u{f0000}x\u{f0002}\u{f0001}é\u{f0003}\u{f0002}\u{f0003}";
        assert_eq!(marks.take_out(text), Some(("\u{f0000}x\u{f0001}é".to_owned(), vec![5..11, 11..11])));
        assert_eq!(marks.take_out("\u{f0003}"), None);
        assert_eq!(marks.take_out("\u{f0002}"), None);
        assert!(Marks::free(&(FIRST..=char::MAX).collect()).is_none());
    }
}

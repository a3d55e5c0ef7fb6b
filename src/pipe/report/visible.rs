//! Text that others wrote (labels, keys, paths, names, messages), in a form that a terminal shows and does not obey.

use std::borrow::Cow;
use std::fmt::Write;

/// Control characters and those that turn the direction of text around as escapes such as `\x1b`. Line ends and tabs stay.
pub fn visible(text: &str) -> Cow<'_, str> {
    escaped(text, |letter| letter == '\n' || letter == '\t')
}

/// The same for what must stay in one line.
pub fn visible_line(text: &str) -> Cow<'_, str> {
    escaped(text, |_| false)
}

/// JSON with such characters as escapes of JSON's own: the same value.
pub fn visible_json(json: &str) -> Cow<'_, str> {
    // Between its tokens JSON has line ends, and inside of them it has no character below a space.
    let is_special = |letter: char| letter >= '\x7f' && is_special(letter);
    if !json.contains(is_special) {
        return Cow::Borrowed(json);
    }
    let mut escaped = String::with_capacity(json.len());
    for letter in json.chars() {
        match is_special(letter) {
            true => write!(escaped, "\\u{:04x}", u32::from(letter)).expect("a string takes everything"),
            false => escaped.push(letter),
        }
    }
    Cow::Owned(escaped)
}

fn escaped(text: &str, keep: impl Fn(char) -> bool) -> Cow<'_, str> {
    let is_escaped = |letter: char| is_special(letter) && !keep(letter);
    if !text.contains(is_escaped) {
        return Cow::Borrowed(text);
    }
    let mut escaped = String::with_capacity(text.len() + 8);
    for letter in text.chars() {
        match is_escaped(letter) {
            false => escaped.push(letter),
            true if letter == '\n' => escaped.push_str("\\n"),
            true if letter == '\r' => escaped.push_str("\\r"),
            true if letter == '\t' => escaped.push_str("\\t"),
            true if letter <= '\u{ff}' => {
                write!(escaped, "\\x{:02x}", u32::from(letter)).expect("a string takes everything");
            }
            true => write!(escaped, "\\u{{{:x}}}", u32::from(letter)).expect("a string takes everything"),
        }
    }
    Cow::Owned(escaped)
}

/// Whether a terminal does something else than show it.
fn is_special(letter: char) -> bool {
    letter.is_control() || matches!(letter, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_terminal_would_obey_is_shown() {
        for (text, want) in [
            ("plain: äöü 漢字 🍲 \\x1b", "plain: äöü 漢字 🍲 \\x1b"),
            ("a\u{1b}]0;x\u{7}b", "a\\x1b]0;x\\x07b"),
            ("\u{1b}[2J", "\\x1b[2J"),
            ("one\ntwo\tthree\r", "one\ntwo\tthree\\r"),
            ("\0\u{8}\u{7f}\u{9b}31m", "\\x00\\x08\\x7f\\x9b31m"),
            ("abc\u{202e}txt.exe\u{2069}", "abc\\u{202e}txt.exe\\u{2069}"),
        ] {
            assert_eq!(visible(text), want);
        }
        assert_eq!(visible_line("a\nb\tc"), "a\\nb\\tc");
    }

    #[test]
    fn json_stays_the_same_value() {
        let value = serde_json::json!({ "a": "\u{1b}[2J \u{7f} \u{9b} \u{202e} ä" });
        let text = serde_json::to_string_pretty(&value).unwrap();
        let shown = visible_json(&text);
        assert_eq!(shown, visible(&shown));
        assert_eq!(serde_json::from_str::<serde_json::Value>(&shown).unwrap(), value);
    }
}

//! Text for people: numbers, control characters made visible, wrapped lines.

use std::borrow::Cow;
use std::fmt::Write;

use pipe_spec::pipeline::LossUnit;

/// So many tokens or samples in a second: `12.5 samples/s`.
pub fn speed(per_second: f64, unit: LossUnit) -> String {
    let unit = unit.name();
    match per_second {
        _ if per_second < 100.0 => format!("{per_second:.1} {unit}/s"),
        _ => format!("{} {unit}/s", grouped(per_second as u64)),
    }
}

/// 2850000 as `2,850,000`.
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Any number, to a few digits.
pub fn figure(value: f64) -> String {
    match value.abs() {
        _ if !value.is_finite() => "-".to_owned(),
        0.0 => "0".to_owned(),
        size if !(1e-3..1e15).contains(&size) => format!("{value:.2e}"),
        size if size >= 1000.0 => {
            let sign = if value < 0.0 { "-" } else { "" };
            format!("{sign}{}", grouped(size.round() as u64))
        }
        size if size >= 100.0 => format!("{value:.1}"),
        _ => format!("{value:.4}"),
    }
}

/// After a batch and its accumulation: by how many ranks a step is shared; nothing for one.
pub fn times_ranks(ranks: u32) -> String {
    if ranks > 1 { format!(" x {ranks} ranks") } else { String::new() }
}

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
        if is_special(letter) {
            write!(escaped, "\\u{:04x}", u32::from(letter)).expect("a string takes everything");
        } else {
            escaped.push(letter);
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
        match letter {
            letter if !is_escaped(letter) => escaped.push(letter),
            '\n' => escaped.push_str("\\n"),
            '\r' => escaped.push_str("\\r"),
            '\t' => escaped.push_str("\\t"),
            ..='\u{ff}' => write!(escaped, "\\x{:02x}", u32::from(letter)).expect("a string takes everything"),
            _ => write!(escaped, "\\u{{{:x}}}", u32::from(letter)).expect("a string takes everything"),
        }
    }
    Cow::Owned(escaped)
}

/// Whether a terminal does something else than show it.
fn is_special(letter: char) -> bool {
    letter.is_control() || matches!(letter, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// The columns of the terminal that stdout is; nothing where it is none, so that nothing is cut or wrapped.
pub fn stdout_columns() -> Option<usize> {
    let terminal = console::Term::stdout();
    let size = if terminal.is_term() { terminal.size_checked() } else { None };
    size.map(|(_, columns)| usize::from(columns)).filter(|columns| *columns > 0)
}

/// Lines of at most `width` characters, broken at spaces where there are some.
pub fn wrap(text: &str, width: usize) -> Vec<String> {
    let options = textwrap::Options::new(width.max(1)).word_splitter(textwrap::WordSplitter::NoHyphenation);
    textwrap::wrap(text, options).into_iter().map(Cow::into_owned).collect()
}

/// The beginning of a text that is too long, with an ellipsis.
pub fn bounded(text: &str, most: usize) -> String {
    match text.char_indices().nth(most) {
        None => text.to_owned(),
        Some(_) => text.chars().take(most.saturating_sub(1)).chain(['…']).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_in_groups() {
        for (number, want) in [(7, "7"), (999, "999"), (1000, "1,000"), (2_850_000, "2,850,000")] {
            assert_eq!(grouped(number), want);
        }
    }

    #[test]
    fn speeds() {
        assert_eq!(speed(12.34, LossUnit::Samples), "12.3 samples/s");
        assert_eq!(speed(10_240.0, LossUnit::Tokens), "10,240 tokens/s");
    }

    #[test]
    fn figures() {
        for (value, want) in [
            (0.0, "0"),
            (1.25, "1.2500"),
            (123.45, "123.5"),
            (54_321.0, "54,321"),
            (2.6e9, "2,600,000,000"),
            (3e-4, "3.00e-4"),
        ] {
            assert_eq!(figure(value), want);
        }
    }
}

#[cfg(test)]
mod visible_tests {
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

#[cfg(test)]
mod wrap_tests {
    use super::*;

    #[test]
    fn lines_break_at_spaces_or_anywhere() {
        let cases: [(&str, usize, &[&str]); 7] = [
            ("", 5, &[""]),
            ("abc def", 7, &["abc def"]),
            ("abc def", 6, &["abc", "def"]),
            ("abc  def ghi", 8, &["abc  def", "ghi"]),
            ("abcdefgh", 3, &["abc", "def", "gh"]),
            ("a bcdefgh", 4, &["a", "bcde", "fgh"]),
            ("ä\nö ü", 3, &["ä", "ö ü"]),
        ];
        for (text, width, want) in cases {
            assert_eq!(wrap(text, width), want, "{text:?} in {width}");
        }
    }

    #[test]
    fn a_long_text_is_cut() {
        assert_eq!(bounded("abcd", 4), "abcd");
        assert_eq!(bounded("äöüß!", 4), "äöü…");
    }
}

//! Text in lines that a terminal has room for.

/// The columns of the terminal that stdout is; nothing where it is none, so that nothing is cut or wrapped.
pub fn stdout_columns() -> Option<usize> {
    let terminal = console::Term::stdout();
    let size = if terminal.is_term() { terminal.size_checked() } else { None };
    size.map(|(_, columns)| usize::from(columns)).filter(|columns| *columns > 0)
}

/// Lines of at most so many characters, broken at spaces where there are some.
pub fn wrap(text: &str, width: usize) -> Vec<String> {
    let width = width.max(1);
    let mut lines = Vec::new();
    for line in text.split('\n') {
        let mut rest: Vec<char> = line.trim_end().chars().collect();
        while rest.len() > width {
            let space = (1..=width).rev().find(|at| rest[*at] == ' ' && rest[..*at].iter().any(|c| *c != ' '));
            let end = space.unwrap_or(width);
            lines.push(rest[..end].iter().collect::<String>().trim_end().to_owned());
            let next = rest[end..].iter().position(|c| *c != ' ').map_or(rest.len(), |skip| end + skip);
            rest.drain(..next);
        }
        lines.push(rest.into_iter().collect());
    }
    lines
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

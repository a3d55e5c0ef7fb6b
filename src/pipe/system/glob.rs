//! Patterns for names of files and runs.

use globset::{GlobBuilder, GlobMatcher};

/// A pattern: `*` is any text without a slash, `?` one character of it, `**` any text.
#[derive(Clone, Debug)]
pub struct Pattern {
    text: String,
    /// Absent where the pattern is too large to be compiled: it matches only itself then.
    matcher: Option<GlobMatcher>,
}

impl Pattern {
    pub fn new(text: &str) -> Self {
        let parts: Vec<String> = text.split('/').map(glob_part).collect();
        let glob = GlobBuilder::new(&parts.join("/")).literal_separator(true).backslash_escape(false).build();
        Self { text: text.to_owned(), matcher: glob.ok().map(|glob| glob.compile_matcher()) }
    }

    /// Whether `text` is more than one name.
    pub fn is_meant(text: &str) -> bool {
        text.contains(['*', '?'])
    }

    /// Whether all of `name` is what the pattern describes.
    pub fn matches(&self, name: &str) -> bool {
        self.matcher.as_ref().map_or(self.text == name, |matcher| matcher.is_match(name))
    }
}

/// A part of a path as `globset` wants it, which takes `**` for any text only where it is a whole part.
fn glob_part(part: &str) -> String {
    if part == "**" {
        return part.to_owned();
    }
    let mut glob = String::new();
    let mut rest = part;
    while let Some(letter) = rest.chars().next() {
        let stars = rest.len() - rest.trim_start_matches('*').len();
        let length = if stars > 0 { stars } else { letter.len_utf8() };
        match (stars, letter) {
            (0, '[' | ']' | '{' | '}') => glob.extend(['[', letter, ']']),
            (0, _) => glob.push(letter),
            (1, _) => glob.push('*'),
            _ => glob.push_str("{*,*/**/*}"),
        }
        rest = &rest[length..];
    }
    glob
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns() {
        let cases = [
            ("data/train-*.parquet", "data/train-00000-of-00002.parquet", true),
            ("data/train-*.parquet", "data/eval-00000.parquet", false),
            ("data/train-*.parquet", "data/train-a/b.parquet", false),
            ("*.jsonl", "a.jsonl", true),
            ("*.jsonl", "a/b.jsonl", false),
            ("**.jsonl", "a/b.jsonl", true),
            ("**.jsonl", "a/b/c.jsonl", true),
            ("**.jsonl", "a.jsonl", true),
            ("a**", "ab/c/d", true),
            ("a/**", "a/b/c", true),
            ("a/**/b.csv", "a/b.csv", true),
            ("a/**/b.csv", "a/x/y/b.csv", true),
            ("a/**/b.csv", "a/xb.csv", false),
            ("part-?.csv", "part-1.csv", true),
            ("part-?.csv", "part-12.csv", false),
            ("part?x.csv", "part/x.csv", false),
            ("a[1]{2}!\\.csv", "a[1]{2}!\\.csv", true),
            ("a[1].csv", "a1.csv", false),
            ("*", "", true),
            ("", "", true),
            ("", "x", false),
            ("é*", "étude.csv", true),
        ];
        for (pattern, name, want) in cases {
            assert_eq!(Pattern::new(pattern).matches(name), want, "{pattern} {name}");
        }
        assert!(Pattern::is_meant("a?") && Pattern::is_meant("*") && !Pattern::is_meant("a[1]"));
    }
}

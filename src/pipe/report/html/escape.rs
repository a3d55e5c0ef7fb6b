//! Text of a run within HTML.

/// Escapes `text` for an element or a quoted attribute.
pub fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            // HTML knows no other control characters than these.
            '\n' | '\t' => escaped.push(c),
            c if c.is_control() => escaped.push('\u{fffd}'),
            c => escaped.push(c),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_breaks_out() {
        for (text, want) in [
            ("plain", "plain"),
            ("<b>&\"", "&lt;b&gt;&amp;&quot;"),
            ("it's", "it&#39;s"),
            ("a\nb\tc\u{0}\u{1b}[1m", "a\nb\tc\u{fffd}\u{fffd}[1m"),
            ("&amp;", "&amp;amp;"),
            ("Käse", "Käse"),
        ] {
            assert_eq!(escape(text), want);
        }
    }
}

//! How near a text is to the one that was wanted. Knows words, not tokens.

/// Whether two texts are the same but for their white space, which no tokenizer keeps.
pub fn exact_match(wanted: &str, text: &str) -> bool {
    wanted.split_whitespace().eq(text.split_whitespace())
}

/// ROUGE-L (Lin 2004) with beta = 1: the harmonic mean of the shares of both texts that their longest common
/// subsequence of words makes up. Case does not count.
pub fn rouge_l(wanted: &str, text: &str) -> f64 {
    let (wanted, text) = (wanted.to_lowercase(), text.to_lowercase());
    let (wanted, text): (Vec<&str>, Vec<&str>) =
        (wanted.split_whitespace().collect(), text.split_whitespace().collect());
    match wanted.len() + text.len() {
        0 => 1.0,
        words => 2.0 * longest_common_subsequence(&wanted, &text) as f64 / words as f64,
    }
}

fn longest_common_subsequence(a: &[&str], b: &[&str]) -> usize {
    // One row of the table: lengths for the words of `a` so far and each beginning of `b`.
    let mut lengths = vec![0; b.len() + 1];
    for word in a {
        let mut diagonal = 0;
        for (index, other) in b.iter().enumerate() {
            let above = lengths[index + 1];
            lengths[index + 1] = if word == other { diagonal + 1 } else { above.max(lengths[index]) };
            diagonal = above;
        }
    }
    lengths[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_words_match_exactly() {
        let cases = [
            ("a b", "a b", true),
            (" a  b\n", "a b", true),
            ("a b", "A b", false),
            ("a", "a b", false),
            ("", "", true),
        ];
        for (wanted, text, want) in cases {
            assert_eq!(exact_match(wanted, text), want, "{wanted:?} {text:?}");
        }
    }

    #[test]
    fn rouge_l_of_known_pairs() {
        let cases = [
            // The examples of Lin (2004), section 3.
            ("police killed the gunman", "police kill the gunman", 0.75),
            ("police killed the gunman", "the gunman kill police", 0.5),
            ("police killed the gunman", "the gunman police killed", 0.5),
            ("Chop the salt.", "chop THE salt.", 1.0),
            ("a b c d", "a c", 2.0 * (1.0 * 0.5) / (1.0 + 0.5)),
            ("a b c", "c b a", 1.0 / 3.0),
            ("a a b", "a b b", 2.0 / 3.0),
            ("a", "b", 0.0),
            ("a", "", 0.0),
            ("", "a", 0.0),
            ("", "", 1.0),
        ];
        for (wanted, text, want) in cases {
            let got = rouge_l(wanted, text);
            assert!((got - want).abs() < 1e-12, "{wanted:?} {text:?}: {got}");
        }
    }
}
